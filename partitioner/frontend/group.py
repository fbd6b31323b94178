"""From an imported module to its ops: the op graph, and a module that calls one function an op."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import relax

from partitioner.errors import GraphError
from partitioner.frontend.flops import flops
from partitioner.frontend.fusion import fusion_groups, ordered_groups
from partitioner.frontend.load import Imported
from partitioner.frontend.names import unique
from partitioner.frontend.signature import signature
from partitioner.frontend.slots import Slot, Slots
from partitioner.frontend.straight import handle
from partitioner.frontend.write_group import write_function
from partitioner.graph import Constant, Op, OpGraph, Tensor

__all__ = ["Grouped", "group"]

_LONGEST_KIND = 40
# Operators that call something else, which is what tells what they do.
_CALLERS = re.compile(r"relax\.call_(tir|dps_packed|pure_packed|tir_inplace|tir_with_grad)")


@dataclass(frozen=True, slots=True)
class Grouped:
    """A model as ops.

    Attributes
    ----------
    graph : OpGraph
        The ops and the tensors between them.
    module : IRModule
        ``main`` calls one private function an op, named as the op, in the order of ``graph.ops``;
        its variables are named as the graph's tensors. Weights are constants inside the functions
        that read them. Several outputs are returned as one flat tuple. Treat as read-only.
    notes : tuple of str
        What a user should know about the import.
    """

    graph: OpGraph
    module: Any
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Part:
    """One op while it is put together: its bindings, what it takes and gives, its function."""

    name: str
    kind: str
    members: tuple[int, ...]
    inputs: tuple[Slot, ...]
    outputs: tuple[Slot, ...]
    function: Any


def group(imported: Imported) -> Grouped:
    """Find a model's ops.

    An op is a group of operators that TVM's fusion makes one kernel of, or a single call when
    the module arrived lowered. Control flow, opaque calls and calls of other functions are one op
    each.

    Parameters
    ----------
    imported : Imported
        From `load`; not modified.

    Returns
    -------
    Grouped
        The op graph and the grouped module.

    Raises
    ------
    GraphError
        If a dimension is not bound, something other than a tensor is an input or output, an
        output is a constant, or there is nothing to compute.
    """
    model = imported.name
    slots = Slots(imported.module["main"])
    outputs = _outputs(slots, model)
    crossing = {*outputs, *(slot for slot in slots.type if slot.maker < 0)}
    for slot in slots.type:
        if slot in crossing or slots.is_tensor(slot):
            slots.shape(slot, model)
    groups = ordered_groups(slots, fusion_groups(imported.module, model))
    if not groups:
        raise GraphError(
            f"{model}: its outputs are its inputs; there is nothing to compute and nothing to cut"
        )
    taken = {str(variable.name_hint) for variable in imported.module.get_global_vars()}
    parts = _parts(slots, groups, outputs, taken)
    names = _tensor_names(slots, parts)
    module = _module(imported.module, slots, parts, outputs, names)
    if not relax.analysis.check_well_formed(module):
        raise GraphError(
            f"{model}: its ops do not make a well-formed Relax module; check that the module "
            "given is well-formed itself (tvm.relax.analysis.well_formed)"
        )
    return Grouped(_graph(imported, module, slots, parts, outputs, names), module, imported.notes)


def _outputs(slots: Slots, model: str) -> list[Slot]:
    for position, leaf in enumerate(slots.outputs):
        if not isinstance(leaf, Slot):
            raise GraphError(
                f"{model}: output {position} is a constant, the same for every input; drop it from "
                "the model's outputs"
            )
    return list(slots.outputs)


def _parts(
    slots: Slots, groups: Sequence[Sequence[int]], outputs: Sequence[Slot], taken: set[str]
) -> list[_Part]:
    owner = {index: number for number, members in enumerate(groups) for index in members}
    leaving = {slot for slot in outputs if slot.maker >= 0}
    for number, members in enumerate(groups):
        for index in members:
            leaving.update(
                s for s in slots.reads[index] if s.maker >= 0 and owner[s.maker] != number
            )
    leaving_of: dict[int, list[Slot]] = {}
    for slot in sorted(leaving):
        leaving_of.setdefault(owner[slot.maker], []).append(slot)
    parts = []
    for number, members in enumerate(groups):
        inside = set(members)
        inputs = dict.fromkeys(s for i in members for s in slots.reads[i] if s.maker not in inside)
        # An op that nobody reads was kept for its effect; it still returns what it makes.
        made = tuple(leaving_of.get(number, ())) or tuple(
            s for s in slots.type if s.maker == members[-1]
        )
        kind = _kind([slots.bindings[index] for index in members])
        name = f"{kind}_{number}"
        while name in taken:
            name += "_op"
        taken.add(name)
        function = write_function(slots, members, tuple(inputs), made)
        parts.append(_Part(name, kind, tuple(members), tuple(inputs), made, function))
    return parts


def _kind(bindings: Sequence[Any]) -> str:
    words = [_word(binding) for binding in bindings]
    kind = "_".join(words)
    if len(kind) <= _LONGEST_KIND:
        return kind
    count = len(words)
    while len(words) > 1 and len("_".join(words)) > _LONGEST_KIND - 8:
        words.pop()
    rest = count - len(words)
    return "_".join(words)[: _LONGEST_KIND - 8] + (f"_and_{rest}" if rest else "")


def _word(binding: Any) -> str:
    value = binding.value
    if isinstance(binding, relax.MatchCast) or not isinstance(value, relax.Call):
        return type(binding if isinstance(binding, relax.MatchCast) else value).__name__.lower()
    callee = value.op
    if isinstance(callee, tvm.ir.Op):
        operator = str(callee.name)
        if not _CALLERS.fullmatch(operator):
            return re.sub(r"\W", "_", operator.rsplit(".", 1)[-1])
        callee = value.args[0]
    if isinstance(callee, relax.ExternFunc):
        return re.sub(r"\W", "_", str(callee.global_symbol))
    if isinstance(callee, tvm.ir.GlobalVar):
        return re.sub(r"^fused_|_?\d+$", "", str(callee.name_hint)) or "call"
    return "call"


def _tensor_names(slots: Slots, parts: Sequence[_Part]) -> dict[Slot, str]:
    """Names of the graph's tensors, inputs first, then in order of the ops that make them."""
    inputs = [slot for slot in slots.type if slot.maker < 0]
    made = [slot for part in parts for slot in part.outputs]
    own = [slots.name[slot] for slot in inputs]
    names = unique([slots.name[slot] for slot in made], reserved=own)
    return dict(zip([*inputs, *made], [*own, *names], strict=True))


def _module(
    original: Any,
    slots: Slots,
    parts: Sequence[_Part],
    outputs: Sequence[Slot],
    names: Mapping[Slot, str],
) -> Any:
    functions = {
        callee: function
        for callee, function in original.functions_items()
        if str(callee.name_hint) != "main"
    }
    attrs = original["main"].attrs
    forced = attrs is not None and bool(attrs.get("relax.force_pure", False))
    variable = {slot: relax.Var(name, slots.type[slot]) for slot, name in names.items()}
    bindings = []
    for part in parts:
        function = part.function
        function = function.with_attr("relax.force_pure", True) if forced else function
        callee = _add(functions, part.name, function)
        call = relax.Call(callee, [variable[slot] for slot in part.inputs])
        if len(part.outputs) == 1:
            bindings.append(relax.VarBinding(variable[part.outputs[0]], call))
            continue
        several = relax.Var(f"{part.name}_results", part.function.ret_ty)
        bindings.append(relax.VarBinding(several, call))
        for index, slot in enumerate(part.outputs):
            bindings.append(relax.VarBinding(variable[slot], relax.TupleGetItem(several, index)))
    result: Any = variable[outputs[0]]
    if len(outputs) > 1:
        fields = relax.Tuple([variable[slot] for slot in outputs])
        result = relax.Var("outputs", relax.TupleType([slots.type[slot] for slot in outputs]))
        bindings.append(relax.VarBinding(result, fields))
    body = relax.SeqExpr([relax.BindingBlock(bindings)], result)
    pure = forced or all(part.function.is_pure for part in parts)
    params = [variable[slot] for slot in names if slot.maker < 0]
    function = relax.Function(params, body, result.ty, is_pure=pure)
    function = function.with_attr("global_symbol", "main")
    _add(functions, "main", function.with_attr("relax.force_pure", True) if forced else function)
    module = tvm.IRModule(functions, attrs=original.attrs, global_infos=original.global_infos)
    steps = [relax.transform.Normalize()]
    if pure:
        steps.append(relax.transform.ConvertToDataflow(1))
    steps.append(relax.transform.DeadCodeElimination(["main"]))
    return tvm.transform.Sequential(steps)(module)


def _add(functions: dict[Any, Any], name: str, function: Any) -> Any:
    callee = tvm.ir.GlobalVar(name)
    # A call's result type is derived from its callee's, which only the function knows.
    relax.expr._update_type(callee, function.ty)
    functions[callee] = function
    return callee


def _graph(
    imported: Imported,
    module: Any,
    slots: Slots,
    parts: Sequence[_Part],
    outputs: Sequence[Slot],
    names: Mapping[Slot, str],
) -> OpGraph:
    readers: dict[Slot, list[int]] = {slot: [] for slot in names}
    producer: dict[Slot, int | None] = dict.fromkeys(names)
    for number, part in enumerate(parts):
        for slot in part.inputs:
            readers[slot].append(number)
        producer.update(dict.fromkeys(part.outputs, number))
    tensors = []
    for position, (slot, name) in enumerate(names.items()):
        shape, dtype = slots.shape(slot, imported.name), str(slots.type[slot].dtype)
        size = int(np.prod(shape)) * _itemsize(dtype)
        tensors.append(
            Tensor(position, name, producer[slot], tuple(readers[slot]), shape, dtype, size)
        )
    place = {slot: position for position, slot in enumerate(names)}
    sources = _sources(imported, slots, parts)
    live = _live_bytes(tensors, len(parts))
    ops = tuple(
        Op(
            id=number,
            name=part.name,
            kind=part.kind,
            sources=sources[number],
            # Of the function that is lowered, so that whoever has the module finds the same one.
            signature=signature(module, module[part.name]),
            live_bytes=live[number],
            flops=sum(flops(slots.bindings[index].value) for index in part.members),
        )
        for number, part in enumerate(parts)
    )
    return OpGraph(
        name=imported.name,
        ops=ops,
        tensors=tuple(tensors),
        constants=_constants(parts),
        inputs=tuple(place[slot] for slot in names if slot.maker < 0),
        outputs=tuple(place[slot] for slot in outputs),
    )


def _itemsize(dtype: str) -> int:
    # Booleans take a byte; odd widths such as int4 are stored in whole bytes too.
    return (int(tvm.DataType(dtype).bits) + 7) // 8


def _sources(imported: Imported, slots: Slots, parts: Sequence[_Part]) -> list[tuple[str, ...]]:
    """Source names of each op, those of the fields taken from its results included."""
    aliases: dict[int, list[int]] = {}
    for index, slot in slots.aliases.items():
        aliases.setdefault(slot.maker, []).append(index)
    found = []
    for part in parts:
        indices = [i for member in part.members for i in (member, *aliases.get(member, []))]
        names = [str(slots.bindings[index].var.name) for index in indices]
        sources = (s for name in names for s in imported.source_names.get(name, ()))
        found.append(tuple(dict.fromkeys(sources)))
    return found


def _live_bytes(tensors: Sequence[Tensor], count: int) -> list[int]:
    """Bytes alive at each op: what it reads and makes, and what waits for a later op."""
    live = [0] * count
    for tensor in tensors:
        if tensor.producer is None:
            alive: Sequence[int] = tensor.consumers
        else:
            last = tensor.consumers[-1] if tensor.consumers else tensor.producer
            alive = range(tensor.producer, last + 1)
        for number in alive:
            live[number] += tensor.bytes
    return live


def _constants(parts: Sequence[_Part]) -> tuple[Constant, ...]:
    """The weights: constants with a dimension, each object once; scalars go into the kernels."""
    seen: dict[int, tuple[str, int, list[int]]] = {}
    for number, part in enumerate(parts):
        count = 0

        def visit(node: Any, number: int = number, part: _Part = part) -> None:
            nonlocal count
            if not isinstance(node, tvm.ir.GenericConst) or not node.value.shape:
                return
            key = handle(node.value)
            if key not in seen:
                size = int(np.prod([int(extent) for extent in node.value.shape]))
                bytes_ = size * _itemsize(str(node.value.dtype))
                seen[key] = (f"{part.name}.weight_{count}", bytes_, [])
                count += 1
            if number not in seen[key][2]:
                seen[key][2].append(number)

        relax.analysis.post_order_visit(part.function, visit)
    return tuple(Constant(name, tuple(users), size) for name, size, users in seen.values())
