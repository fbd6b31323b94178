"""The k best plans against every assignment: the values in order, and no plan twice."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from every_assignment import Assignment, drawn, feasible
from problem_builder import build, uniform

from partitioner.errors import InfeasibleError, ProblemError
from partitioner.evaluation import evaluate
from partitioner.problem import LatencyModel, Objective, Problem, Status
from partitioner.solvers.cpsat import search as cpsat_search
from partitioner.solvers.kbest import kbest, ranking
from partitioner.solvers.kbest.kbest import k_best
from partitioner.solvers.reduce import symmetry
from partitioner.solvers.replicate import with_replicas


def guise(problem: Problem, assignment: Assignment) -> tuple[object, ...]:
    """What stays of an assignment when stages are sets and equal options have no names."""
    stage_of, placements = assignment
    group_of = {d: c for c, group in enumerate(symmetry(problem).classes) for d in group}
    sharing: dict[int, set[frozenset[int]]] = {}
    kinds = set()
    for stage, (option,) in enumerate(placements):
        ops = frozenset(op for op, at in enumerate(stage_of) if at == stage)
        kinds.add((ops, group_of[option]))
        sharing.setdefault(option, set()).add(ops)
    return frozenset(kinds), frozenset(frozenset(each) for each in sharing.values())


def agree(problem: Problem, k: int, note: str) -> None:
    best: dict[tuple[object, ...], float] = {}
    for assignment, evaluation in feasible(problem):
        best[guise(problem, assignment)] = evaluation.value(problem.objective)
    values = sorted(best.values())[:k]
    if not values:
        with pytest.raises(InfeasibleError):
            k_best(problem, k)
        return
    found = k_best(problem, k, time_limit_s=60)
    assert [plan.stats.objective for plan in found] == pytest.approx(values, rel=1e-6), note
    assert len({guise(problem, (p.stage_of, p.placements)) for p in found}) == len(found), note
    for plan in found:
        assert plan.evaluation == evaluate(problem, plan.stage_of, plan.placements), note
        assert plan.stats.status is Status.OPTIMAL, note


def equal(problem: Problem) -> Problem:
    """The problem on equal options without memory limits, so that renaming matters."""
    n, m = problem.n_ops, problem.n_options
    return build(
        np.repeat(problem.time_s[:, :1], m, axis=1),
        [
            (int(p), c, float(a), bool(out))
            for p, c, a, out in zip(
                problem.producer, problem.consumers, problem.amount, problem.to_caller, strict=True
            )
        ],
        send=uniform(m, 0.3, 0.05),
        uses=np.ones((m, 1), dtype=np.int64) if n % 2 else np.eye(m, dtype=np.int64),
        capacity=np.array([3]) if n % 2 else np.ones(m, dtype=np.int64),
        max_stages=3,
        latency_model=problem.latency_model,
    )


@pytest.mark.parametrize("seed", range(6))
def test_unequal_options(seed: int) -> None:
    for objective in (Objective.PERIOD, Objective.LATENCY):
        agree(drawn(seed, objective=objective), 6, f"seed {seed} {objective}")


@pytest.mark.parametrize("seed", range(8, 12))
def test_equal_options(seed: int) -> None:
    for objective in (Objective.PERIOD, Objective.LATENCY):
        problem = dataclasses.replace(equal(drawn(seed)), objective=objective)
        agree(problem, 8, f"seed {seed} {objective}")


@pytest.mark.parametrize("seed", [1, 3, 8])
def test_by_search_alone(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kbest, "applies", lambda problem: False)
    agree(drawn(seed), 4, f"seed {seed}")
    agree(equal(drawn(seed)), 4, f"seed {seed}, equal")


def test_plans_met_again_under_numbers_that_were_not_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kbest, "applies", lambda problem: False)
    monkeypatch.setattr(ranking, "_NUMBERINGS", 0)
    agree(equal(drawn(8)), 4, "no numbering listed")


@pytest.mark.parametrize("objective", [Objective.COPIES, Objective.MEMORY, Objective.DEVICES])
def test_other_objectives_under_a_cap(objective: Objective) -> None:
    problem = drawn(3)
    periods = sorted(evaluation.period_s for _, evaluation in feasible(problem))
    agree(dataclasses.replace(problem, objective=objective, period_cap_s=periods[40]), 5, "cap")


def test_all_there_are_when_fewer() -> None:
    # A chain of two: whole on either device, or cut with the devices in either order.
    times = np.array([[1.0, 2.0], [1.0, 2.0]])
    problem = build(times, [(0, (1,), 1.0, False), (1, (), 1.0, True)])
    values = [plan.stats.objective for plan in k_best(problem, 10)]
    assert values == [2.0, 2.0, 2.0, 4.0]
    assert [plan.stats.objective for plan in k_best(problem, 10, within=0.5)] == [2.0, 2.0, 2.0]


def test_replicas_of_equal_devices() -> None:
    # Two ops on three equal devices, up to two of them in turn on a stage.
    times = np.array([[4.0], [2.0]]) * np.ones((1, 3))
    problem = build(times, [(0, (1,), 1.0, False), (1, (), 1.0, True)])
    replicated = with_replicas(problem, 2)
    found = k_best(replicated.problem, 20, replicated=replicated)
    # Cut with the first twice, 2 s; whole on two, 3 s; cut without, or with the second twice, 4 s;
    # whole on one, 6 s.
    assert [plan.stats.objective for plan in found] == [2.0, 3.0, 4.0, 4.0, 6.0]


def test_neighbours_where_no_method_can_prove_more(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = drawn(1)
    monkeypatch.setattr(kbest, "applies", lambda problem: False)
    monkeypatch.setattr(cpsat_search, "_MOST_TERMS", 0)
    found = k_best(problem, 3)
    values = [plan.stats.objective for plan in found]
    assert (len(found), values) == (3, sorted(values))
    assert found[0].stats.status is Status.OPTIMAL
    assert found[-1].stats.status is Status.FEASIBLE
    assert found[-1].stats.bound <= found[-1].stats.objective


def test_bad_requests() -> None:
    problem = drawn(1)
    with pytest.raises(ProblemError, match="k is 0"):
        k_best(problem, 0)
    with pytest.raises(ProblemError, match="within"):
        k_best(problem, 1, within=-1)
    with pytest.raises(ProblemError, match="one objective"):
        k_best(dataclasses.replace(problem, second=Objective.COPIES), 2)
    with pytest.raises(ProblemError, match="contiguous"):
        k_best(dataclasses.replace(problem, contiguous=False), 2)


def test_a_hundred_ops() -> None:
    """A chain with skips on three unequal devices: ten plans in order, all proven."""
    rng = np.random.default_rng(7)
    n = 100
    times = rng.lognormal(0, 1, (n, 1)) * np.array([1.0, 1.3, 0.8]) * rng.uniform(0.9, 1.1, (n, 3))
    tensors = [
        (i, tuple({min(i + 1, n - 1), min(i + 3, n - 1)} - {i}), 1.0, i == n - 1) for i in range(n)
    ]
    problem = build(times, tensors, send=uniform(3, 0.05, 0.02), latency_model=LatencyModel.SERIAL)
    for objective in (Objective.PERIOD, Objective.LATENCY):
        found = k_best(dataclasses.replace(problem, objective=objective), 10)
        values = [plan.stats.objective for plan in found]
        assert values == sorted(values)
        assert len(values) == 10
        assert all(plan.stats.status is Status.OPTIMAL for plan in found)
