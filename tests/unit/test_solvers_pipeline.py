"""CP-SAT for contiguous problems against every assignment. Objectives are compared only."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from every_assignment import drawn, feasible
from problem_builder import build, uniform

from partitioner.errors import InfeasibleError
from partitioner.problem import LatencyModel, Objective, Problem, Solution, Status
from partitioner.solvers import solve
from partitioner.solvers.cpsat import search as ilp_search


def searched(problem: Problem) -> Solution | None:
    try:
        return solve(problem, method="cpsat", time_limit_s=30)
    except InfeasibleError:
        return None


def agree(problem: Problem, best: float, note: str) -> None:
    found = searched(problem)
    assert (found is None) == (best == float("inf")), note
    if found is not None:
        assert found.evaluation.feasible, note
        assert found.stats.objective == pytest.approx(best, rel=1e-6), note
        assert found.stats.status is Status.OPTIMAL, note
        assert found.stats.bound <= best * (1 + 1e-12), note


@pytest.mark.parametrize("seed", range(7))
def test_every_objective_with_replicas_host_cores_and_memory(seed: int) -> None:
    problem = drawn(seed)
    found = [evaluation for _, evaluation in feasible(problem)]
    for objective in Objective:
        best = min((e.value(objective) for e in found), default=float("inf"))
        agree(dataclasses.replace(problem, objective=objective), best, f"seed {seed} {objective}")


@pytest.mark.parametrize("seed", range(12, 18))
def test_every_objective_under_both_caps(seed: int) -> None:
    problem = drawn(seed)
    found = [evaluation for _, evaluation in feasible(problem)]
    # Caps that one assignment just meets: a third of them by period, a third by latency.
    rng = np.random.default_rng(seed)
    by_period, by_latency = (
        sorted(e.value(objective) for e in found)
        for objective in (Objective.PERIOD, Objective.LATENCY)
    )
    for objective in Objective:
        at = rng.integers(0, max(1, len(found) // 3), 2)
        caps = (
            by_period[at[0]] if found and objective is not Objective.PERIOD else float("inf"),
            by_latency[at[1]] if found and objective is not Objective.LATENCY else float("inf"),
        )
        best = min(
            (e.value(objective) for e in found if e.period_s <= caps[0] and e.latency_s <= caps[1]),
            default=float("inf"),
        )
        both = dataclasses.replace(
            problem, objective=objective, period_cap_s=caps[0], latency_cap_s=caps[1]
        )
        agree(both, best, f"seed {seed} {objective}")


def test_a_cap_just_below_the_least_is_infeasible() -> None:
    problem = drawn(10)
    best = min(evaluation.latency_s for _, evaluation in feasible(problem))
    assert searched(dataclasses.replace(problem, latency_cap_s=best)) is not None
    assert searched(dataclasses.replace(problem, latency_cap_s=best * (1 - 1e-7))) is None


def chain(times: list[float], devices: int, **fields: object) -> Problem:
    n = len(times)
    tensors = [(op, (op + 1,), 1.0, False) for op in range(n - 1)] + [(n - 1, (), 1.0, True)]
    return build(np.array(times)[:, None] * np.ones((1, devices)), tensors, **fields)


def test_a_model_too_large_to_build_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = dataclasses.replace(drawn(6), objective=Objective.COPIES, max_stages=2)
    whole = solve(problem, method="cpsat")
    monkeypatch.setattr(ilp_search, "_MOST_TERMS", 0)
    found = solve(problem, method="cpsat")
    assert found.stats.bound == 0.0
    assert found.stats.objective >= whole.stats.objective


def test_replicas_divide_the_period_and_not_the_latency() -> None:
    # One stage of 12 s as 3 replicas: a period of 4 s, a latency of 12 s, three times the memory.
    fields: dict[str, object] = {
        "replicas": np.array([3]),
        "uses": np.array([[3]]),
        "capacity": np.array([3]),
        "constant_ops": ((0,), (1,)),
        "constant_bytes": np.array([5.0, 6.0]),
        "latency_model": LatencyModel.SERIAL,
    }
    values = {
        objective: searched(chain([5, 7], 1, objective=objective, **fields))
        for objective in Objective
    }
    assert {objective: s.stats.objective for objective, s in values.items() if s} == {
        Objective.PERIOD: 4.0,
        Objective.LATENCY: 12.0,
        Objective.COPIES: 0.0,
        Objective.MEMORY: 33.0,
        Objective.DEVICES: 3.0,
    }


def test_a_host_core_is_a_resource() -> None:
    # Two stages of 4 s with 3 s of host time each: on one core 6 s decide, on two 7 s of a stage.
    one = chain([1, 1], 2, host_s=np.full(2, 3.0), host_core=np.zeros(2, dtype=np.int64))
    two = dataclasses.replace(one, host_core=np.array([0, 1]))
    lone = dataclasses.replace(one, max_stages=1)
    assert [s.stats.objective for s in map(searched, (one, two, lone)) if s] == [5.0, 4.0, 5.0]


def test_fewest_copies_and_devices_under_a_period_cap() -> None:
    problem = chain([4, 4, 4, 4], 4, send=uniform(4, 0.1, 0.0), send_once=True)
    for cap, stages in ((17.0, 1), (8.5, 2), (4.5, 4)):
        for objective, value in ((Objective.DEVICES, stages), (Objective.COPIES, stages - 1)):
            found = searched(dataclasses.replace(problem, objective=objective, period_cap_s=cap))
            assert found is not None
            assert found.stats.objective == value


@pytest.mark.parametrize(
    ("excess", "best"), [(0.5e-9, 0.5), (1.0001e-9, 1.0), (2e-9, 1.0), (1e-7, 1.0)]
)
def test_a_cap_broken_by_less_than_the_rounding(excess: float, best: float) -> None:
    # Two replicas halve the period, but take a little more than the cap; evaluation forgives 1e-9.
    problem = build(
        np.array([[1.0, 1.0 + excess]]),
        [(0, (), 1.0, True)],
        replicas=np.array([1, 2]),
        latency_cap_s=1.0,
        latency_model=LatencyModel.SERIAL,
    )
    found = searched(problem)
    assert found is not None
    assert found.stats.objective == pytest.approx(best)
    assert found.stats.status is Status.OPTIMAL
