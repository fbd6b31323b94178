"""What a simulation showed: period, latencies, and where workers and items wait."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from partitioner.plan_table import format_seconds, table
from partitioner.simulation.line import Line
from partitioner.simulation.moments import Floats, Moments

__all__ = ["Latencies", "QueueUse", "Simulated", "WorkerUse", "summarize"]

# Part of the items at each end that is left out, if that is more than the pipeline holds: there, it
# fills and empties.
_ENDS = 0.1


@dataclass(frozen=True, slots=True)
class Latencies:
    """Seconds from an item's arrival at the caller to its result there.

    Where items come back to back, it arrives when the caller begins to hand it in.
    """

    mean_s: float
    p50_s: float
    p95_s: float
    p99_s: float
    max_s: float

    def __str__(self) -> str:
        shown = (f"p{q} {format_seconds(getattr(self, f'p{q}_s'))}" for q in (50, 95, 99))
        return ", ".join((*shown, f"mean {format_seconds(self.mean_s)}"))


@dataclass(frozen=True, slots=True)
class WorkerUse:
    """How a replica spends its time, in steady state.

    Attributes
    ----------
    stage, replica : int
        Which worker.
    device : str
        What it is on.
    items : int
        How many items of the run it served.
    utilisation : float
        Part of the time in which it computes or copies.
    wait_s, busy_s, blocked_s : float
        Mean seconds an item: waiting for its inputs, computing and copying, waiting for room.
    """

    stage: int
    replica: int
    device: str
    items: int
    utilisation: float
    wait_s: float
    busy_s: float
    blocked_s: float


@dataclass(frozen=True, slots=True)
class QueueUse:
    """Items that lie before a stage, or before the caller, with all their tensors.

    Attributes
    ----------
    before : str
        ``"stage 0"``, ..., ``"caller"``.
    mean, most : float
        Length over time in steady state, and the largest of the run.
    wait_s : float
        Mean seconds that an item lies there.
    """

    before: str
    mean: float
    most: int
    wait_s: float


@dataclass(frozen=True, slots=True)
class Simulated:
    """A pipeline's behaviour.

    Attributes
    ----------
    items : int
        How many were run.
    period_s : float
        Between completions in steady state.
    latency : Latencies
        Of the items in steady state.
    first_s : float
        Latency of the first item, which meets an empty pipeline.
    workers : tuple of WorkerUse
        In the order of stages and replicas.
    queues : tuple of QueueUse
        Before each stage, then before the caller.
    fill_s, drain_s, makespan_s : float
        From the start to the first result; from handing in the last item to its result; all of it.
    notes : tuple of str
        What was assumed.
    """

    items: int
    period_s: float
    latency: Latencies
    first_s: float
    workers: tuple[WorkerUse, ...]
    queues: tuple[QueueUse, ...]
    fill_s: float
    drain_s: float
    makespan_s: float
    notes: tuple[str, ...] = ()

    @property
    def bottleneck(self) -> WorkerUse:
        """The worker with the least idle time."""
        return max(self.workers, key=lambda worker: worker.utilisation)

    def __str__(self) -> str:
        queue = {one.before: one for one in self.queues}
        rows = [
            (
                f"{one.stage}.{one.replica}",
                one.device,
                str(one.items),
                format_seconds(one.busy_s),
                f"{one.utilisation:.1%}",
                format_seconds(one.wait_s),
                format_seconds(one.blocked_s),
                f"{queue[f'stage {one.stage}'].mean:.2f}",
                str(queue[f"stage {one.stage}"].most),
                format_seconds(queue[f"stage {one.stage}"].wait_s),
            )
            for one in self.workers
        ]
        headers = (
            "stage",
            "device",
            "items",
            "busy",
            "utilised",
            "waits",
            "blocked",
            "queue",
            "most",
            "items wait",
        )
        top = self.bottleneck
        rate = 1 / self.period_s if self.period_s > 0 else math.inf
        lines = [
            table(headers, rows),
            f"period {format_seconds(self.period_s)} ({rate:.1f} items/s), most "
            f"utilised stage {top.stage} on {top.device}",
            f"latency {self.latency}; of the first item {format_seconds(self.first_s)}",
            f"{self.items} items in {format_seconds(self.makespan_s)}: first result after "
            f"{format_seconds(self.fill_s)}, last one {format_seconds(self.drain_s)} after its "
            "item was handed in",
            *self.notes,
        ]
        return "\n".join(lines)

    def to_data(self) -> dict[str, Any]:
        """JSON-ready form."""
        return asdict(self)


def summarize(line: Line, moments: Moments, arrivals_s: Floats | None, capacity: int) -> Simulated:
    """Statistics of a simulation.

    Parameters
    ----------
    line : Line
        What was simulated.
    moments : Moments
        When what happened.
    arrivals_s : array, shape (items,), or None
        When items arrived, if not back to back.
    capacity : int
        How many items the pipeline holds.
    """
    items = len(moments.done_s)
    steady = _steady(line, items, capacity)
    duration = float(moments.done_s[steady.stop - 1] - moments.done_s[steady.start - 1])
    period_s = duration / (steady.stop - steady.start)
    came = moments.entered_s if arrivals_s is None else arrivals_s
    latencies = moments.done_s - came
    p50, p95, p99, most = np.percentile(latencies[steady], (50, 95, 99, 100))
    return Simulated(
        items=items,
        period_s=period_s,
        latency=Latencies(
            float(latencies[steady].mean()), float(p50), float(p95), float(p99), float(most)
        ),
        first_s=float(latencies[0]),
        workers=_workers(line, moments, steady, period_s),
        queues=_queues(line, moments, steady, period_s),
        fill_s=float(moments.done_s[0]),
        drain_s=float(moments.done_s[-1] - moments.entered_s[-1]),
        makespan_s=float(moments.done_s[-1]),
        notes=line.notes,
    )


def _steady(line: Line, items: int, capacity: int) -> slice:
    """The middle of the run, in whole cycles of the dispatch patterns where that is possible."""
    ends = min(max(round(items * _ENDS), capacity), items // 2 - 1)
    start = max(1, ends)
    stop = max(start + 1, items - ends)
    cycle = int(np.lcm.reduce([len(stage.pattern) for stage in line.spec.stages]))
    whole = (stop - start) // cycle * cycle
    return slice(start, start + whole if whole else stop)


def _workers(line: Line, moments: Moments, steady: slice, period_s: float) -> tuple[WorkerUse, ...]:
    items = len(moments.done_s)
    busy_s = (moments.ran_s - moments.ready_s) + (moments.sent_s - moments.room_s)
    blocked_s = moments.room_s - moments.ran_s
    inside = np.zeros(items, dtype=bool)
    inside[steady] = True
    uses = []
    for stage, spec in enumerate(line.spec.stages):
        replica_of = np.resize(np.array(spec.pattern), items)
        for replica, device in enumerate(line.devices[stage]):
            mine = np.flatnonzero(replica_of == replica)
            began = np.concatenate(([0.0], moments.sent_s[mine[:-1], stage]))
            wait_s = moments.ready_s[mine, stage] - began
            kept = inside[mine] if inside[mine].any() else np.ones(len(mine), dtype=bool)
            busy, blocked, wait = (
                float(values[kept].mean())
                for values in (busy_s[mine, stage], blocked_s[mine, stage], wait_s)
            )
            whole = busy + blocked + wait
            uses.append(
                WorkerUse(
                    stage=stage,
                    replica=replica,
                    device=device,
                    items=len(mine),
                    utilisation=busy / whole if whole > 0 else 0.0,
                    wait_s=wait,
                    busy_s=busy,
                    blocked_s=blocked,
                )
            )
    return tuple(uses)


def _queues(line: Line, moments: Moments, steady: slice, period_s: float) -> tuple[QueueUse, ...]:
    spans = [
        (f"stage {stage}", moments.there_s[:, stage], moments.ready_s[:, stage])
        for stage in range(len(line.spec.stages))
    ]
    spans.append(("caller", moments.made_s, moments.done_s))
    uses = []
    for name, came, went in spans:
        wait_s = float((went - came)[steady].mean())
        # Little's law: items there = rate x time that each is there.
        mean = wait_s / period_s if period_s > 0 else 0.0
        uses.append(QueueUse(name, mean, _most(came, went), wait_s))
    return tuple(uses)


def _most(came: Floats, went: Floats) -> int:
    """The largest number of items at once in a queue, where one that goes makes room first."""
    order = np.sort(came)
    there = np.arange(1, len(order) + 1) - np.searchsorted(np.sort(went), order, side="right")
    return max(0, int(there.max()))
