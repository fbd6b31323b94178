from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from problem_builder import build, uniform

from partitioner.errors import ProblemError
from partitioner.problem import Evaluation, Objective, SolveStats, Status, TransferCost

CHAIN = [(0, (1,), 4.0, False), (1, (), 2.0, True)]


def chain() -> object:
    return build(np.array([[1.0, 2.0], [3.0, 4.0]]), CHAIN)


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("time_s", np.ones((2, 3)), r"time_s has shape \(2, 3\)"),
        ("time_s", np.array([[1.0, np.nan], [1.0, 1.0]]), "'op0' takes nan s on 'dev1'"),
        ("time_s", np.array([[1.0, 1.0], [-1.0, 1.0]]), "'op1' takes -1.0 s"),
        ("host_s", np.array([0.0, np.inf]), "host_s holds"),
        ("amount", np.array([-1.0, 0.0]), "amount holds"),
        ("send", TransferCost(np.zeros((2, 2)), np.zeros((2, 2))), "send has shape"),
        ("recv", uniform(2, -1.0, 0.0), r"recv\.base_s holds"),
        ("pool_bytes", np.array([np.nan]), "memory budgets"),
        ("pool_of", np.array([0, 1]), "pool_of must name one of 1 pools"),
        ("capacity", np.array([1, -1]), "capacities must be zero or more"),
        ("consumers", ((2,), ()), "read by op 2"),
        ("consumers", ((0,), ()), "topological order"),
        ("producer", np.array([0, 5]), "made by op 5"),
        ("colocate", ((0, 7),), r"\(0, 7\) names ops that are not there"),
        ("max_stages", 0, "max_stages is 0"),
        ("replicas", np.array([1, 0]), "replicas must be one or more"),
        ("host_core", np.array([0]), r"host_core has shape \(1,\)"),
        ("period_cap_s", float("nan"), "period_cap_s is nan"),
        ("latency_cap_s", -1.0, "latency_cap_s is -1.0"),
    ],
)
def test_malformed_problems_are_refused(field: str, value: object, says: str) -> None:
    with pytest.raises(ProblemError, match=says):
        dataclasses.replace(chain(), **{field: value})


def test_empty_problems_are_refused() -> None:
    with pytest.raises(ProblemError, match="no ops"):
        build(np.zeros((0, 1)), [])
    with pytest.raises(ProblemError, match="no placement options"):
        build(np.zeros((1, 0)), [])


def test_arrays_are_frozen_copies() -> None:
    times = np.array([[1.0, 2.0], [3.0, 4.0]])
    problem = build(times, CHAIN)
    times[0, 0] = 99.0
    assert problem.time_s[0, 0] == 1.0
    with pytest.raises(ValueError, match="read-only"):
        problem.time_s[0, 0] = 5.0


def test_edges_are_distinct_and_leave_model_inputs_out() -> None:
    tensors = [(-1, (0,), 1.0, False), (0, (1, 2), 1.0, False), (0, (2,), 1.0, False)]
    assert build(np.ones((3, 1)), tensors).edges == ((0, 1), (0, 2))


def test_runs_needs_permission_and_a_finite_time() -> None:
    allowed = np.array([[True, False], [True, True]])
    problem = build(np.array([[1.0, 1.0], [np.inf, 1.0]]), CHAIN, allowed=allowed)
    assert problem.runs().tolist() == [[True, False], [False, True]]


def test_gap() -> None:
    def gap(objective: float, bound: float) -> float:
        return SolveStats(Status.FEASIBLE, objective, bound, 0.0, "x").gap

    assert gap(4.0, 3.0) == 0.25
    assert gap(0.0, 0.0) == 0.0
    assert gap(float("inf"), 1.0) == float("inf")
    assert gap(1.0, 1.5) == 0.0


def test_value_of_a_violation_is_infinite() -> None:
    fields = dict.fromkeys(
        ("compute_s", "send_s", "recv_s", "busy_s", "stage_period_s", "link_s", "stage_bytes"), ()
    )
    good = Evaluation(
        period_s=2.0,
        latency_s=3.0,
        pool_bytes=(4.0, 5.0),
        copies=6,
        devices=7,
        bottleneck="",
        **fields,
    )
    values = [good.value(objective) for objective in Objective]
    assert values == [2.0, 3.0, 6.0, 9.0, 7.0]
    bad = dataclasses.replace(good, violations=("no",))
    assert bad.value(Objective.PERIOD) == float("inf")
