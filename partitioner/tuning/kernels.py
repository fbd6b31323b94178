"""An op's kernels compiled in this process and run there; what the measuring process does.

Kernels are called one after the other as a stage calls them, on copies of their arguments in turn:
an op whose weights stay in the cache from run to run would look faster than it is in a network,
where all other ops have run in between.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm
from tvm import relax

from partitioner import lowering
from partitioner.errors import TuningError
from partitioner.lowering import Choice
from partitioner.tuning.tasks import WEIGHT

__all__ = ["Kernels", "interleaved", "same_values", "with_weights"]

# Several times a common second-level cache, so that what is used next is never in it.
_COLD_BYTES = 4 << 20
_MOST_COPIES = 64
# The clock and the call from Python take a microsecond or two.
_BURST_S = 1e-3
# A kernel that was this much slower than the one to beat each time is not measured again. Once is
# not enough: a burst during which something else had the core looks ten times slower.
_HOPELESS = 1.5
_FAIR_ROUNDS = 2

# Relax's builder of functions is one for all threads; the compiler, which takes most of the time,
# is not.
_LOWERING = threading.Lock()

Array = npt.NDArray[Any]


def with_weights(module: Any, name: str, seed: int = 0) -> Any:
    """A module that `tasks.weightless` made with random weights, and a `main` that calls it.

    Parameters
    ----------
    module : tvm.IRModule
    name : str
        The function that `main` calls.
    seed : int
        Of the weights; uniform in [0, 1).

    Returns
    -------
    tvm.IRModule
        As `partitioner.lowering.lower` takes it.
    """
    generator = np.random.default_rng(seed)
    weights = {
        str(param.name): tvm.runtime.tensor(_random(generator, param.ty))
        for param in module[name].params
        if str(param.name).startswith(WEIGHT)
    }
    public = tvm.IRModule(dict(module.functions_items()))
    public[name] = module[name].with_attr("global_symbol", name)
    if weights:
        public = relax.transform.BindParams(name, weights)(public)
    function = public[name].without_attr("global_symbol")
    callee = tvm.ir.GlobalVar(name)
    relax.expr._update_type(callee, function.ty)
    others = {gv: func for gv, func in public.functions_items() if gv.name_hint != name}
    builder = relax.BlockBuilder(tvm.IRModule({**others, callee: function}))
    params = [relax.Var(f"arg{i}", param.ty) for i, param in enumerate(function.params)]
    pure = bool(function.is_pure)
    with builder.function("main", params, pure=pure):
        if pure:
            with builder.dataflow():
                made = builder.emit_output(relax.Call(callee, params))
        else:
            made = builder.emit(relax.Call(callee, params))
        builder.emit_func_output(made)
    return builder.finalize()


def _random(generator: np.random.Generator, type_: Any) -> Array:
    shape, dtype = [int(extent) for extent in type_.shape.values], str(type_.dtype)
    if dtype.startswith(("float", "bfloat")):
        return generator.random(shape, dtype=np.float32).astype(dtype)
    # Zero and one are in every look-up table.
    return generator.integers(0, 2, shape).astype(dtype)


@dataclass(frozen=True, slots=True)
class _Call:
    kernel: str
    args: tuple[int, ...]


class Kernels:
    """An op's kernels as one choice makes them.

    Any thread may make them, several at a time; one thread runs them.

    Parameters
    ----------
    module : tvm.IRModule
        From `with_weights`.
    name : str
        The op's function.
    target : tvm.target.Target
    choice : Choice
    seed : int
        Of the inputs.

    Raises
    ------
    TuningError
        If the op is more than calls of kernels (control flow, calls of functions of another
        library).
    """

    def __init__(self, module: Any, name: str, target: Any, choice: Choice, seed: int = 0) -> None:
        with _LOWERING:
            lowered = lowering.lower(module, target, {name: choice})
        plan = _Plan(lowered, name)
        self._outputs = plan.outputs
        functions = {gv: f for gv, f in lowered.functions_items() if gv.name_hint != "main"}
        built: Any = tvm.tirx.build(tvm.IRModule(functions), target) if functions else None
        kernels = {call.kernel: built[call.kernel] for call in plan.calls}
        values = plan.values(seed)
        size = sum(array.nbytes for array in values)
        count = min(_MOST_COPIES, -(-_COLD_BYTES // max(1, size)))
        self._copies = [plan.tensors(values) for _ in range(count)]
        self._calls = [
            [(kernels[call.kernel], tuple(copy[i] for i in call.args)) for call in plan.calls]
            for copy in self._copies
        ]
        self._next = 0

    def outputs(self) -> list[Array]:
        """What the kernels compute."""
        self._next = 0
        self.seconds(1)
        return [self._copies[0][i].numpy() for i in self._outputs]

    def seconds(self, runs: int) -> float:
        """Mean time of some runs, one after the other."""
        start = time.perf_counter()
        for _ in range(runs):
            for kernel, args in self._calls[self._next]:
                kernel(*args)
            self._next = (self._next + 1) % len(self._calls)
        return (time.perf_counter() - start) / runs


class _Plan:
    """What a lowered `main` does: values by number, and calls of kernels on them."""

    def __init__(self, lowered: Any, name: str) -> None:
        self._types: list[Any] = []
        self._constants: dict[int, Array] = {}
        self._views: dict[int, int] = {}
        self.calls: list[_Call] = []
        self._number: dict[Any, tuple[int, ...]] = {}
        main = lowered["main"]
        for param in main.params:
            self._number[param] = (self._new(param.ty),)
        for block in main.body.blocks:
            for binding in block.bindings:
                self._number[binding.var] = self._bound(binding, name)
        self.outputs = self._of(main.body.body)

    def _new(self, type_: Any) -> int:
        self._types.append(type_)
        return len(self._types) - 1

    def _bound(self, binding: Any, name: str) -> tuple[int, ...]:
        value: Any = getattr(binding, "value", None)
        operator = getattr(getattr(value, "op", None), "name", "")
        if operator == "relax.call_tir":
            made = value.ty_args[0]
            types = list(made.fields) if isinstance(made, relax.TupleType) else [made]
            args = self._of(value.args[1])
            outputs = tuple(self._new(type_) for type_ in types)
            self.calls.append(_Call(str(value.args[0].name_hint), (*args, *outputs)))
            return outputs
        if operator == "relax.reshape":
            (source,) = self._of(value.args[0])
            number = self._new(value.ty)
            self._views[number] = source
            return (number,)
        if isinstance(value, relax.Var | relax.Tuple | relax.TupleGetItem | tvm.ir.GenericConst):
            return self._of(value)
        raise TuningError(
            f"op {name!r} is more than calls of kernels ({operator or type(value).__name__}); "
            "its kernels stay as they are"
        )

    def _of(self, expr: Any) -> tuple[int, ...]:
        if isinstance(expr, relax.Var):
            return self._number[expr]
        if isinstance(expr, relax.Tuple):
            return tuple(number for field in expr.fields for number in self._of(field))
        if isinstance(expr, relax.TupleGetItem):
            return (self._of(expr.tuple_value)[int(expr.index)],)
        number = self._new(expr.ty)
        self._constants[number] = expr.value.numpy()
        return (number,)

    def values(self, seed: int) -> list[Array]:
        """All values, those that nothing is known of random; views have no value of their own."""
        generator = np.random.default_rng(seed)
        return [
            self._constants[number]
            if number in self._constants
            else np.empty(0)
            if number in self._views
            else _random(generator, type_)
            for number, type_ in enumerate(self._types)
        ]

    def tensors(self, values: Sequence[Array]) -> list[Any]:
        """Copies of the values for kernels to work on."""
        found: list[Any] = []
        for number, (value, type_) in enumerate(zip(values, self._types, strict=True)):
            if number in self._views:
                shape = [int(extent) for extent in type_.shape.values]
                found.append(found[self._views[number]]._create_view(shape))
            else:
                found.append(tvm.runtime.tensor(value))
        return found


def interleaved(kernels: Sequence[Kernels], rounds: int) -> list[list[float]]:
    """Times of kernels that take turns, so that a machine's changes of pace hit all alike.

    Parameters
    ----------
    kernels : sequence of Kernels
        The first is the one to beat.
    rounds : int

    Returns
    -------
    list of list of float
        Seconds of a run for each, one a round; of one that is far behind, of the first ones only.
    """
    times: list[list[float]] = [[] for _ in kernels]
    runs = [max(1, round(_BURST_S / max(1e-7, one.seconds(1)))) for one in kernels]
    for _ in range(rounds):
        for number in _running(times):
            times[number].append(kernels[number].seconds(runs[number]))
    return times


def _running(times: Sequence[Sequence[float]]) -> Iterator[int]:
    for number, own in enumerate(times):
        fair = number == 0 or len(own) < _FAIR_ROUNDS
        if fair or min(own) <= _HOPELESS * min(times[0]):
            yield number


def same_values(found: Sequence[Array], wanted: Sequence[Array], tolerance: float) -> bool:
    """Whether arrays are equal up to a part of their largest value, NaN where the others have it.

    Parameters
    ----------
    found, wanted : sequence of ndarray
    tolerance : float
        0 for every bit.
    """
    for one, other in zip(found, wanted, strict=True):
        if tolerance and np.issubdtype(other.dtype, np.floating):
            largest = float(np.max(np.abs(other), initial=0.0, where=np.isfinite(other)))
            near = np.allclose(one, other, rtol=tolerance, atol=tolerance * largest, equal_nan=True)
        else:
            near = one.tobytes() == other.tobytes()
        if not near:
            return False
    return True
