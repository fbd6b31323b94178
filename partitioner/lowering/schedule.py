"""From an unscheduled kernel to a scheduled one, by the first rule that fits."""

from __future__ import annotations

from typing import Any

from tvm import relax
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import ScheduleError

from partitioner.lowering.conv import schedule_conv
from partitioner.lowering.generic import schedule_generic
from partitioner.lowering.isa import Isa

__all__ = ["RULES", "schedule_kernel"]

# Each returns False where it does not apply; the last applies to everything.
RULES = (schedule_conv, schedule_generic)


def schedule_kernel(func: Any, isa: Isa) -> Any:
    """Scheduled version of a kernel, the kernel itself where no rule can take it.

    Parameters
    ----------
    func : tvm.tirx.PrimFunc
    isa : Isa

    Returns
    -------
    tvm.tirx.PrimFunc
    """
    if relax.analysis.has_reshape_pattern(func):
        # Becomes a view, and is recognized by its plain loops.
        return func
    for rule in RULES:
        sch = Schedule(func)
        try:
            if rule(sch, isa):
                return sch.mod["main"]
        except (ScheduleError, ValueError):
            # A primitive that does not fit a kernel raises one of these (failed pattern matches
            # inside TVM come as ValueError); the schedule is abandoned half-way, so the next rule
            # starts from the kernel anew.
            continue
    return func
