"""The simulator against a real run: a network's own recorded times give the run's own period."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from partitioner import Trace, auto_partition
from partitioner.runtime.build import BuildCache
from partitioner.simulation import Line, simulate

ITEMS = 200
WARM = 40
"""Items before those that count: queues fill, memory is touched for the first time."""


def test_a_runs_own_times_give_its_period(pair: list[str], builds: BuildCache) -> None:
    part = auto_partition(
        "zoo:squeezenet", pair, strategy="pipeline", profile="estimate", builds=builds
    )
    assert len(part.plan.stages) == 2
    trace = Trace()
    with part.pipeline(trace=trace) as pipe:
        sample = part.samples(4)
        for _ in pipe.map(sample[number % 4] for number in range(ITEMS)):
            pass
    kept = [replace(one, rows=one.rows[one.rows[:, 0] >= WARM]) for one in trace.records()]
    sent_s = kept[-1].rows[:, 5] / 1e9
    measured_s = float(sent_s[-1] - sent_s[0]) / (len(sent_s) - 1)
    busy_s = [float(np.diff(one.rows)[:, [2, 4]].sum(axis=1).mean()) / 1e9 for one in kept]

    shown = simulate(Line.of(part.plan, part.graph), items=3000, records=kept)

    # Whatever the machine's speed: both are of the same run. Good and bad spells come in another
    # order, and the caller's own work is not in the records.
    assert shown.period_s == pytest.approx(measured_s, rel=0.2)
    assert [worker.busy_s for worker in shown.workers] == pytest.approx(busy_s, rel=0.1)
    # And the plan's own, guessed times would not have: the records do count.
    guessed = simulate(part.plan, items=500).period_s
    assert guessed != pytest.approx(shown.period_s, rel=1e-3)
