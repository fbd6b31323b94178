"""Solving again under changed costs gives what solving from scratch gives."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from every_assignment import drawn
from problem_builder import build, uniform

from partitioner.errors import InfeasibleError, ProblemError
from partitioner.evaluation import evaluate
from partitioner.problem import LatencyModel, Objective, Problem, Status
from partitioner.solvers import solve
from partitioner.solvers.resolve import Resolver


def ladder(n: int, devices: int, seed: int) -> Problem:
    """A chain with a skip over every other op on unequal devices."""
    rng = np.random.default_rng(seed)
    tensors = [
        (
            op,
            tuple(o for o in (op + 1, op + 3) if o < n and (o == op + 1 or op % 2 == 0)),
            1.0,
            False,
        )
        for op in range(n - 1)
    ]
    tensors += [(n - 1, (), 1.0, True), (-1, (0,), 1.0, False)]
    times = rng.lognormal(0, 1, (n, 1)) * rng.uniform(0.8, 2.0, (n, devices))
    cost = uniform(devices, 0.01, 0.02)
    return build(times, tensors, send=cost, recv=cost)


def changed(problem: Problem, rng: np.random.Generator, spread: float) -> Problem:
    factor = rng.uniform(1 - spread, 1 + spread, (problem.n_ops, 1))
    amount = problem.amount * rng.uniform(1 - spread, 1 + spread, problem.n_tensors)
    return dataclasses.replace(problem, time_s=problem.time_s * factor, amount=amount)


@pytest.mark.parametrize("devices", [2, 3])
@pytest.mark.parametrize("spread", [0.03, 0.8])
def test_changes_of_times_and_amounts(devices: int, spread: float) -> None:
    problem = ladder(30, devices, seed=devices)
    resolver = Resolver(problem)
    rng = np.random.default_rng(0)
    for _ in range(6):
        found, fresh = resolver.solve(problem), solve(problem)
        assert found.stats.status is fresh.stats.status is Status.OPTIMAL
        assert found.stats.objective == pytest.approx(fresh.stats.objective, rel=2e-6)
        again = evaluate(problem, found.stage_of, found.placements)
        assert again.value(problem.objective) == found.stats.objective
        assert found.stats.bound <= min(found.stats.objective, fresh.stats.objective)
        problem = changed(problem, rng, spread)


@pytest.mark.parametrize("model", [LatencyModel.SERIAL, LatencyModel.ATOMIC])
@pytest.mark.parametrize("objective", list(Objective))
def test_every_objective_on_small_problems(objective: Objective, model: LatencyModel) -> None:
    solved = 0
    for seed in range(3):
        problem = drawn(seed, objective=objective, latency_model=model)
        resolver = Resolver(problem)
        rng = np.random.default_rng(seed)
        for _ in range(3):
            try:
                best = solve(problem, method="brute").stats.objective
            except InfeasibleError:
                with pytest.raises(InfeasibleError):
                    resolver.solve(problem)
            else:
                found = resolver.solve(problem)
                assert found.stats.objective == pytest.approx(best, rel=1e-6, abs=1e-12)
                assert found.stats.status is Status.OPTIMAL
                solved += 1
            problem = changed(problem, rng, 0.3)
    assert solved > 3


def test_a_change_that_makes_the_known_assignments_infeasible() -> None:
    problem = ladder(12, 3, seed=5)
    resolver = Resolver(problem)
    first = resolver.solve(problem)
    used = first.placements[first.stage_of[0]][0]
    allowed = np.ones_like(problem.allowed)
    allowed[0, used] = False
    pinned = dataclasses.replace(problem, allowed=allowed)
    found = resolver.solve(pinned)
    assert found.placements[found.stage_of[0]][0] != used
    assert found.stats.objective == pytest.approx(solve(pinned).stats.objective, rel=2e-6)
    none = dataclasses.replace(problem, allowed=np.zeros_like(allowed))
    with pytest.raises(InfeasibleError):
        resolver.solve(none)
    assert resolver.solve(problem).stats.objective == pytest.approx(first.stats.objective, rel=2e-6)


def test_equal_devices_that_become_unequal() -> None:
    problem = ladder(16, 2, seed=7)
    same = dataclasses.replace(problem, time_s=np.repeat(problem.time_s[:, :1], 2, axis=1))
    resolver = Resolver(same)
    resolver.solve()
    for factor in (1.5, 4.0, 1.0):
        slower = dataclasses.replace(same, time_s=same.time_s * np.array([factor, 1.0]))
        found = resolver.solve(slower)
        assert found.stats.objective == pytest.approx(solve(slower).stats.objective, rel=2e-6)


def test_another_graph_is_refused() -> None:
    problem = ladder(10, 2, seed=1)
    resolver = Resolver(problem)
    with pytest.raises(ProblemError, match=r"consumers is not what it was.*make a new one"):
        resolver.solve(dataclasses.replace(problem, consumers=((1,), *problem.consumers[1:])))
    with pytest.raises(ProblemError, match=r"producer is not what it was"):
        resolver.solve(dataclasses.replace(problem, producer=problem.producer * 0 - 1))
    with pytest.raises(ProblemError, match=r"time_s has shape \(10, 3\)"):
        resolver.solve(ladder(10, 3, seed=1))
    resolver.solve(problem)
    one = {"uses": np.ones((2, 1), dtype=np.int64), "capacity": np.array([2])}
    with pytest.raises(ProblemError, match=r"uses has shape \(2, 1\), it had \(2, 2\)"):
        resolver.solve(dataclasses.replace(problem, **one))


def test_free_problems_and_second_objectives_are_refused() -> None:
    problem = ladder(6, 2, seed=1)
    for change in ({"contiguous": False}, {"second": Objective.COPIES}):
        other = dataclasses.replace(problem, **change)
        with pytest.raises(ProblemError, match="contiguous problems with one objective"):
            Resolver(other).solve()
