"""The solvers against exhaustive search and against each other. Objectives are compared, never
assignments: equal optima are common."""

from __future__ import annotations

import pytest
from solver_instances import network, small

from partitioner.errors import InfeasibleError
from partitioner.evaluation import evaluate
from partitioner.problem import LatencyModel, Objective, Problem, Solution, Status
from partitioner.solvers import solve

BATCH = 10


def solved(problem: Problem, method: str) -> Solution | None:
    try:
        return solve(problem, method=method, time_limit_s=60)
    except InfeasibleError:
        return None


def check(problem: Problem, found: Solution) -> None:
    """What every solution owes, whatever found it."""
    again = evaluate(problem, found.stage_of, found.placements)
    assert again == found.evaluation
    assert again.feasible
    assert found.stats.objective == again.value(problem.objective)
    assert found.stats.bound <= found.stats.objective
    if found.stats.status is Status.OPTIMAL:
        assert found.stats.gap <= 1e-6


@pytest.mark.parametrize("first", range(0, 160, BATCH))
def test_small_problems_against_exhaustive_search(first: int) -> None:
    for seed in range(first, first + BATCH):
        problem = small(seed)
        best = solved(problem, "brute")
        for method in ("cpsat", "auto"):
            found = solved(problem, method)
            assert (found is None) == (best is None), f"seed {seed}, {method}"
            if found is None or best is None:
                continue
            check(problem, found)
            assert found.stats.status is Status.OPTIMAL, f"seed {seed}, {method}"
            assert found.stats.objective == pytest.approx(best.stats.objective, rel=1e-6), (
                f"seed {seed}, {method}"
            )


@pytest.mark.parametrize("first", range(0, 160, BATCH))
def test_dynamic_programming_never_claims_too_much(first: int) -> None:
    for seed in range(first, first + BATCH):
        problem = small(seed)
        atomic = problem.latency_model is LatencyModel.ATOMIC
        if problem.objective is Objective.LATENCY and atomic:
            continue
        best, found = solved(problem, "cpsat"), solved(problem, "dp")
        if found is None:
            continue
        check(problem, found)
        assert best is not None
        assert found.stats.bound <= best.stats.objective * (1 + 1e-9), f"seed {seed}"
        assert found.stats.objective >= best.stats.objective * (1 - 1e-6), f"seed {seed}"


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
    by_table, by_search = (solved(problem, method) for method in ("dp", "cpsat"))
    assert by_table is not None
    assert by_search is not None
    for found in (by_table, by_search):
        check(problem, found)
        assert found.stats.status is Status.OPTIMAL
    assert by_table.stats.objective == pytest.approx(by_search.stats.objective, rel=1e-6)
