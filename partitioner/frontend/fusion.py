"""Which bindings of a module would become one kernel: asked of TVM's own fusion.

The module is legalized and fused as a copy, and the groups carried back to the bindings they came
from. Nothing of the copy is kept.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import networkx as nx
import tvm
from tvm import relax

from partitioner.errors import GraphError
from partitioner.frontend.slots import Slots
from partitioner.frontend.straight import bindings_of, is_call, rebuild, with_main

__all__ = ["fusion_groups", "ordered_groups"]

# What legalization rules raise: TVM has no error type of its own for them.
_LOWERING_ERRORS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    NotImplementedError,
    RuntimeError,
    TypeError,
    ValueError,
)
_TAG = "fusion_group_of"


def fusion_groups(module: Any, model: str) -> list[list[int]]:
    """Groups of bindings of ``main`` that TVM fuses.

    A module that holds nothing but ``call_tir`` arrived lowered, and each call is left alone.

    Parameters
    ----------
    module : IRModule
        Straight-line ``main`` with uniquely named bindings; not modified.
    model : str
        The model's name, for messages.

    Returns
    -------
    list of list of int
        Indices of bindings, ascending in each group. Bindings in no group are not fused.

    Raises
    ------
    GraphError
        If TVM cannot lower one of the operators.
    """
    bindings = bindings_of(module["main"])
    operators = [b.value for b in bindings if isinstance(b.value, relax.Call)]
    if all(is_call(call, "relax.call_tir") for call in operators):
        return []
    passes = [relax.transform.LegalizeOps(), relax.transform.AnnotateTIROpPattern()]
    try:
        legal = tvm.transform.Sequential(passes)(module)
    except _LOWERING_ERRORS as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[-1]
        raise GraphError(
            f"{model}: TVM cannot lower one of its operators ({reason}); replace that operator, or "
            "give a module in which it is lowered already"
        ) from error
    index_of = {str(binding.var.name): index for index, binding in enumerate(bindings)}
    tagged = _tag(legal["main"], index_of)
    fused = relax.transform.FuseOps()(
        relax.transform.ConvertToDataflow(1)(with_main(legal, tagged))
    )
    groups = []
    for binding in bindings_of(fused["main"]):
        if not isinstance(binding.value, relax.Call):
            continue
        callee = binding.value.op
        if not isinstance(callee, tvm.ir.GlobalVar) or callee in legal.functions:
            continue
        inner = [_tag_of(b.value) for b in bindings_of(fused[callee])]
        group = sorted({index for index in inner if index is not None})
        if len(group) > 1:
            groups.append(group)
    return groups


def _tag(function: Any, index_of: Mapping[str, int]) -> Any:
    """Mark each legalized call with the binding it came from.

    Legalization keeps the name of a binding and may put others, with names of its own, in front.
    The mark also keeps TVM from sharing one group function among equal groups. Only the last call
    of a binding is marked: a binding belongs where its result is made.
    """
    marked = []
    for binding in bindings_of(function):
        index = index_of.get(str(binding.var.name))
        value = binding.value
        if index is not None and is_call(value, "relax.call_tir"):
            attrs = tvm.ir.make_node("ir.DictAttrs", **{_TAG: index})
            call = relax.Call(value.op, value.args, attrs, value.ty_args)
            marked.append(relax.VarBinding(binding.var, call))
        else:
            marked.append(binding)
    return _plain(rebuild(function, marked, {}))


def _plain(function: Any) -> Any:
    fresh = {
        variable.__chandle__(): relax.Var(str(variable.name), variable.ty)
        for variable in (binding.var for binding in bindings_of(function))
    }
    return rebuild(function, bindings_of(function), fresh)


def _tag_of(value: Any) -> int | None:
    if is_call(value, "relax.call_tir") and value.attrs is not None and _TAG in value.attrs:
        return int(value.attrs[_TAG])
    return None


def ordered_groups(slots: Slots, fused: Iterable[Sequence[int]]) -> list[list[int]]:
    """All computing bindings in groups, in an order in which each group can run as one.

    Groups are merged where something other than a tensor would cross between them, and where they
    would need each other's results.

    Parameters
    ----------
    slots : Slots
        The function's tensors.
    fused : iterable of sequences of int
        Groups to keep together.

    Returns
    -------
    list of list of int
        Every computing binding once; the groups in topological order, close to the module's.
    """
    together: nx.Graph[int] = nx.Graph()
    together.add_nodes_from(slots.computes)
    for group in fused:
        nx.add_path(together, [index for index in group if index in together])
    for reader in slots.computes:
        for slot in slots.reads[reader]:
            if slot.maker >= 0 and not slots.is_tensor(slot):
                together.add_edge(slot.maker, reader)
    group_of = {
        index: number
        for number, members in enumerate(nx.connected_components(together))
        for index in members
    }
    needs: nx.DiGraph[int] = nx.DiGraph()
    needs.add_nodes_from(group_of.values())
    for reader in slots.computes:
        for slot in slots.reads[reader]:
            if slot.maker >= 0 and group_of[slot.maker] != group_of[reader]:
                needs.add_edge(group_of[slot.maker], group_of[reader])
    # Two groups that need each other cannot be two ops; as one op they always can.
    condensed = nx.condensation(needs)
    members: dict[int, list[int]] = {node: [] for node in condensed}
    for index in slots.computes:
        members[condensed.graph["mapping"][group_of[index]]].append(index)
    return [members[node] for node in _topological(condensed, members)]


def _topological(needs: Any, members: Mapping[int, list[int]]) -> list[int]:
    """Topological order that takes, of the groups that are ready, the one that ends first."""
    waiting = {node: needs.in_degree(node) for node in needs}
    ready = [(members[node][-1], node) for node, count in waiting.items() if count == 0]
    heapq.heapify(ready)
    order = []
    while ready:
        _, node = heapq.heappop(ready)
        order.append(node)
        for after in needs.successors(node):
            waiting[after] -= 1
            if waiting[after] == 0:
                heapq.heappush(ready, (members[after][-1], after))
    return order
