"""A Relax function as one straight list of bindings, which is what the passes here work on.

TVM's own mutators walk an expression node by node in Python; `tvm_ffi.structural_map` walks it in
C++ and calls back for variables only, which keeps a network of a thousand bindings at milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import relax

__all__ = [
    "array_of",
    "bindings_of",
    "constant",
    "handle",
    "is_call",
    "rebuild",
    "result_of",
    "substitute",
    "variables_of",
    "with_main",
]

# Relax variables are plain IR variables and, inside dataflow blocks, a subclass of them.
_VARIABLES = (relax.Var, relax.DataflowVar)


def handle(node: Any) -> int:
    """Address of the object behind `node`: TVM's ``==`` may build an expression, this never does.

    Valid as long as something keeps the object alive.
    """
    return int(node.__chandle__())


def bindings_of(function: Any) -> list[Any]:
    """Bindings of a Relax function's body, in order, whatever blocks they are in."""
    body = function.body
    if not isinstance(body, relax.SeqExpr):
        return []
    return [binding for block in body.blocks for binding in block.bindings]


def result_of(function: Any) -> Any:
    """What a Relax function returns: a variable, a constant or a tuple of such."""
    body = function.body
    return body.body if isinstance(body, relax.SeqExpr) else body


def substitute(node: Any, replacement: Mapping[int, Any]) -> Any:
    """A copy of `node` with variables replaced, where they are bound as well as where read.

    Parameters
    ----------
    node : Any
        An expression, binding or function; it is not modified.
    replacement : Mapping of int to expression
        By `handle` of the variable. A variable that is bound inside `node` may be replaced by
        a variable only.
    """

    def replace(variable: Any) -> Any:
        return replacement.get(handle(variable), variable)

    return tvm_ffi.structural_map(node, (_VARIABLES, replace))


def variables_of(value: Any) -> list[Any]:
    """Variables that an expression reads from outside itself, each once, in order of first use."""
    if isinstance(value, relax.Call | relax.Tuple | relax.TupleGetItem | relax.Var):
        found: dict[int, Any] = {}
        _collect(value, found)
        return list(found.values())
    return list(relax.analysis.free_vars(value))


def _collect(value: Any, found: dict[int, Any]) -> None:
    if isinstance(value, relax.Var):
        found.setdefault(handle(value), value)
    elif isinstance(value, relax.Tuple):
        for field in value.fields:
            _collect(field, found)
    elif isinstance(value, relax.TupleGetItem):
        _collect(value.tuple_value, found)
    elif isinstance(value, relax.Call):
        _collect(value.op, found)
        for argument in value.args:
            _collect(argument, found)
    else:
        for variable in relax.analysis.free_vars(value):
            found.setdefault(handle(variable), variable)


def rebuild(
    function: Any,
    bindings: Sequence[Any],
    replacement: Mapping[int, Any],
    *,
    params: Iterable[Any] | None = None,
) -> Any:
    """`function` with other bindings in one plain block, and variables replaced throughout."""
    body = relax.SeqExpr([relax.BindingBlock(list(bindings))], result_of(function))
    fresh = relax.Function(
        list(function.params if params is None else params),
        body,
        function.ret_ty,
        function.is_pure,
        function.attrs,
    )
    return substitute(fresh, replacement) if replacement else fresh


def with_main(module: Any, function: Any, name: str = "main") -> Any:
    """A copy of `module` with another function of this name."""
    copy = module.clone()
    if name in {variable.name_hint for variable in module.get_global_vars()}:
        copy.update_func(copy.get_global_var(name), function)
    else:
        copy[name] = function
    return copy


def is_call(value: Any, name: str) -> bool:
    """Whether `value` calls the operator of this name, e.g. ``"relax.call_tir"``."""
    return (
        isinstance(value, relax.Call)
        and isinstance(value.op, tvm.ir.Op)
        and str(value.op.name) == name
    )


def array_of(value: Any) -> np.ndarray[Any, Any] | None:
    """The array of a constant, None for any other expression or a type NumPy lacks."""
    if not isinstance(value, tvm.ir.GenericConst) or not hasattr(value.value, "numpy"):
        return None
    array: np.ndarray[Any, Any] = value.value.numpy()
    return array


def constant(array: np.ndarray[Any, Any]) -> Any:
    """A Relax constant of exactly this array's type.

    `relax.const` narrows 64-bit NumPy arrays, so the array is made a tensor first.
    """
    return relax.const(tvm.runtime.tensor(np.ascontiguousarray(array).reshape(array.shape)))
