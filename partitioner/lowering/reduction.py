"""Schedule for kernels that reduce: softmax, normalization, means, pooling.

All blocks of such a kernel share their leading loops (rows, or planes of an image). These loops run
in parallel, and everything else happens inside them while the data is in cache.
"""

from __future__ import annotations

import contextlib
from typing import Any

from tvm import tirx
from tvm.s_tir.schedule import ScheduleError
from tvm.tirx.analysis import undefined_vars

from partitioner.lowering.blocks import (
    all_blocks,
    extent,
    is_reduction,
    vectorize_loop,
)
from partitioner.lowering.isa import Isa

__all__ = ["schedule_reduction"]

# Partial sums of a reduction along memory, if whole vectors do not divide it: they break the chain
# of dependent additions.
_MAX_PARTIAL = 16


def schedule_reduction(sch: Any, isa: Isa) -> bool:
    """Run the loops that all blocks share in parallel, everything else inside them.

    Parameters
    ----------
    sch : tvm.s_tir.Schedule
        Changed in place.
    isa : Isa

    Returns
    -------
    bool
        False where the kernel does not reduce, or its blocks share no loop.
    """
    if not any(is_reduction(sch, block) for block in all_blocks(sch)):
        return False
    _inline_single_use(sch)
    blocks = all_blocks(sch)
    last = blocks[-1]
    shared = _shared_loops(sch, blocks)
    if shared == 0:
        return False
    for block in blocks:
        if is_reduction(sch, block) and _along_memory(sch, block):
            _partial_sums(sch, block, isa)
    task = sch.fuse(*sch.get_loops(last)[:shared])
    for block in reversed(all_blocks(sch)):
        if sch.get(block).name_hint != sch.get(last).name_hint:
            sch.compute_at(block, task, preserve_unit_loops=True)
    sch.parallel(task)
    for block in sch.get_child_blocks(task):
        loops = sch.get_loops(block)[1:]
        if is_reduction(sch, block):
            _order_reduction(sch, block, loops, isa)
        elif loops:
            vectorize_loop(sch, loops[-1], isa.lanes)
    return True


def _inline_single_use(sch: Any) -> None:
    """Inline element-wise blocks that one block reads, and reads each value of once."""
    for block in all_blocks(sch):
        consumers = sch.get_consumers(block)
        if is_reduction(sch, block) or len(consumers) != 1 or _windowed(sch, consumers[0]):
            continue
        # A block that no primitive can inline stays as it is.
        with contextlib.suppress(ScheduleError):
            sch.compute_inline(block)


def _axes(sch: Any, block: Any, kind: int) -> list[Any]:
    return [axis.var for axis in sch.get(block).iter_vars if axis.iter_type == kind]


def _uses(expr: Any, variables: list[Any]) -> bool:
    return any(v.same_as(known) for v in undefined_vars(expr) for known in variables)


def _windowed(sch: Any, block: Any) -> bool:
    """Whether some index adds a reduction axis to a spatial one, as in pooling."""
    spatial = _axes(sch, block, tirx.IterVar.DataPar)
    reduction = _axes(sch, block, tirx.IterVar.CommReduce)
    return any(
        _uses(index.min, spatial) and _uses(index.min, reduction)
        for read in sch.get(block).reads
        for index in read.region
    )


def _along_memory(sch: Any, block: Any) -> bool:
    """Whether consecutive values in memory are reduced to one."""
    reads = list(sch.get(block).reads)
    if not reads:
        return False
    widest = max(reads, key=lambda read: len(read.region)).region[-1].min
    spatial = _axes(sch, block, tirx.IterVar.DataPar)
    reduction = _axes(sch, block, tirx.IterVar.CommReduce)
    return _uses(widest, reduction) and not _uses(widest, spatial)


def _shared_loops(sch: Any, blocks: list[Any]) -> int:
    """Number of leading loops, spatial and of equal extent, that all blocks have."""
    last = blocks[-1]
    extents = [extent(sch, loop) for loop in sch.get_loops(last)]
    shared = len(_axes(sch, last, tirx.IterVar.DataPar))
    for block in blocks:
        spatial = len(_axes(sch, block, tirx.IterVar.DataPar))
        own = [extent(sch, loop) for loop in sch.get_loops(block)[:spatial]]
        if _windowed(sch, block):
            # Neighbouring windows overlap: rows of one plane stay together.
            spatial -= 2
        elif is_reduction(sch, block) and not _along_memory(sch, block):
            # The last loop runs along memory and becomes vectors.
            spatial -= 1
        shared = min(shared, max(spatial, 0))
        while extents[:shared] != own[:shared]:
            shared -= 1
    return shared


def _partial_sums(sch: Any, block: Any, isa: Isa) -> None:
    """Split a reduction along memory into vectors of partial results."""
    spatial = len(_axes(sch, block, tirx.IterVar.DataPar))
    loop = sch.fuse(*sch.get_loops(block)[spatial:])
    count = extent(sch, loop)
    if count is None:
        return
    whole = [n * isa.lanes for n in (4, 2, 1)] + list(range(_MAX_PARTIAL, 1, -1))
    parts = next((n for n in whole if count % n == 0 and count >= 2 * n), None)
    if parts is None:
        return
    _, part = sch.split(loop, [None, parts])
    # Reductions without an associative combiner that TVM knows stay sequential.
    with contextlib.suppress(ScheduleError):
        sch.rfactor(part, spatial)


def _order_reduction(sch: Any, block: Any, loops: list[Any], isa: Isa) -> None:
    """Reduce outside, run along memory inside, so that the innermost loop can be vectors."""
    axes = list(sch.get(block).iter_vars)[-len(loops) :] if loops else []
    reduction = [
        loop
        for loop, axis in zip(loops, axes, strict=True)
        if axis.iter_type == tirx.IterVar.CommReduce
    ]
    spatial = [
        loop
        for loop, axis in zip(loops, axes, strict=True)
        if axis.iter_type == tirx.IterVar.DataPar
    ]
    if not reduction:
        return
    if spatial:
        sch.reorder(*spatial[:-1], *reduction, spatial[-1])
    sch.decompose_reduction(block, reduction[0])
    if spatial:
        vectorize_loop(sch, spatial[-1], isa.lanes)
