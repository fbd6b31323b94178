"""The second objective against every assignment."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from every_assignment import drawn, feasible
from problem_builder import build

from partitioner.errors import NoneFoundError, ProblemError
from partitioner.problem import LatencyModel, Objective, Problem, Solution, Status
from partitioner.solvers import solve
from partitioner.solvers.lexicographic import solve_second

FIRST = (Objective.PERIOD, Objective.LATENCY)


def by_search(problem: Problem, hint: Solution) -> Solution:
    return solve(problem, method="cpsat", time_limit_s=30, hint=hint)


def both(problem: Problem, second: Objective) -> Solution:
    first = solve(problem, method="cpsat", time_limit_s=30)
    return solve_second(dataclasses.replace(problem, second=second), first, by_search)


@pytest.mark.parametrize("seed", [1, 3, 6, 8])
def test_every_pair_of_objectives(seed: int) -> None:
    problem = drawn(seed)
    found = [evaluation for _, evaluation in feasible(problem)]
    for first in FIRST:
        best = min(e.value(first) for e in found)
        for second in Objective:
            least = min(e.value(second) for e in found if e.value(first) <= best * (1 + 1e-6))
            got = both(dataclasses.replace(problem, objective=first), second)
            note = f"seed {seed}: {first.value}, then {second.value}"
            assert got.stats.objective == pytest.approx(best, rel=1e-6), note
            assert got.stats.second == pytest.approx(least, rel=2e-6), note
            assert got.stats.second == got.evaluation.value(second), note
            assert got.stats.second_bound is not None, note
            assert got.stats.second_bound <= least * (1 + 1e-12), note
            assert got.stats.second_bound >= least * (1 - 1e-6), note
            assert got.stats.status is Status.OPTIMAL, note
            assert got.stats.gap <= 1e-6, note


def heavy() -> Problem:
    """One op sets the period on any of three devices; the other three fit into one stage."""
    times = np.array([6.0, 1.0, 1.0, 1.0])[:, None] * np.ones((1, 3))
    tensors = [(i, (i + 1,), 1.0, False) for i in range(3)] + [(3, (), 1.0, True)]
    return build(times, tensors, latency_model=LatencyModel.SERIAL)


@pytest.mark.parametrize(("second", "value"), [(Objective.DEVICES, 2.0), (Objective.COPIES, 1.0)])
def test_no_more_than_the_period_needs(second: Objective, value: float) -> None:
    found = both(heavy(), second)
    assert (found.stats.objective, found.stats.second) == (6.0, value)


@pytest.mark.parametrize("method", ["auto", "cpsat", "brute"])
def test_solve_minimizes_both(method: str) -> None:
    problem = dataclasses.replace(heavy(), second=Objective.DEVICES)
    found = solve(problem, method=method)
    assert (found.stats.objective, found.stats.second) == (6.0, 2.0)
    assert found.stats.status is Status.OPTIMAL
    first_only = solve(problem, method=method, time_limit_s=0)
    assert first_only.stats.second == first_only.evaluation.devices


@pytest.mark.parametrize("end", [NoneFoundError("no time"), KeyboardInterrupt()])
def test_no_time_for_the_second(end: BaseException) -> None:
    def give_up(problem: Problem, hint: Solution) -> Solution:
        raise end

    first = solve(heavy())
    problem = dataclasses.replace(heavy(), second=Objective.MEMORY)
    found = solve_second(problem, first, give_up)
    assert (found.stage_of, found.stats.objective) == (first.stage_of, first.stats.objective)
    assert (found.stats.second, found.stats.second_bound) == (first.evaluation.memory_bytes, 0.0)


def test_an_unproven_first_caps_at_what_was_found() -> None:
    problem = dataclasses.replace(heavy(), second=Objective.DEVICES)
    whole = solve(dataclasses.replace(problem, second=None, max_stages=1))
    stats = dataclasses.replace(whole.stats, status=Status.FEASIBLE, bound=1.0)
    found = solve_second(problem, dataclasses.replace(whole, stats=stats), by_search)
    assert found.stats.objective <= whole.stats.objective
    assert (found.stats.second, found.stats.status) == (1.0, Status.FEASIBLE)
    assert found.stats.bound == 1.0


def test_what_cannot_come_first() -> None:
    problem = dataclasses.replace(heavy(), objective=Objective.COPIES, second=Objective.PERIOD)
    first = solve(dataclasses.replace(problem, second=None), method="cpsat")
    with pytest.raises(ProblemError, match="not 'copies'"):
        solve_second(problem, first, by_search)
    with pytest.raises(ProblemError, match="no second objective"):
        solve_second(dataclasses.replace(problem, second=None), first, by_search)
