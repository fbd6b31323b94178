from __future__ import annotations

import numpy as np
import pytest
from problem_builder import build

from partitioner.problem import Problem
from partitioner.solvers import alternatives, equal_split, proportional_split, replicas, single


def chain(times: list[list[float]], **fields: object) -> Problem:
    n = len(times)
    tensors = [(op, (op + 1,), 1.0, False) for op in range(n - 1)] + [(n - 1, (), 1.0, True)]
    return build(np.array(times), tensors, **fields)


# 1, 1, 6, 2 s on two equal cores; both cores together take 0.6 of that.
CORES = chain(
    [[t, t, 0.6 * t] for t in (1.0, 1.0, 6.0, 2.0)],
    uses=np.array([[1, 0], [0, 1], [1, 1]]),
    capacity=np.array([1, 1]),
)


def test_singles() -> None:
    found = [s for option in range(3) if (s := single(CORES, option))]
    assert [s.evaluation.period_s for s in found] == pytest.approx([10.0, 10.0, 6.0])
    assert [s.placements for s in found] == [((0,),), ((1,),), ((2,),)]


def test_single_where_an_op_cannot_run() -> None:
    problem = chain([[1.0, np.inf], [1.0, 1.0]])
    assert single(problem, 0) is not None
    assert single(problem, 1) is None


def test_replicas_must_fit_together() -> None:
    found = replicas(CORES, (0, 1))
    assert found is not None
    assert found.evaluation.period_s == pytest.approx(5.0)
    assert replicas(CORES, (0, 2)) is None


def test_equal_split_counts_ops() -> None:
    found = equal_split(CORES, (1, 0))
    assert found is not None
    # 1 + 1 on dev1, 6 + 2 on dev0.
    assert (found.stage_of, found.placements) == ((0, 0, 1, 1), ((1,), (0,)))
    assert found.evaluation.period_s == 8.0


def test_proportional_split_balances_time() -> None:
    problem = chain([[t, t] for t in (1.0, 1.0, 1.0, 1.0, 4.0)])
    found = proportional_split(problem, (0, 1))
    assert found is not None
    assert (found.stage_of, found.evaluation.period_s) == ((0, 0, 0, 0, 1), 4.0)


def test_splits_over_more_devices_than_ops() -> None:
    problem = chain([[1.0] * 3, [2.0] * 3])
    for split in (equal_split, proportional_split):
        found = split(problem, (0, 1, 2))
        assert found is not None
        assert found.evaluation.period_s == 2.0


def test_alternatives_are_named_feasible_and_scored() -> None:
    found = dict(alternatives(CORES))
    assert list(found) == [
        "single dev0",
        "single dev1",
        "single dev2",
        "replicas dev0 + dev1",
        "equal split",
        "proportional split",
    ]
    assert all(solution.evaluation.feasible for solution in found.values())
    assert found["replicas dev0 + dev1"].evaluation.period_s == pytest.approx(5.0)


def test_replicas_use_a_divisible_cluster_whole() -> None:
    # Four cores as x1 (10 s) or x3 (4 s): four of x1 give 10 / 4 = 2.5 s a period, one of each
    # 1 / (1/10 + 1/4) = 2.86 s.
    problem = chain([[10.0, 4.0]], uses=np.array([[1], [3]]), capacity=np.array([4]), max_stages=4)
    found = dict(alternatives(problem))
    copies = next(s for name, s in found.items() if name.startswith("replicas"))
    assert copies.placements == ((0, 0, 0, 0),)
    assert copies.evaluation.period_s == pytest.approx(2.5)


def test_memory_can_rule_replicas_out() -> None:
    problem = chain(
        [[1.0, 1.0]],
        constant_bytes=np.array([60.0]),
        constant_ops=((0,),),
        pool_bytes=np.array([100.0]),
    )
    assert not any(name.startswith("replicas") for name, _ in alternatives(problem))
