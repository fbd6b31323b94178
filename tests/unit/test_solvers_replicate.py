"""Options of replicas are priced as the devices that they stand for."""

from __future__ import annotations

import dataclasses
import itertools
import random

import numpy as np
import pytest
from problem_builder import build, uniform

from partitioner.errors import ProblemError
from partitioner.evaluation import evaluate
from partitioner.problem import Problem, Solution
from partitioner.solvers.replicate import with_replicas

CHAIN = [(-1, (0,), 3.0, False), (0, (1, 2), 4.0, False), (1, (2,), 6.0, False), (2, (), 2.0, True)]
TIMES = np.array([[2.0], [3.0], [5.0]])


def devices(**fields: object) -> Problem:
    """Three equal devices with memory of their own, and one twice as slow."""
    limits = {
        "send": uniform(4, 0.1, 0.01),
        "recv": uniform(4, 0.2, 0.02),
        "pool_of": np.arange(4),
        "pool_bytes": np.array([50.0, 50.0, 50.0, 80.0]),
        "live_bytes": np.array([7.0, 1.0, 2.0]),
        "queue_slots": 2,
    }
    return build(TIMES * np.array([1.0, 1.0, 1.0, 2.0]), CHAIN, **(limits | fields))


def cluster(**fields: object) -> Problem:
    """Four cores, of which a stage takes one or two; the links are a resource."""
    limits = {
        "uses": np.array([[1], [2]]),
        "capacity": np.array([4]),
        "pool_bytes": np.array([90.0]),
        "live_bytes": np.array([7.0, 1.0, 2.0]),
        "link": uniform(2, 0.3, 0.05),
        "host_s": np.array([0.5, 0.5]),
        "host_core": np.array([0, 0]),
    }
    return build(TIMES * np.array([1.0, 0.6]), CHAIN, **(limits | fields))


def test_options_of_equal_devices_and_of_a_cluster() -> None:
    assert with_replicas(devices(), 3).members == (
        *((0,), (1,), (2,), (3,)),
        *((0, 1), (1, 2)),
        (0, 1, 2),
    )
    grown = with_replicas(cluster(), 9)
    assert grown.members == ((0,), (1,), (0, 0), (1, 1), (0, 0, 0), (0,) * 4)
    assert grown.problem.option_names[-1] == "dev0 x 4 replicas"
    assert grown.problem.uses[:, 0].tolist() == [1, 2, 2, 4, 3, 4]


@pytest.mark.parametrize("once", [False, True])
@pytest.mark.parametrize("make", [devices, cluster])
def test_the_same_figures_before_and_after(make: object, once: bool) -> None:
    assert callable(make)
    grown = with_replicas(make(send_once=once), 3)
    chance = random.Random(7)
    checked = 0
    cuts = [(0, 0, 0), (0, 0, 1), (0, 1, 1), (0, 1, 2)]
    for stage_of in cuts:
        for options in itertools.product(range(grown.problem.n_options), repeat=max(stage_of) + 1):
            if chance.random() < 0.3:
                continue
            placements = tuple((option,) for option in options)
            found = evaluate(grown.problem, stage_of, placements)
            real = grown.restore(Solution(stage_of, placements, found)).evaluation
            assert real.feasible == found.feasible, (stage_of, options)
            if found.feasible:
                checked += 1
                assert real.period_s == pytest.approx(found.period_s, rel=1e-12)
                assert real.latency_s == pytest.approx(found.latency_s, rel=1e-12)
                assert real.memory_bytes == pytest.approx(found.memory_bytes, rel=1e-12)
                assert (real.devices, real.copies) == (found.devices, found.copies)
    assert checked > 15


def test_replicas_that_one_budget_cannot_count_are_left_out() -> None:
    # The slow device shares a pool with the first, and may run beside it.
    mixed = devices(pool_of=np.array([0, 1, 2, 0]), pool_bytes=np.full(3, 50.0))
    assert all(len(set(group)) == 1 for group in with_replicas(mixed, 3).members if 0 in group)


def test_what_cannot_be_grown() -> None:
    with pytest.raises(ProblemError, match="at most 0"):
        with_replicas(devices(), 0)
    grown = with_replicas(devices(), 2).problem
    with pytest.raises(ProblemError, match="already"):
        with_replicas(grown, 2)
    free = dataclasses.replace(devices(), uses=np.zeros((4, 4), dtype=np.int64))
    assert len(with_replicas(free, 3).members) == 4
