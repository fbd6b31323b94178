"""Plans run in turn, each stage's time taken from the trace: one repeat of a comparison."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from partitioner.plan import Plan
from partitioner.runtime.compare import run_each
from partitioner.runtime.spec import PipelineSpec
from partitioner.runtime.trace import Records, Trace

__all__ = ["Runner", "Seen", "Times", "Trials", "worker_times"]

# Records left out at either end: single items and filling at the start, emptying at the end.
_ENDS = 0.25
_READY, _RAN, _ROOM, _SENT = 2, 3, 4, 5
# Where a plan has no prediction, for the number of items.
_USUAL_S = 0.01

Times = tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True)
class Seen:
    """A plan by the clock, once.

    Attributes
    ----------
    period_s, latency_s : float
        Between completions in steady state, and of one item in an empty pipeline.
    run_s, send_s : tuple of tuple of float
        For each stage, for each of its replicas: mean seconds an item from inputs to outputs, and
        median seconds for copying these to consumers.
    """

    period_s: float
    latency_s: float
    run_s: Times
    send_s: Times


class Runner(Protocol):
    """What runs plans by the clock."""

    def __call__(self, plans: Mapping[str, Plan]) -> Mapping[str, Seen]:
        """Run every plan once, one after the other, and say what was seen."""
        ...  # pragma: no cover


class Trials:
    """Runs plans as pipelines of fresh processes, in an order drawn anew each time.

    Parameters
    ----------
    spec_of : callable
        From a plan to its compiled workers.
    items : sequence of mapping
        Inputs, used over and over.
    seconds : float
        Measuring time of a plan in a repeat.
    seed : int
        Of the orders.
    """

    def __init__(
        self,
        spec_of: Callable[[Plan], PipelineSpec],
        items: Sequence[Mapping[str, Any]],
        *,
        seconds: float = 1.0,
        seed: int = 0,
    ) -> None:
        self._spec_of = spec_of
        self._items = items
        self._seconds = seconds
        self._random = random.Random(seed)
        self._specs: dict[str, PipelineSpec] = {}

    def __call__(self, plans: Mapping[str, Plan]) -> dict[str, Seen]:
        """As `Runner` says."""
        for plan in plans.values():
            if plan.assignment_hash not in self._specs:
                self._specs[plan.assignment_hash] = self._spec_of(plan)
        # Nobody always runs on a machine that has just rested.
        names = self._random.sample(list(plans), len(plans))
        traces = {name: Trace() for name in names}
        times = run_each(
            {name: self._specs[plans[name].assignment_hash] for name in names},
            lambda number: self._items[number % len(self._items)],
            expected_s={name: _expected_s(plans[name]) for name in names},
            seconds=self._seconds,
            traces=traces,
        )
        return {
            name: Seen(
                times[name].period_s,
                times[name].latency_s,
                *worker_times(traces[name].records(), len(plans[name].stages)),
            )
            for name in names
        }


def worker_times(records: Iterable[Records], stages: int) -> tuple[Times, Times]:
    """Mean time that each worker ran, and median time that it sent, in the middle of its records.

    A mean, since a pipeline's period is one: under a quota most items are not held up and some are,
    and no median shows that. Copies are too short for it: a mean would be of what interrupted them.

    Parameters
    ----------
    records : iterable of Records
        Of every replica, in order.
    stages : int
        How many stages there are.

    Returns
    -------
    run_s, send_s : tuple of tuple of float
        For each stage, for each replica.
    """
    run: list[list[float]] = [[] for _ in range(stages)]
    send: list[list[float]] = [[] for _ in range(stages)]
    for worker in records:
        ends = int(len(worker.rows) * _ENDS)
        rows = worker.rows[ends : len(worker.rows) - ends]
        run[worker.stage].append(float(np.mean(rows[:, _RAN] - rows[:, _READY])) / 1e9)
        send[worker.stage].append(float(np.median(rows[:, _SENT] - rows[:, _ROOM])) / 1e9)
    return tuple(map(tuple, run)), tuple(map(tuple, send))


def _expected_s(plan: Plan) -> float:
    return plan.predicted.period_s if plan.predicted else _USUAL_S
