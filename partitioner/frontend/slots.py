"""Which tensors a straight-line function's bindings make and read, through tuples and aliases.

A *slot* is one tensor: a parameter, or what a binding computes, or one field of a tuple of those.
Tuples, fields and aliases are no computation: a variable bound to one is a tree of slots.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax

from partitioner.errors import GraphError
from partitioner.frontend.straight import bindings_of, handle, result_of, variables_of

__all__ = ["Slot", "Slots", "leaves"]


_NO_COMPUTATION = (relax.Var, relax.Tuple, relax.TupleGetItem, tvm.ir.GenericConst)


@dataclass(frozen=True, slots=True, order=True)
class Slot:
    """One tensor.

    Attributes
    ----------
    maker : int
        Index of the binding that computes it; parameter ``k`` is ``k - number of parameters``,
        so parameters are negative and come first.
    path : tuple of int
        Field of the maker's tuple, empty for a maker that gives one tensor.
    """

    maker: int
    path: tuple[int, ...] = ()


def leaves(tree: Any) -> Iterator[Any]:
    """Slots and constants of a tree, in order."""
    if isinstance(tree, tuple):
        for branch in tree:
            yield from leaves(branch)
    else:
        yield tree


class Slots:
    """The slots of a function with one straight list of bindings.

    Attributes
    ----------
    bindings : list
        All bindings of the function, in order.
    computes : list of int
        Indices of those that compute something.
    tree : dict of int to tree
        By handle of the variable: a `Slot`, a constant, or a tuple of trees.
    variable : dict of int to Var
        By handle: the variables themselves.
    reads : list of tuple of Slot
        What each binding reads, each slot once; empty for those that compute nothing.
    type : dict of Slot to type
        Each slot's Relax type.
    name : dict of Slot to str
        Each slot's name: that of the variable bound to it.
    outputs : list
        Leaves of what the function returns: slots and constants.
    aliases : dict of int to Slot
        Index of a binding that only names one slot -> that slot.
    """

    def __init__(self, function: Any) -> None:
        self.params = list(function.params)
        self.bindings = bindings_of(function)
        self.computes: list[int] = []
        self.tree: dict[int, Any] = {}
        self.type: dict[Slot, Any] = {}
        self.name: dict[Slot, str] = {}
        self.aliases: dict[int, Slot] = {}
        self.reads: list[tuple[Slot, ...]] = []
        for index, variable in enumerate(self.params):
            self._define(variable, index - len(self.params))
        for index, binding in enumerate(self.bindings):
            self.reads.append(self._bind(index, binding))
        self.outputs = list(leaves(self._tree_of(result_of(function))))

    def _bind(self, index: int, binding: Any) -> tuple[Slot, ...]:
        value = binding.value
        if isinstance(value, _NO_COMPUTATION) and not isinstance(binding, relax.MatchCast):
            tree = self.tree[handle(binding.var)] = self._tree_of(value)
            if isinstance(tree, Slot):
                self.aliases[index] = tree
                if tree.path:
                    self.name[tree] = str(binding.var.name)
            return ()
        self.computes.append(index)
        self._define(binding.var, index)
        found: dict[Slot, None] = {}
        for variable in variables_of(value):
            for leaf in leaves(self.tree[handle(variable)]):
                if isinstance(leaf, Slot):
                    found.setdefault(leaf)
        return tuple(found)

    def _define(self, variable: Any, maker: int) -> None:
        def grow(kind: Any, path: tuple[int, ...]) -> Any:
            if isinstance(kind, relax.TupleType):
                return tuple(grow(field, (*path, i)) for i, field in enumerate(kind.fields))
            slot = Slot(maker, path)
            self.type[slot] = kind
            self.name[slot] = "_".join([str(variable.name), *map(str, path)])
            return slot

        self.tree[handle(variable)] = grow(variable.ty, ())

    def _tree_of(self, value: Any) -> Any:
        if isinstance(value, relax.Var):
            return self.tree[handle(value)]
        if isinstance(value, relax.Tuple):
            return tuple(self._tree_of(field) for field in value.fields)
        if isinstance(value, relax.TupleGetItem):
            return self._tree_of(value.tuple_value)[int(value.index)]
        return value

    def is_tensor(self, slot: Slot) -> bool:
        """Whether the slot holds a tensor; shapes, scalars and objects cannot leave an op."""
        return isinstance(self.type[slot], relax.TensorType)

    def shape(self, slot: Slot, model: str) -> tuple[int, ...]:
        """The tensor's extents.

        Raises
        ------
        GraphError
            If it is no tensor, or a dimension is not a number.
        """
        kind = self.type[slot]
        where = f"{'input' if slot.maker < 0 else 'value'} {self.name[slot]!r}"
        if not isinstance(kind, relax.TensorType):
            raise GraphError(
                f"{model}: {where} is of type {kind}; only tensors can be inputs, outputs or cross "
                "from one op to another"
            )
        if not isinstance(kind.shape, relax.ShapeExpr):
            raise GraphError(
                f"{model}: the shape of {where} depends on data (type {kind}); a pipeline needs "
                "fixed shapes: replace the operator that makes it, or pad to a fixed size"
            )
        extents = []
        for axis, extent in enumerate(kind.shape.values):
            if not isinstance(extent, tvm.tirx.IntImm):
                raise GraphError(
                    f"{model}: dimension {axis} of {where} is {extent}, which is not bound; give "
                    f"the inputs' shapes, for example input_shapes={{'name': (1, 3, 224, 224)}} "
                    "or --input-shape name=1,3,224,224"
                )
            extents.append(int(extent))
        return tuple(extents)
