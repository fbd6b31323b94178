"""From group functions and their kernels to a flat `main`, with a record of which is whose."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax

from partitioner.errors import BuildError

__all__ = ["Kernel", "called_kernels", "flatten_main", "group_calls", "is_opaque", "kernels_of"]

KERNELS_ATTR = "partitioner.kernels"


@dataclass(frozen=True, slots=True)
class Kernel:
    """A scheduled kernel.

    Attributes
    ----------
    name : str
        Its symbol: operators and hash of the unscheduled body.
    func : tvm.tirx.PrimFunc
    view : bool
        Whether it only gives its input another shape; it then becomes a view, not a kernel.
    """

    name: str
    func: Any
    view: bool


def kernels_of(mod: tvm.IRModule) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Which kernels each group of a lowered module runs.

    Parameters
    ----------
    mod : tvm.IRModule
        A module that `lower` returned.

    Returns
    -------
    tuple of (group name, kernel symbols in call order)
        In the order of `main`. A group that only reshapes has no kernel.

    Raises
    ------
    BuildError
        If the module was not lowered.
    """
    record = mod["main"].attrs.get(KERNELS_ATTR) if mod["main"].attrs else None
    if record is None:
        raise BuildError(
            "lowering: 'main' carries no record of kernels; pass the module that `lower` returned"
        )
    return tuple((str(row[0]), tuple(str(name) for name in row[1:])) for row in record)


def bindings_of(func: Any) -> Iterator[Any]:
    """Bindings of a function's outermost blocks in order."""
    for block in func.body.blocks:
        yield from block.bindings


def group_calls(main: Any, mod: tvm.IRModule) -> list[Any]:
    """Global variables of the Relax functions that `main` calls, in order, each once."""
    seen: dict[str, Any] = {}
    for binding in bindings_of(main):
        gv = getattr(binding.value, "op", None)
        if isinstance(gv, tvm.ir.GlobalVar) and isinstance(mod[gv], relax.Function):
            seen.setdefault(gv.name_hint, gv)
    return list(seen.values())


def called_kernels(main: Any) -> set[str]:
    """Names of the PrimFuncs that `main` itself calls."""
    return {
        binding.value.args[0].name_hint
        for binding in bindings_of(main)
        if getattr(getattr(binding.value, "op", None), "name", "") == "relax.call_tir"
    }


def is_opaque(func: Any) -> bool:
    """Whether a group must stay a function: control flow, calls of functions TVM cannot see."""
    found = False

    def visit(expr: Any) -> None:
        nonlocal found
        if isinstance(expr, relax.If | relax.Function | relax.ExternFunc):
            found = True
        elif isinstance(expr, relax.Call):
            name = getattr(expr.op, "name", "")
            tensor_ir = name in ("relax.call_tir", "relax.call_tir_with_grad")
            found = found or (isinstance(expr.op, tvm.ir.GlobalVar | relax.Var) and not tensor_ir)

    relax.analysis.post_order_visit(func.body, visit)
    return found


def flatten_main(
    main: Any, work: tvm.IRModule, kernels: dict[str, Kernel], opaque: set[str]
) -> tvm.IRModule:
    """New module: kernels, opaque groups, and a `main` with all other groups inlined.

    Parameters
    ----------
    main : relax.Function
        Calls the groups.
    work : tvm.IRModule
        The groups after fusion, each a list of `call_tir`.
    kernels : dict of str to Kernel
        By the name of the PrimFunc in `work`.
    opaque : set of str
        Groups that remain functions.

    Returns
    -------
    tvm.IRModule
    """
    return _Flattener(main, work, kernels, opaque).run()


class _Flattener:
    def __init__(
        self, main: Any, work: tvm.IRModule, kernels: dict[str, Kernel], opaque: set[str]
    ) -> None:
        self.main = main
        self.work = work
        self.kernels = kernels
        self.opaque = opaque
        self.builder = relax.BlockBuilder()
        self.added: dict[str, Any] = {}
        self.record: list[list[str]] = []

    def run(self) -> tvm.IRModule:
        pure = all(isinstance(b, relax.DataflowBlock) for b in self.main.body.blocks)
        with self.builder.function("main", list(self.main.params)):
            if pure:
                with self.builder.dataflow():
                    result = self._inline(self.main, {}, None)
                    result = self.builder.emit_output(result)
            else:
                result = self._inline(self.main, {}, None)
            self.builder.emit_func_output(result)
        mod = self.builder.finalize()
        attrs = {KERNELS_ATTR: self.record, **dict((self.main.attrs or {}).items())}
        return self._with_main(mod, mod["main"].with_attrs(attrs))

    @staticmethod
    def _with_main(mod: tvm.IRModule, main: Any) -> tvm.IRModule:
        mod.update_func(mod.get_global_var("main"), main)
        return mod

    def _inline(self, func: Any, known: dict[Any, Any], group: str | None) -> Any:
        """Emit a function's bindings; its result, in terms of what was emitted."""
        for binding in bindings_of(func):
            if isinstance(binding, relax.MatchCast):
                value = self.builder.match_cast(self._subst(binding.value, known), binding.ty)
            else:
                value = self._bound(binding, known, group)
            known[binding.var] = value
        return self._subst(func.body.body, known)

    def _bound(self, binding: Any, known: dict[Any, Any], group: str | None) -> Any:
        value = binding.value
        gv = getattr(value, "op", None)
        if group is None and isinstance(gv, tvm.ir.GlobalVar):
            args = [self._subst(arg, known) for arg in value.args]
            self.record.append([gv.name_hint])
            callee = self.work[gv.name_hint]
            if gv.name_hint not in self.opaque:
                inner = dict(zip(callee.params, args, strict=True))
                return self._inline(callee, inner, gv.name_hint)
            self._record_all(callee, gv.name_hint)
            return self.builder.emit(relax.Call(self._function(gv.name_hint), args))
        if getattr(gv, "name", "") == "relax.call_tir":
            return self._call_tir(value, known, group)
        if group is None and isinstance(gv, tvm.ir.Op) and gv.has_attr("FLegalize"):
            raise BuildError(
                f"lowering: 'main' calls the operator {gv.name} outside any group; "
                "move it into a private function and call that"
            )
        value = self._subst(value, known)
        return value if isinstance(value, relax.Var) else self.builder.emit(value)

    def _call_tir(self, call: Any, known: dict[Any, Any], group: str | None) -> Any:
        kernel = self.kernels[call.args[0].name_hint]
        if group is None:
            self.record.append([call.args[0].name_hint])
        args = [self._subst(arg, known) for arg in call.args[1:]]
        if kernel.view:
            return self.builder.emit(relax.op.reshape(args[0].fields[0], call.ty.shape))
        self.record[-1].append(kernel.name)
        gv = self._kernel(kernel.name, kernel.func)
        return self.builder.emit(relax.Call(call.op, [gv, *args], call.attrs, call.ty_args))

    def _subst(self, expr: Any, known: dict[Any, Any]) -> Any:
        if isinstance(expr, relax.Var):
            return known.get(expr, expr)
        if isinstance(expr, relax.Tuple):
            return relax.Tuple([self._subst(field, known) for field in expr.fields])
        if isinstance(expr, relax.TupleGetItem):
            return relax.TupleGetItem(self._subst(expr.tuple_value, known), expr.index)
        if isinstance(expr, relax.Call):
            args = [self._subst(arg, known) for arg in expr.args]
            return relax.Call(expr.op, args, expr.attrs, expr.ty_args)
        return expr

    def _kernel(self, name: str, func: Any) -> Any:
        if name not in self.added:
            self.added[name] = self.builder.add_func(func.with_attr("global_symbol", name), name)
        return self.added[name]

    def _function(self, name: str) -> Any:
        """Global variable, in the new module, of a function that stays one."""
        if name not in self.added:
            func = _Renamer(self, name).visit_expr(self.work[name])
            self.added[name] = self.builder.add_func(func.without_attr("global_symbol"), name)
        return self.added[name]

    def renamed(self, gv: Any, group: str) -> Any:
        """Where a function of the worked-on module went, called from inside an opaque group."""
        if gv.name_hint in self.kernels:
            kernel = self.kernels[gv.name_hint]
            return self._kernel(f"{group}_{kernel.name}", kernel.func)
        return self._function(gv.name_hint)

    def _record_all(self, func: Any, group: str) -> None:
        def visit(expr: Any) -> None:
            if not isinstance(expr, relax.Call):
                return
            if getattr(expr.op, "name", "") == "relax.call_tir":
                self.record[-1].append(f"{group}_{self.kernels[expr.args[0].name_hint].name}")
            elif isinstance(expr.op, relax.ExternFunc):
                self.record[-1].append(str(expr.op.global_symbol))

        relax.analysis.post_order_visit(func, visit)


@relax.expr_functor.mutator
class _Renamer(relax.PyExprMutator):
    """Points an opaque group's calls at the kernels of the new module."""

    def __init__(self, owner: _Flattener, group: str) -> None:
        super().__init__()
        self.owner = owner
        self.group = group

    def visit_global_var_(self, gv: Any) -> Any:
        return self.owner.renamed(gv, self.group)
