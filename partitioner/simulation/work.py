"""Seconds of every item on every stage: the same each time, jittered, or drawn from records."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from partitioner.errors import InputError
from partitioner.runtime.trace import Records
from partitioner.simulation.line import Line
from partitioner.simulation.moments import Floats

__all__ = ["draw_work"]


def draw_work(
    line: Line, items: int, seed: int, jitter: float, records: Sequence[Records] = ()
) -> tuple[Floats, Floats]:
    """Draw the times of a run.

    Parameters
    ----------
    line : Line
        Its services are the means.
    items : int
        How many items.
    seed : int
        Of the random numbers.
    jitter : float
        Standard deviation of a time over its mean. Times are lognormal, each drawn by itself: they
        are above zero, and long ones are further from the mean than short ones, as on a machine
        that now and then does something else.
    records : sequence of Records
        Measured runs. A worker that has any takes run and send times from them, at random with
        repetition, instead of its service.

    Returns
    -------
    run_s, send_s : array, shape (items, stages)

    Raises
    ------
    InputError
        If `jitter` is negative or not finite, or records name a worker that the line lacks.
    """
    if not 0 <= jitter < math.inf:
        raise InputError(f"simulation: jitter is {jitter}; give a number, zero or more")
    measured = _spans(line, records)
    rng = np.random.default_rng(seed)
    shape = (items, len(line.services))
    run_s, send_s = np.empty(shape), np.empty(shape)
    for stage, services in enumerate(line.services):
        pattern = line.spec.stages[stage].pattern
        replica_of = np.resize(np.array(pattern), items)
        for replica, service in enumerate(services):
            mine = np.flatnonzero(replica_of == replica)
            spans = measured.get((stage, replica))
            if spans is not None:
                drawn = spans[rng.integers(len(spans), size=len(mine))]
                run_s[mine, stage], send_s[mine, stage] = drawn[:, 0], drawn[:, 1]
            else:
                factor = _lognormal(rng, jitter, len(mine))
                run_s[mine, stage] = service.run_s * factor
                send_s[mine, stage] = service.send_s * factor
    return run_s, send_s


def _lognormal(rng: np.random.Generator, jitter: float, count: int) -> Floats:
    """Factors of mean 1 and standard deviation `jitter`."""
    variance = math.log1p(jitter * jitter)
    return np.exp(rng.normal(-variance / 2, math.sqrt(variance), count))


def _spans(line: Line, records: Sequence[Records]) -> Mapping[tuple[int, int], Floats]:
    """Run and send seconds of each measured item, by stage and replica."""
    found: dict[tuple[int, int], Floats] = {}
    for one in records:
        known = one.stage < len(line.services) and one.replica < len(line.services[one.stage])
        if not known or not len(one.rows):
            raise InputError(
                f"simulation: {len(one.rows)} records of stage {one.stage}, replica {one.replica}; "
                f"needed at least one, of a worker of this plan "
                f"({', '.join(map(str, map(len, line.services)))} replicas by stage). Give the "
                "trace of a run of this plan"
            )
        # item, begin, ready, ran, room, sent; nanoseconds.
        spans = np.stack([one.rows[:, 3] - one.rows[:, 2], one.rows[:, 5] - one.rows[:, 4]], axis=1)
        found[one.stage, one.replica] = spans / 1e9
    return found
