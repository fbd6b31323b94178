"""What is tuned: each kind of op of a model once, as a small module without its weights."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import relax

from partitioner import lowering
from partitioner.frontend import Grouped
from partitioner.frontend.signature import SMALL_CONSTANT
from partitioner.frontend.straight import handle

__all__ = ["WEIGHT", "Task", "tasks_of", "weightless"]

WEIGHT = "tuning_weight_"
"""A parameter with a name that begins so stands for a weight."""


@dataclass(frozen=True, slots=True)
class Task:
    """An op to tune.

    Attributes
    ----------
    op : str
        Its signature.
    name : str
        Name of its function, the first of that signature.
    calls : int
        Ops of that signature in the model.
    tiles : tuple of tuple of int
        What its rule offers beside its own choice, by the rule's estimate.
    """

    op: str
    name: str
    calls: int
    tiles: tuple[lowering.Tile, ...]


def tasks_of(grouped: Grouped, target: Any) -> tuple[Task, ...]:
    """The ops of a model, those of one signature as one, in the order of the model.

    Parameters
    ----------
    grouped : Grouped
    target : tvm.target.Target
        Decides which tiles there are.
    """
    calls = Counter(op.signature for op in grouped.graph.ops)
    first = {op.signature: op.name for op in reversed(grouped.graph.ops)}
    return tuple(
        Task(
            op=op.signature,
            name=op.name,
            calls=calls[op.signature],
            tiles=lowering.tiles_of(grouped.module, op.name, target)[1:],
        )
        for op in grouped.graph.ops
        if first[op.signature] == op.name
    )


def weightless(module: Any, name: str) -> Any:
    """One function of a module with what it calls, its floating-point weights as parameters.

    Only their shapes matter to a kernel's speed, and weights make a file a thousand times larger.
    Small constants and integers (indices, shapes) keep their values, on which code may depend.

    Parameters
    ----------
    module : tvm.IRModule
        Not modified.
    name : str
        Of the function.

    Returns
    -------
    tvm.IRModule
    """
    weights: dict[int, Any] = {}

    def of_constant(constant: Any) -> Any:
        value = constant.value
        size = 1
        for extent in value.shape:
            size *= int(extent)
        if size <= SMALL_CONSTANT or not str(value.dtype).startswith(("float", "bfloat")):
            return constant
        return weights.setdefault(handle(value), relax.Var(f"{WEIGHT}{len(weights)}", constant.ty))

    root = module.get_global_var(name)
    function = tvm_ffi.structural_map(module[root], [(tvm.ir.GenericConst, of_constant)])
    kept: dict[Any, Any] = {
        root: relax.Function(
            [*function.params, *weights.values()],
            function.body,
            function.ret_ty,
            function.is_pure,
            function.attrs,
        )
    }
    waiting = [module[root]]
    while waiting:

        def visit(node: Any) -> None:
            if isinstance(node, tvm.ir.GlobalVar) and node not in kept:
                kept[node] = module[node]
                if isinstance(module[node], relax.Function):
                    waiting.append(module[node])

        relax.analysis.post_order_visit(waiting.pop(), visit)
    return tvm.IRModule(kept, attrs=module.attrs)
