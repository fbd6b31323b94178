"""From an unscheduled kernel to a scheduled one, by the first rule that fits."""

from __future__ import annotations

import json
import math
from typing import Any

import tvm
from tvm import relax, tirx
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import ScheduleError, Trace
from tvm_ffi import structural_walk

from partitioner.lowering.conv import schedule_conv
from partitioner.lowering.generic import schedule_generic
from partitioner.lowering.isa import Isa
from partitioner.lowering.mathfn import inline_math
from partitioner.lowering.matmul import schedule_matmul
from partitioner.lowering.pool import schedule_pool
from partitioner.lowering.reduction import schedule_reduction

__all__ = ["RULES", "apply_trace", "is_view", "schedule_kernel"]

# Each returns False where it does not apply; the last applies to everything.
RULES = (schedule_conv, schedule_matmul, schedule_pool, schedule_reduction, schedule_generic)


def schedule_kernel(func: Any, isa: Isa) -> Any:
    """Scheduled version of a kernel, the kernel itself where it has a schedule or no rule fits.

    Parameters
    ----------
    func : tvm.tirx.PrimFunc
    isa : Isa

    Returns
    -------
    tvm.tirx.PrimFunc
    """
    if _is_scheduled(func):
        return func
    func = inline_math(func)
    for rule in RULES:
        sch = Schedule(func)
        try:
            if rule(sch, isa):
                return sch.mod["main"]
        except (ScheduleError, tvm.error.InternalError, ValueError):
            # A primitive that does not fit a kernel raises one of these (failed checks inside
            # TVM come as the latter two); the schedule is abandoned half-way, so the next rule
            # starts from the kernel anew.
            continue
    return func


def _is_scheduled(func: Any) -> bool:
    """Whether somebody says so, or has made a loop parallel, a vector, or the like."""
    if func.attrs is not None and bool(func.attrs.get("tirx.is_scheduled", False)):
        return True
    kinds: set[int] = set()
    structural_walk(func.body, (tirx.For, lambda loop: kinds.add(loop.kind)))
    return bool(kinds - {tirx.ForKind.SERIAL})


def apply_trace(func: Any, trace: str) -> Any | None:
    """A kernel scheduled as a record says, None where the record does not fit it.

    Parameters
    ----------
    func : tvm.tirx.PrimFunc
        Unscheduled, as `partitioner.lowering.workload` gives it.
    trace : str
        A MetaSchedule trace as JSON.
    """
    sch = Schedule(func)
    try:
        Trace.apply_json_to_schedule(json.loads(trace), sch)
    except (ScheduleError, tvm.error.InternalError, ValueError, TypeError, KeyError):
        return None
    return sch.mod["main"]


def is_view(func: Any) -> bool:
    """Whether a kernel only gives its one input another shape.

    Parameters
    ----------
    func : tvm.tirx.PrimFunc
        Unscheduled.

    Returns
    -------
    bool
    """
    if len(func.params) != 2 or not relax.analysis.has_reshape_pattern(func):
        return False
    # A slice of the leading elements has the same pattern.
    sizes = []
    for param in func.params:
        shape = getattr(param.ty, "shape", None)
        if shape is None or not all(isinstance(v, tirx.IntImm) for v in shape):
            return False
        sizes.append(math.prod(int(v) for v in shape))
    return sizes[0] == sizes[1]
