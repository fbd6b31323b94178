"""The op graph: what is cut and placed. Plain values, no TVM.

An op is one fusion group of the imported model; a tensor is a hyperedge from its producer to all
of its consumers. Ops are numbered in module order, which is a topological order.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property

import networkx as nx

from partitioner.errors import GraphError

__all__ = ["Constant", "Op", "OpGraph", "Tensor"]


@dataclass(frozen=True, slots=True)
class Op:
    """One fusion group.

    Attributes
    ----------
    id : int
        Position in module order.
    name : str
        Unique, stable name, e.g. ``"conv2d_add_relu_3"``.
    kind : str
        The operators it fuses, joined by ``_``; ops of one kind may differ in shape.
    sources : tuple of str
        Names of the source model's nodes that it holds, in order.
    signature : str
        Hash of the group's unscheduled body: equal for groups that compile to the same kernel.
    live_bytes : int
        Bytes of all activations alive while it runs in module order (its inputs, its outputs and
        whatever an earlier op made for a later one). What a stage needs for its own activations
        is at most the largest `live_bytes` of its ops.
    flops : float
        Floating-point operations of its matrix products and convolutions, a multiply-add as two.
    pinned_to : str or None
        Name of the device that it must run on.
    """

    id: int
    name: str
    kind: str
    sources: tuple[str, ...]
    signature: str
    live_bytes: int = 0
    flops: float = 0.0
    pinned_to: str | None = None


@dataclass(frozen=True, slots=True)
class Tensor:
    """One activation: a model input, or an op's output.

    Attributes
    ----------
    id : int
        Position in `OpGraph.tensors`.
    name : str
        Unique name.
    producer : int or None
        The op that makes it, None for a model input.
    consumers : tuple of int
        Distinct ops that read it, ascending.
    shape : tuple of int
        Extents.
    dtype : str
        NumPy name of the element type.
    bytes : int
        Size.
    """

    id: int
    name: str
    producer: int | None
    consumers: tuple[int, ...]
    shape: tuple[int, ...]
    dtype: str
    bytes: int


@dataclass(frozen=True, slots=True)
class Constant:
    """A weight: its size and the ops that read it (stored once a stage, however many read it)."""

    name: str
    consumers: tuple[int, ...]
    bytes: int


@dataclass(frozen=True)
class OpGraph:
    """A model as ops and tensors.

    Attributes
    ----------
    name : str
        The model's name.
    ops, tensors, constants : tuple
        `Op`, `Tensor`, `Constant`.
    inputs, outputs : tuple of int
        Tensor ids in the model's own order. An output may be an input passed through.

    Raises
    ------
    GraphError
        If ids are out of order or not there, a tensor is read before it is made, or a name
        repeats.
    """

    name: str
    ops: tuple[Op, ...]
    tensors: tuple[Tensor, ...]
    constants: tuple[Constant, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]

    def __post_init__(self) -> None:
        _require_numbered(self.name, "op", self.ops)
        _require_numbered(self.name, "tensor", self.tensors)
        for tensor in self.tensors:
            if tensor.producer is None and tensor.id not in self.inputs:
                raise GraphError(
                    f"graph {self.name!r}: tensor {tensor.name!r} has no producer and is no model "
                    "input; list it in `inputs` or name the op that makes it"
                )
            if tensor.producer is not None and tensor.id in self.inputs:
                raise GraphError(
                    f"graph {self.name!r}: tensor {tensor.name!r} is a model input and yet made by "
                    f"op {tensor.producer}; it is one or the other"
                )
            if list(tensor.consumers) != sorted(set(tensor.consumers)):
                raise GraphError(
                    f"graph {self.name!r}: tensor {tensor.name!r} lists consumers "
                    f"{tensor.consumers}; list each once, ascending"
                )
            first = -1 if tensor.producer is None else tensor.producer
            for consumer in tensor.consumers:
                if not first < consumer < len(self.ops):
                    raise GraphError(
                        f"graph {self.name!r}: tensor {tensor.name!r} of "
                        f"{'the caller' if first < 0 else f'op {first}'} is read by op {consumer}; "
                        f"ops must be numbered in topological order (0..{len(self.ops) - 1})"
                    )
        for tensor_id in (*self.inputs, *self.outputs):
            if not 0 <= tensor_id < len(self.tensors):
                raise GraphError(
                    f"graph {self.name!r}: there is no tensor {tensor_id}, which its inputs or "
                    f"outputs name; ids are 0..{len(self.tensors) - 1}"
                )
        for constant in self.constants:
            for consumer in constant.consumers:
                if not 0 <= consumer < len(self.ops):
                    raise GraphError(
                        f"graph {self.name!r}: constant {constant.name!r} is read by op "
                        f"{consumer}; ids are 0..{len(self.ops) - 1}"
                    )

    @cached_property
    def hash(self) -> str:
        """Hex digest of the structure, what a plan refers to.

        Names of tensors, constants and sources and the ops' pins are left out: they may change
        without a plan becoming wrong.
        """
        text = json.dumps(
            {
                "ops": [(op.name, op.signature) for op in self.ops],
                "tensors": [
                    (t.producer, t.consumers, t.shape, t.dtype, t.bytes) for t in self.tensors
                ],
                "constants": [(c.consumers, c.bytes) for c in self.constants],
                "io": (self.inputs, self.outputs),
            }
        )
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @cached_property
    def inputs_of(self) -> tuple[tuple[int, ...], ...]:
        """Tensor ids each op reads."""
        reads: list[list[int]] = [[] for _ in self.ops]
        for tensor in self.tensors:
            for consumer in tensor.consumers:
                reads[consumer].append(tensor.id)
        return tuple(map(tuple, reads))

    @cached_property
    def outputs_of(self) -> tuple[tuple[int, ...], ...]:
        """Tensor ids each op makes."""
        makes: list[list[int]] = [[] for _ in self.ops]
        for tensor in self.tensors:
            if tensor.producer is not None:
                makes[tensor.producer].append(tensor.id)
        return tuple(map(tuple, makes))

    @cached_property
    def edges(self) -> tuple[tuple[int, int], ...]:
        """Distinct (producer, consumer) pairs, sorted."""
        pairs = {
            (tensor.producer, consumer)
            for tensor in self.tensors
            if tensor.producer is not None
            for consumer in tensor.consumers
        }
        return tuple(sorted(pairs))

    def cut_bytes(self, position: int) -> int:
        """Bytes that cross from ops before `position` to the ops from it on, in module order.

        Model inputs read on both sides are not counted: the caller hands them to each stage.
        """
        return sum(
            t.bytes
            for t in self.tensors
            if t.producer is not None
            and t.producer < position
            and t.consumers
            and t.consumers[-1] >= position
        )

    def to_networkx(self) -> nx.DiGraph[int]:
        """A view for exploring: nodes are op ids with the op's fields, edges carry ``bytes``."""
        view: nx.DiGraph[int] = nx.DiGraph(name=self.name)
        for op in self.ops:
            view.add_node(op.id, **asdict(op))
        for tensor in self.tensors:
            for consumer in tensor.consumers:
                if tensor.producer is None:
                    continue
                before = view.get_edge_data(tensor.producer, consumer, {"bytes": 0})["bytes"]
                view.add_edge(tensor.producer, consumer, bytes=before + tensor.bytes)
        return view

    def find_op(self, key: str | int) -> Op:
        """The op with this id, name, or source name.

        Raises
        ------
        GraphError
            If there is none, or a source name belongs to several ops.
        """
        if isinstance(key, int):
            if 0 <= key < len(self.ops):
                return self.ops[key]
            raise GraphError(f"graph {self.name!r} has no op {key}; ids are 0..{len(self.ops) - 1}")
        found = [op for op in self.ops if op.name == key] or [
            op for op in self.ops if key in op.sources
        ]
        if len(found) == 1:
            return found[0]
        if found:
            names = ", ".join(op.name for op in found)
            raise GraphError(f"source node {key!r} is part of several ops ({names}); name one")
        raise GraphError(
            f"graph {self.name!r} has no op or source node {key!r}; "
            f"it has {_sample([op.name for op in self.ops])}"
        )


def _require_numbered(graph: str, what: str, items: Sequence[Op | Tensor]) -> None:
    seen: set[str] = set()
    for position, item in enumerate(items):
        if item.id != position:
            raise GraphError(
                f"graph {graph!r}: {what} {item.name!r} at position {position} has id "
                f"{item.id}; ids must count from 0 in order"
            )
        if item.name in seen:
            raise GraphError(
                f"graph {graph!r}: two {what}s are named {item.name!r}; names are unique"
            )
        seen.add(item.name)


def _sample(names: Iterable[str], most: int = 8) -> str:
    listed = list(names)
    tail = f", ... ({len(listed)} in all)" if len(listed) > most else ""
    return ", ".join(listed[:most]) + tail
