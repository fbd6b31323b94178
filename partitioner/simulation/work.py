"""Seconds of every item on every stage: the same each time, jittered, or drawn from records."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from partitioner.errors import InputError
from partitioner.runtime.trace import Records
from partitioner.simulation.line import Line
from partitioner.simulation.moments import Floats

__all__ = ["draw_work"]

Ints = npt.NDArray[np.int64]

# Items in a row that keep their measured order.
_STRETCH = 64


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
        Measured runs. A worker that has any takes run and send times from them instead of its
        service: stretches of consecutive items at random, the same stretch for all workers, so that
        a machine's good and bad spells stay what they are (the moving block bootstrap; Künsch,
        "The jackknife and the bootstrap for general stationary observations", Annals of Statistics
        1989).

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
    stretches = rng.random(-(-items // _STRETCH))
    for stage, services in enumerate(line.services):
        pattern = line.spec.stages[stage].pattern
        replica_of = np.resize(np.array(pattern), items)
        for replica, service in enumerate(services):
            mine = np.flatnonzero(replica_of == replica)
            spans = measured.get((stage, replica))
            if spans is not None:
                drawn = spans[_consecutive(mine, stretches, len(spans))]
                run_s[mine, stage], send_s[mine, stage] = drawn[:, 0], drawn[:, 1]
            else:
                factor = _lognormal(rng, jitter, len(mine))
                run_s[mine, stage] = service.run_s * factor
                send_s[mine, stage] = service.send_s * factor
    return run_s, send_s


def _consecutive(mine: Ints, stretches: Floats, count: int) -> Ints:
    """Which of a worker's `count` records its items take: a run of them in each stretch.

    Parameters
    ----------
    mine : array
        Numbers of its items, ascending.
    stretches : array
        Where each stretch of all items begins, as a part of the records.
    count : int
        How many records there are; after the last comes the first.
    """
    stretch = mine // _STRETCH
    first = np.searchsorted(mine, stretch * _STRETCH)
    begin = (stretches[stretch] * count).astype(np.int64)
    return (begin + np.arange(len(mine)) - first) % count


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
