"""What ops take while the other cores are busy, beside what they take alone.

Stages that run together share caches, memory and power. A profile made with ``contended=True`` has
each kernel's time for both cases; `contended` prices plans by the busy one. For a single pipeline
that is the worse guess of the two where its other stages wait or compute in their own caches.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from dataclasses import dataclass, replace

from partitioner.errors import ProfileError
from partitioner.graph import Op, OpGraph
from partitioner.profiling.table import OpKey, ProfileTable

__all__ = ["Slowdown", "contended", "contention_factors", "op_class"]

# Floating-point operations a byte below which a convolution is counted as light: depthwise ones
# have two to four, others tens.
_LIGHT = 5.0

_PRODUCTS = ("matmul", "dense", "linear", "einsum")


@dataclass(frozen=True, slots=True)
class Slowdown:
    """How much longer the ops of a class take on a device while the other cores are busy.

    Attributes
    ----------
    device : str
        Where they run.
    threads : int
        On how many cores.
    kind : str
        Class of op, as `op_class` says it, or ``"all"``.
    factor : float
        Sum of times with the other cores busy over their sum alone.
    low, high : float
        Quartiles of the ops' own factors; both `factor` for a class of one.
    ops : int
        How many ops of the model are in it.
    share : float
        Their part of the model's time alone.
    """

    device: str
    threads: int
    kind: str
    factor: float
    low: float
    high: float
    ops: int
    share: float


def contended(table: ProfileTable) -> ProfileTable:
    """The table with the times that kernels take while the other cores are busy.

    Rows without such a time (all cores together have nothing beside them) stay as they are.

    Raises
    ------
    ProfileError
        If it has none at all.
    """
    if not table.contended:
        raise ProfileError(
            "the profile has no times taken while other cores were busy; profile again with "
            "contended=True (--contended)"
        )
    return replace(
        table,
        ops={**table.ops, **table.contended},
        host_s={**table.host_s, **table.contended_host_s},
    )


def contention_factors(table: ProfileTable, graph: OpGraph) -> tuple[Slowdown, ...]:
    """By how much busy neighbours slow each class of op down, and all ops together.

    Only what was measured both alone and beside busy cores counts; ops that take no time are left
    out.

    Parameters
    ----------
    table : ProfileTable
        With contended rows; without, there are no factors.
    graph : OpGraph
        Whose ops are looked at.

    Returns
    -------
    tuple of Slowdown
        By device and number of threads, ``"all"`` first, then the classes by their share.
    """
    found: list[Slowdown] = []
    for device, threads in sorted({(key.device, key.threads) for key in table.contended}):
        pairs: dict[str, list[tuple[float, float]]] = defaultdict(list)
        for op in graph.ops:
            key = OpKey(op.signature, device, threads)
            alone, beside = table.ops.get(key), table.contended.get(key)
            if alone is None or beside is None or alone.interpolated or beside.interpolated:
                continue
            if alone.kernel != beside.kernel:  # the difference would be the kernels'
                continue
            if alone.median_s > 0:
                pairs["all"].append((alone.median_s, beside.median_s))
                pairs[op_class(op, graph)].append((alone.median_s, beside.median_s))
        total_s = sum(alone_s for alone_s, _ in pairs["all"])
        rows = [_slowdown(device, threads, kind, pairs[kind], total_s) for kind in pairs if total_s]
        found += sorted(rows, key=lambda row: (row.kind != "all", -row.share))
    return tuple(found)


def _slowdown(
    device: str, threads: int, kind: str, pairs: list[tuple[float, float]], total_s: float
) -> Slowdown:
    alone_s = sum(alone for alone, _ in pairs)
    factor = sum(beside for _, beside in pairs) / alone_s
    ratios = [beside / alone for alone, beside in pairs]
    low, high = factor, factor
    if len(ratios) > 1:
        low, _, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return Slowdown(device, threads, kind, factor, low, high, len(ratios), alone_s / total_s)


def op_class(op: Op, graph: OpGraph) -> str:
    """What limits an op, roughly: ``"conv"``, ``"light conv"``, ``"product"`` or ``"other"``.

    Convolutions with few operations a byte (depthwise ones) are light; what has no products at all
    moves memory.
    """
    if "conv" in op.kind:
        return "light conv" if op.flops < _LIGHT * _bytes(op, graph) else "conv"
    return "product" if any(word in op.kind for word in _PRODUCTS) else "other"


def _bytes(op: Op, graph: OpGraph) -> float:
    """Bytes of an op's inputs, outputs and weights."""
    tensors = {*graph.inputs_of[op.id], *graph.outputs_of[op.id]}
    weights = sum(c.bytes for c in graph.constants if op.id in c.consumers)
    return float(sum(graph.tensors[tensor].bytes for tensor in tensors) + weights)
