"""Lowering for CPU targets: one module of group functions in, scheduled kernels out."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import tvm
from tvm import relax, tirx
from tvm_ffi import structural_hash

from partitioner.errors import BuildError
from partitioner.lowering.choice import Choice, Tile
from partitioner.lowering.conv import rewrite_conv2d, rewrite_conv2d_transpose
from partitioner.lowering.inline import (
    Kernel,
    called_kernels,
    flatten_main,
    group_calls,
    is_opaque,
    kernels_of,
)
from partitioner.lowering.isa import Isa, isa_of
from partitioner.lowering.matmul import rewrite_matmul
from partitioner.lowering.pool import rewrite_max_pool2d
from partitioner.lowering.schedule import apply_trace, is_view, schedule_kernel

__all__ = ["build", "host_target", "kernels_of", "lower", "tiles_of", "workload"]

# Operators that get a kernel of this package's own; all others take TVM's definition.
_REWRITES = {
    "relax.nn.conv2d": rewrite_conv2d,
    "relax.nn.conv2d_transpose": rewrite_conv2d_transpose,
    "relax.matmul": rewrite_matmul,
    "relax.nn.max_pool2d": rewrite_max_pool2d,
}


def host_target(num_cores: int) -> tvm.target.Target:
    """Target of this machine's CPU.

    Parameters
    ----------
    num_cores : int
        Cores that a kernel may be spread over.

    Returns
    -------
    tvm.target.Target
    """
    cpu = tvm.target.codegen.llvm_get_system_cpu()
    return tvm.target.Target({"kind": "llvm", "mcpu": cpu, "num-cores": num_cores})


def lower(
    mod: tvm.IRModule, target: tvm.target.Target, choices: Mapping[str, Choice] | None = None
) -> tvm.IRModule:
    """Scheduled kernels for a module of group functions.

    Parameters
    ----------
    mod : tvm.IRModule
        `main` calls private Relax functions, one a fusion group. Not modified.
    target : tvm.target.Target
        An `llvm` target; its features decide vector width and register tiles.
    choices : mapping of str to Choice, optional
        By name of a group how its kernel is made, if not as the rules would by themselves. A tile
        that they do not know, or a trace that does not fit, is ignored. Tiles change a kernel's
        speed, not one bit of what it computes.

    Returns
    -------
    tvm.IRModule
        `main` is a flat list of calls to scheduled kernels in the order of the groups. Groups with
        control flow or opaque calls remain functions. A kernel's name is its operators and a hash
        of its body, so the same group gives the same kernel in every module.

    Raises
    ------
    BuildError
        If there is no `main`, or TVM cannot legalize an operator.
    """
    if "main" not in [gv.name_hint for gv in mod.get_global_vars()]:
        names = ", ".join(sorted(gv.name_hint for gv in mod.get_global_vars()))
        raise BuildError(
            f"lowering: the module has the functions {names or '(none)'}, but no 'main'; "
            "name the function to lower 'main'"
        )
    isa = isa_of(target)
    main = mod["main"]
    groups = group_calls(main, mod)
    opaque = {gv.name_hint for gv in groups if is_opaque(mod[gv])}
    choices = choices or {}
    work = _prepare(mod, isa, choices)
    try:
        with target, tvm.transform.PassContext(opt_level=3):
            work = _PASSES(work)
    except (tvm.error.InternalError, ValueError, TypeError) as error:
        first = str(error).strip().splitlines()
        raise BuildError(
            f"lowering: TVM could not legalize the groups {_some(groups)}: "
            f"{first[-1] if first else error!r}; "
            "check that their operators are supported on a CPU target"
        ) from error
    traces = {name: choice.trace for name, choice in choices.items() if choice.trace}
    kernels = _schedule_all(work, isa, _traced(work, traces))
    return flatten_main(main, work, kernels, opaque)


_PASSES = tvm.transform.Sequential(
    [
        relax.transform.LegalizeOps(),
        relax.transform.AnnotateTIROpPattern(),
        relax.transform.FoldConstant(),
        relax.transform.FuseOps(),
        relax.transform.FuseTIR(),
        relax.transform.DeadCodeElimination(),
    ]
)


def _some(names: list[Any]) -> str:
    shown = ", ".join(gv.name_hint for gv in names[:5])
    return shown + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def tiles_of(mod: tvm.IRModule, group: str, target: tvm.target.Target) -> tuple[Tile, ...]:
    """Tiles that a group's convolution or matrix product can have.

    Parameters
    ----------
    mod : tvm.IRModule
        Holds the group's function.
    group : str
        Its name.
    target : tvm.target.Target

    Returns
    -------
    tuple of tuple of int
        By the rules' own estimate the fastest first, which is what `lower` takes by itself. Empty
        for a group that no rule tiles.
    """
    func = mod[group]
    if not isinstance(func, relax.Function):
        return ()
    rewriter = _Rewriter(mod, func, isa_of(target), None)
    rewriter.visit_expr(func)
    return rewriter.tiles


def workload(mod: tvm.IRModule, group: str, target: tvm.target.Target) -> Any | None:
    """The kernel that TVM itself makes of a group, unscheduled: what a trace is for.

    Parameters
    ----------
    mod : tvm.IRModule
        Holds the group's function.
    group : str
        Its name.
    target : tvm.target.Target

    Returns
    -------
    tvm.tirx.PrimFunc or None
        None unless the group becomes exactly one kernel.
    """
    func = mod[group]
    if not isinstance(func, relax.Function) or is_opaque(func):
        return None
    public = func.without_attr("Primitive").with_attr("global_symbol", group)
    with target, tvm.transform.PassContext(opt_level=3):
        work = _PASSES(tvm.IRModule({group: public}))
    kernels = called_kernels(work[group])
    return _plain(work[kernels.pop()]) if len(kernels) == 1 else None


def _plain(func: Any) -> Any:
    return func.without_attr("global_symbol").without_attr("op_pattern")


def _prepare(mod: tvm.IRModule, isa: Isa, choices: Mapping[str, Choice]) -> tvm.IRModule:
    """Copy of the module without `main`, groups public so that each is optimized by itself."""
    funcs = {}
    direct = called_kernels(mod["main"])
    for gv, func in mod.functions_items():
        if gv.name_hint == "main":
            continue
        if isinstance(func, relax.Function):
            func = func.without_attr("Primitive").with_attr("global_symbol", gv.name_hint)
        elif gv.name_hint in direct:
            # Public, or it would be removed as dead: `main` is not here to call it.
            func = func.with_attr("global_symbol", gv.name_hint)
        funcs[gv] = func
    work = tvm.IRModule(funcs)
    for gv, func in work.functions_items():
        choice = choices.get(gv.name_hint, Choice())
        if isinstance(func, relax.Function) and not choice.trace:
            work = _Rewriter(work, func, isa, choice.tile).run(gv)
    return work


@relax.expr_functor.mutator
class _Rewriter(relax.PyExprMutator):
    """Puts this package's kernels in the place of operators in one function."""

    def __init__(self, mod: tvm.IRModule, func: Any, isa: Isa, tile: Tile | None) -> None:
        super().__init__(mod)
        self.func = func
        self.isa = isa
        self.tile = tile
        self.tiles: tuple[Tile, ...] = ()
        self.bound = dict(relax.analysis.get_var2val(func).items())

    def run(self, gv: Any) -> tvm.IRModule:
        self.builder_.update_func(gv, self.visit_expr(self.func))
        return self.builder_.get()

    def visit_call_(self, call: Any) -> Any:
        rule = _REWRITES.get(getattr(call.op, "name", ""))
        found = rule(call, self.bound, self.isa, self.tile) if rule else None
        if found is None:
            return super().visit_call_(call)
        self.tiles = self.tiles or found.tiles
        kernel = self.builder_.add_func(found.func, found.name)
        out = call.ty if found.shape is None else relax.TensorType(found.shape, call.ty.dtype)
        value = relax.call_tir(kernel, [self.visit_expr(arg) for arg in found.args], out)
        if found.shape is not None:
            value = relax.op.reshape(self.builder_.emit(value), call.ty.shape)
        return value


def _traced(work: tvm.IRModule, traces: Mapping[str, str]) -> dict[str, str]:
    """Traces by the kernels that they are for, given by group."""
    found = {}
    for group, trace in traces.items():
        kernels = called_kernels(work[group])
        if len(kernels) == 1:
            found[kernels.pop()] = trace
    return found


def _schedule_all(work: tvm.IRModule, isa: Isa, traces: Mapping[str, str]) -> dict[str, Kernel]:
    """Scheduled kernels by the names that the unscheduled ones have in `work`."""
    done: dict[int, Kernel] = {}
    kernels: dict[str, Kernel] = {}
    for gv, func in work.functions_items():
        if not isinstance(func, tirx.PrimFunc):
            continue
        func = _plain(func)
        key = structural_hash(func)
        if key not in done:
            # TVM numbers names by what else is in the module; the hash does that better.
            stem = re.sub(r"\d+(?=_|$)", "", gv.name_hint).removeprefix("fused_")
            name = f"{stem[:80]}_{key & 0xFFFFFFFFFFFFFFFF:016x}"
            view = is_view(func)
            trace = traces.get(gv.name_hint)
            scheduled = None if view or trace is None else apply_trace(func, trace)
            if scheduled is None:
                scheduled = func if view else schedule_kernel(func, isa)
            done[key] = Kernel(name, scheduled, view)
        kernels[gv.name_hint] = done[key]
    return kernels


def build(mod: tvm.IRModule, target: tvm.target.Target) -> Any:
    """Compile a module that `lower` returned.

    Parameters
    ----------
    mod : tvm.IRModule
    target : tvm.target.Target
        The target it was lowered for.

    Returns
    -------
    tvm.relax.VMExecutable
        To be run by `tvm.relax.VirtualMachine`.
    """
    return tvm.relax.build(mod, target, relax_pipeline=_vm_passes(plan=not _branches(mod)))


def _vm_passes(*, plan: bool) -> Any:
    """From calls of kernels to the VM's instructions, storage planned ahead or not."""
    passes = [
        relax.transform.ToNonDataflow(),
        relax.transform.RemovePurityChecking(),
        relax.transform.CallTIRRewrite(),
        *([relax.transform.StaticPlanBlockMemory()] if plan else []),
        relax.transform.LowerAllocTensor(),
        relax.transform.KillAfterLastUse(),
        relax.transform.LowerRuntimeBuiltin(),
        relax.transform.ComputePrimValue(),
        relax.transform.VMShapeLower(),
        relax.transform.AttachGlobalSymbol(),
    ]
    return tvm.transform.Sequential(passes)


def _branches(mod: tvm.IRModule) -> bool:
    """Whether any function branches: TVM 0.27's plan of storage then crashes some modules."""
    found = False

    def visit(expr: Any) -> None:
        nonlocal found
        found = found or isinstance(expr, relax.If)

    for _, func in mod.functions_items():
        if isinstance(func, relax.Function):
            relax.analysis.post_order_visit(func.body, visit)
    return found
