"""A grouped module and an assignment into one module a stage."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from typing import Any

import tvm
from tvm import relax

from partitioner.errors import GraphError
from partitioner.graph import OpGraph
from partitioner.plan_check import stage_tensors

__all__ = ["split"]


def split(module: Any, graph: OpGraph, stage_of: Sequence[int]) -> tuple[Any, ...]:
    """Give each stage a module with only its own ops and constants.

    Parameters
    ----------
    module : tvm.IRModule
        Grouped: `main` calls one function an op, named as in `graph`, and binds each tensor to a
        variable of its name. It is not modified.
    graph : OpGraph
        The same model's ops and tensors.
    stage_of : sequence of int
        Stage of each op; no edge goes back.

    Returns
    -------
    tuple of tvm.IRModule
        `main` of each takes the tensors that enter the stage and returns a tuple of those that
        leave it, both in the order of `partitioner.plan_check.stage_tensors`.

    Raises
    ------
    GraphError
        If module and graph do not belong together.
    """
    bindings = _bindings_by_op(module["main"], graph)
    return tuple(
        _stage_module(
            module,
            graph,
            [b for op in graph.ops if stage_of[op.id] == stage for b in bindings[op.name]],
            entering,
            leaving,
        )
        for stage, (entering, leaving) in enumerate(stage_tensors(graph, stage_of))
    )


def _bindings_by_op(main: Any, graph: OpGraph) -> dict[str, list[Any]]:
    """For each op its call, and the bindings that take the call's result apart."""
    found: dict[str, list[Any]] = {}
    owner: dict[str, str] = {}
    for binding in _bindings(main):
        value = binding.value
        if isinstance(value, tvm.ir.Call) and _is_global(value.op):
            name = value.op.name_hint
        elif isinstance(value, tvm.ir.TupleGetItem) and value.tuple_value.name in owner:
            name = owner[value.tuple_value.name]
        else:
            continue  # the tuple of outputs
        owner[binding.var.name] = name
        found.setdefault(name, []).append(binding)
    missing = {op.name for op in graph.ops} - found.keys()
    if missing:
        raise GraphError(
            f"the module calls no op {min(missing)!r} of graph {graph.name!r}; "
            "group the module again and use its own graph"
        )
    return found


def _stage_module(
    module: Any,
    graph: OpGraph,
    bindings: Sequence[Any],
    entering: Sequence[int],
    leaving: Sequence[int],
) -> Any:
    main = module["main"]
    types = {v.name: v.ty for v in (*main.params, *(b.var for b in _bindings(main)))}
    names = [graph.tensors[tensor].name for tensor in entering]
    params = [relax.Var(name, types[name]) for name in names]
    here: dict[str, Any] = dict(zip(names, params, strict=True))
    roots = [b.value.op for b in bindings if isinstance(b.value, tvm.ir.Call)]
    builder = relax.BlockBuilder(_functions(module, roots))
    dataflow = _is_dataflow(main)
    with builder.function("main", params, pure=bool(main.is_pure)):
        with builder.dataflow() if dataflow else nullcontext():
            for binding in bindings:
                here[binding.var.name] = builder.emit(_here(binding.value, here), binding.var.name)
            result = relax.Tuple([here[graph.tensors[tensor].name] for tensor in leaving])
            made = builder.emit_output(result) if dataflow else builder.emit(result)
        builder.emit_func_output(made)
    return builder.finalize()


def _here(value: Any, here: dict[str, Any]) -> Any:
    """A binding's value over this stage's variables."""
    if isinstance(value, tvm.ir.TupleGetItem):
        return relax.TupleGetItem(here[value.tuple_value.name], value.index)
    args = [here[arg.name] if isinstance(arg, tvm.ir.Var) else arg for arg in value.args]
    return relax.Call(value.op, args, value.attrs)


def _is_dataflow(main: Any) -> bool:
    """Whether every binding is free of side effects and branches, so that passes may fuse."""
    return all(isinstance(block, relax.DataflowBlock) for block in main.body.blocks)


def _functions(module: Any, roots: Iterable[Any]) -> Any:
    """The functions reachable from `roots`, as a module that shares their global variables."""
    kept: dict[Any, Any] = {}
    waiting = list(roots)
    while waiting:
        var = waiting.pop()
        if var in kept:
            continue
        kept[var] = module[var]
        if isinstance(kept[var], relax.Function):
            relax.analysis.post_order_visit(
                kept[var], lambda node: waiting.append(node) if _is_global(node) else None
            )
    return tvm.IRModule(kept, attrs=module.attrs)


def _bindings(main: Any) -> Iterable[Any]:
    return (binding for block in main.body.blocks for binding in block.bindings)


def _is_global(node: Any) -> bool:
    return isinstance(node, tvm.ir.GlobalVar)
