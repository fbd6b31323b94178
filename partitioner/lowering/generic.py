"""The schedule of last resort: parallel outer loops, vector inner loops."""

from __future__ import annotations

from typing import Any

from tvm import tirx

from partitioner.lowering.blocks import all_blocks, inline_tail, is_reduction, schedule_spatial
from partitioner.lowering.isa import Isa

__all__ = ["schedule_generic"]


def schedule_generic(sch: Any, isa: Isa) -> bool:
    """Inline element-wise chains; run the spatial loops of every block in parallel.

    Parameters
    ----------
    sch : tvm.s_tir.Schedule
        Changed in place.
    isa : Isa

    Returns
    -------
    bool
        Always True.
    """
    seen: set[str] = set()
    while True:
        waiting = [b for b in all_blocks(sch) if sch.get(b).name_hint not in seen]
        if not waiting:
            return True
        block = waiting[0]
        if is_reduction(sch, block):
            seen.add(sch.get(block).name_hint)
            _schedule_reduction(sch, block)
        else:
            block = inline_tail(sch, block)
            seen.add(sch.get(block).name_hint)
            schedule_spatial(sch, block, isa)


def _schedule_reduction(sch: Any, block: Any) -> None:
    kinds = [axis.iter_type for axis in sch.get(block).iter_vars]
    loops = sch.get_loops(block)
    spatial = 0
    while spatial < len(kinds) and kinds[spatial] == tirx.IterVar.DataPar:
        spatial += 1
    if spatial:
        sch.parallel(sch.fuse(*loops[:spatial]))
