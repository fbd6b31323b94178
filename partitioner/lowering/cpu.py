"""Lowering for CPU targets: one module of group functions in, scheduled kernels out."""

from __future__ import annotations

import re
from typing import Any

import tvm
from tvm import relax, tirx
from tvm_ffi import structural_hash

from partitioner.errors import BuildError
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
from partitioner.lowering.schedule import is_view, schedule_kernel

__all__ = ["build", "host_target", "kernels_of", "lower"]

# Operators that get a kernel of this package's own; all others take TVM's definition.
_REWRITES = {
    "relax.nn.conv2d": rewrite_conv2d,
    "relax.nn.conv2d_transpose": rewrite_conv2d_transpose,
    "relax.matmul": rewrite_matmul,
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


def lower(mod: tvm.IRModule, target: tvm.target.Target) -> tvm.IRModule:
    """Scheduled kernels for a module of group functions.

    Parameters
    ----------
    mod : tvm.IRModule
        `main` calls private Relax functions, one a fusion group. Not modified.
    target : tvm.target.Target
        An `llvm` target; its features decide vector width and register tiles.

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
    work = _prepare(mod, isa)
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
    kernels = _schedule_all(work, isa)
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


def _prepare(mod: tvm.IRModule, isa: Isa) -> tvm.IRModule:
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
        if isinstance(func, relax.Function):
            work = _Rewriter(work, func, isa).run(gv)
    return work


@relax.expr_functor.mutator
class _Rewriter(relax.PyExprMutator):
    """Puts this package's kernels in the place of operators in one function."""

    def __init__(self, mod: tvm.IRModule, func: Any, isa: Isa) -> None:
        super().__init__(mod)
        self.func = func
        self.isa = isa
        self.bound = dict(relax.analysis.get_var2val(func).items())

    def run(self, gv: Any) -> tvm.IRModule:
        self.builder_.update_func(gv, self.visit_expr(self.func))
        return self.builder_.get()

    def visit_call_(self, call: Any) -> Any:
        rule = _REWRITES.get(getattr(call.op, "name", ""))
        found = rule(call, self.bound, self.isa) if rule else None
        if found is None:
            return super().visit_call_(call)
        kernel = self.builder_.add_func(found.func, found.name)
        out = call.ty if found.shape is None else relax.TensorType(found.shape, call.ty.dtype)
        value = relax.call_tir(kernel, [self.visit_expr(arg) for arg in found.args], out)
        if found.shape is not None:
            value = relax.op.reshape(self.builder_.emit(value), call.ty.shape)
        return value


def _schedule_all(work: tvm.IRModule, isa: Isa) -> dict[str, Kernel]:
    """Scheduled kernels by the names that the unscheduled ones have in `work`."""
    done: dict[int, Kernel] = {}
    kernels: dict[str, Kernel] = {}
    for gv, func in work.functions_items():
        if not isinstance(func, tirx.PrimFunc):
            continue
        func = func.without_attr("global_symbol").without_attr("op_pattern")
        key = structural_hash(func)
        if key not in done:
            # TVM numbers names by what else is in the module; the hash does that better.
            stem = re.sub(r"\d+(?=_|$)", "", gv.name_hint).removeprefix("fused_")
            name = f"{stem[:80]}_{key & 0xFFFFFFFFFFFFFFFF:016x}"
            view = is_view(func)
            done[key] = Kernel(name, func if view else schedule_kernel(func, isa), view)
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
