"""Write a group of bindings as a Relax function of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import relax

from partitioner.frontend.slots import Slot, Slots
from partitioner.frontend.straight import handle, substitute, variables_of

__all__ = ["write_function"]


def write_function(
    slots: Slots, members: Sequence[int], inputs: Sequence[Slot], outputs: Sequence[Slot]
) -> Any:
    """A private function that computes one group of bindings.

    Parameters
    ----------
    slots : Slots
        Of the function that the bindings are part of; that function is not modified.
    members : sequence of int
        Indices of the group's bindings, ascending.
    inputs, outputs : sequence of Slot
        What the function takes, in order, and what it returns: a tensor, or a tuple of several.

    Returns
    -------
    relax.Function
        Constants stay inside, the same objects as in the original.
    """
    return _Writer(slots, members, inputs).write(outputs)


class _Writer:
    """Collects fresh bindings; the originals belong to another function."""

    def __init__(self, slots: Slots, members: Sequence[int], inputs: Sequence[Slot]) -> None:
        self.slots = slots
        self.members = members
        self.bindings: list[Any] = []
        self.params = [relax.Var(slots.name[slot], slots.type[slot]) for slot in inputs]
        self.local: dict[Slot, Any] = dict(zip(inputs, self.params, strict=True))
        self.whole: dict[int, Any] = {}  # member -> variable of all that it gives

    def write(self, outputs: Sequence[Slot]) -> Any:
        for index in self.members:
            self._write_binding(self.slots.bindings[index], index)
        results = [self._slot(slot) for slot in outputs]
        result = results[0]
        if len(results) > 1:
            fields = [variable.ty for variable in results]
            result = relax.Var("results", relax.TupleType(fields))
            self.bindings.append(relax.VarBinding(result, relax.Tuple(results)))
        body = relax.SeqExpr([relax.BindingBlock(self.bindings)], result)
        function = relax.Function(self.params, body, result.ty)
        if relax.analysis.contains_impure_call(function):
            function = relax.Function(self.params, body, result.ty, is_pure=False)
        return function

    def _write_binding(self, binding: Any, index: int) -> None:
        replacement = {
            handle(variable): self._expression(self.slots.tree[handle(variable)])
            for variable in variables_of(binding.value)
        }
        value = substitute(binding.value, replacement)
        variable = relax.Var(str(binding.var.name), binding.var.ty)
        self.whole[index] = variable
        self.local[Slot(index)] = variable
        if isinstance(binding, relax.MatchCast):
            self.bindings.append(relax.MatchCast(variable, value, binding.ty))
        else:
            self.bindings.append(relax.VarBinding(variable, value))

    def _expression(self, tree: Any) -> Any:
        if isinstance(tree, tuple):
            return relax.Tuple([self._expression(branch) for branch in tree])
        return self._slot(tree) if isinstance(tree, Slot) else tree

    def _slot(self, slot: Slot) -> Any:
        """The local variable that holds a slot, taken out of its maker's tuple when first read."""
        if slot not in self.local:
            value = self.whole[slot.maker]
            for depth, index in enumerate(slot.path):
                field = value.ty.fields[index]
                last = depth + 1 == len(slot.path)
                variable = relax.Var(self.slots.name[slot] if last else "field", field)
                self.bindings.append(relax.VarBinding(variable, relax.TupleGetItem(value, index)))
                value = variable
            self.local[slot] = value
        return self.local[slot]
