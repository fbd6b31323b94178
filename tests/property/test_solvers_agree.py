"""The solvers against exhaustive search and against each other. Objectives are compared, never
assignments: equal optima are common."""

from __future__ import annotations

import dataclasses
import random
from itertools import islice

import numpy as np
import placements
import pytest
from differential import Summary, disagreements, trial
from drawn_problems import drawn, features
from solver_instances import network

from partitioner.problem import LatencyModel, Objective, Status
from partitioner.solvers import solve
from partitioner.solvers.brute.scores import Scores
from partitioner.solvers.brute.search import assignment, chunks

BATCH = 15


@pytest.mark.parametrize("first", range(0, 90, BATCH))
def test_drawn_problems_by_every_method(first: int) -> None:
    """A sample of `differential.py`, which counts what is in 100,000 of them."""
    for seed in range(first, first + BATCH):
        assert trial(seed).failures == (), f"seed {seed}"


def test_problems_that_a_method_once_got_wrong() -> None:
    # Memory counted in with the copies that HiGHS minimizes.
    assert trial(2220018).failures == ()


def test_every_feature_is_drawn_with_every_other() -> None:
    summary = Summary()
    for seed in range(600):
        summary.count(features(drawn(seed)))
    apart, pairs = summary.pairs_of_features()
    assert len(pairs) > 200
    assert min(pairs.values()) > 0.02 * 600
    assert not any(summary.pairs[pair] for pair in apart)


def test_disagreements_are_seen() -> None:
    problem = dataclasses.replace(drawn(1), second=None, objective=Objective.PERIOD)
    best = solve(problem, method="brute")
    assert list(disagreements(problem, best, best)) == []
    worse = dataclasses.replace(best.stats, objective=best.stats.objective * 1.1)
    high = dataclasses.replace(best.stats, bound=best.stats.bound * 1.1)
    unproven = dataclasses.replace(best.stats, status=Status.FEASIBLE)
    for stats in (worse, high, unproven):
        assert list(disagreements(problem, dataclasses.replace(best, stats=stats), best))
    assert list(disagreements(problem, None, best))
    assert list(disagreements(problem, best, None))


@pytest.mark.parametrize("first", range(0, 160, 40))
def test_scores_of_exhaustive_search_are_those_of_evaluation(first: int) -> None:
    for seed in range(first, first + 40):
        problem = drawn(seed)
        for chunk in islice(chunks(problem), 2):
            scores, pick = Scores(problem), random.Random(seed)
            values, pools = scores.values(chunk, Objective), scores.pools(chunk)
            for row in pick.sample(range(len(chunk.count)), min(4, len(chunk.count))):
                found = assignment(problem, chunk, row).evaluation
                free = dataclasses.replace(found, violations=())
                expected = [free.value(objective) for objective in Objective]
                actual = [values[objective][row] for objective in Objective]
                assert actual == pytest.approx(expected, rel=1e-12, abs=1e-15), f"seed {seed}"
                assert pools[:, row] == pytest.approx(found.pool_bytes, rel=1e-12)
                limits = (found.feasible, np.isfinite(scores.objective(chunk)[row]))
                assert limits[0] == limits[1], f"seed {seed}"


@pytest.mark.parametrize(
    ("seed", "ops", "devices", "equal"),
    [
        (1, 60, 2, True),
        (2, 60, 3, False),
        (3, 90, 4, True),
        (4, 90, 3, False),
        (5, 130, 2, False),
        (6, 130, 4, True),
        (7, 200, 3, True),
        (8, 200, 2, False),
    ],
)
def test_networks_by_two_methods(seed: int, ops: int, devices: int, equal: bool) -> None:
    problem = network(seed, ops, devices, equal=equal)
    by_table, by_search = (solve(problem, method=m, time_limit_s=60) for m in ("dp", "cpsat"))
    for found in (by_table, by_search):
        assert list(disagreements(problem, found, by_table)) == []


@pytest.mark.parametrize("first", range(0, 30, 10))
def test_placements_by_exhaustive_search(first: int) -> None:
    """A sample of `placements.py`: the latency of free assignments, serial and op by op."""
    for seed in range(first, first + 10):
        assert placements.failures(seed) == []


def test_list_latency_is_between_the_longest_op_and_the_serial_sum() -> None:
    for seed in range(60):
        problem = next(placements.placements(seed))
        listed = dataclasses.replace(problem, latency_model=LatencyModel.LIST)
        chunk = next(chunks(problem))
        for row in range(0, len(chunk.count), max(1, len(chunk.count) // 5)):
            serial = assignment(problem, chunk, row).evaluation
            overlapped = assignment(listed, chunk, row).evaluation
            assert overlapped.latency_s <= serial.latency_s * (1 + 1e-12)
            assert overlapped.latency_s >= max(map(sum, serial.compute_s)) * (1 - 1e-12)
