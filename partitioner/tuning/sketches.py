"""Schedules out of TVM's own design space, for kernels that no rule of this package tiles."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from tvm.s_tir.meta_schedule import TuneContext

from partitioner import lowering
from partitioner.tuning.database import trace_text, with_cores

__all__ = ["sketches"]

_SILENT = logging.Logger("partitioner.tuning", level=logging.CRITICAL)

_FOREIGN = tuple(f"tvm.s_tir.tensor_intrin.{name}" for name in ("cuda", "rocm", "hexagon"))


def sketches(module: Any, name: str, target: Any, count: int, seed: int) -> list[str]:
    """Draw schedules of MetaSchedule's design space at random.

    Replaying a sketch with new decisions costs nothing beside compiling one kernel; the
    evolutionary strategy, with its stock population and a cost model that has to learn first, takes
    longer than compiling and measuring everything that a small budget allows.

    Parameters
    ----------
    module : tvm.IRModule
        Holds the op's function.
    name : str
        Its name.
    target : tvm.target.Target
    count : int
        At most so many.
    seed : int
        Above 0.

    Returns
    -------
    list of str
        Traces as JSON, each once; none where the op is not one kernel or there is no sketch of it.
    """
    workload = lowering.workload(module, name, target)
    if workload is None:
        return []
    with _without_foreign_intrinsics():
        import tvm.s_tir.tensor_intrin  # noqa: F401 - what a context imports
    context = TuneContext(
        workload.with_attr("global_symbol", "main"),
        target=with_cores(target, int(target.attrs.get("num-cores", 1))),
        space_generator="post-order-apply",
        search_strategy="replay-trace",
        rand_state=seed,
        num_threads=1,
        logger=_SILENT,
    )
    context.pre_tuning(max_trials=count, num_trials_per_iter=count)
    found = context.generate_measure_candidates() or []
    traces = [trace_text(candidate.sch.trace) for candidate in found]
    context.post_tuning()
    return list(dict.fromkeys(traces))


@contextmanager
def _without_foreign_intrinsics() -> Iterator[None]:
    """Let TVM load its tensor intrinsics, which a context does, but those of other devices.

    Parsing the ones for CUDA takes 20 seconds, and a CPU has no use for them. Whoever imports them
    by name afterwards gets them.
    """
    absent = [name for name in _FOREIGN if name not in sys.modules]
    sys.modules.update({name: ModuleType(name) for name in absent})
    try:
        yield
    finally:
        for name in absent:
            del sys.modules[name]
