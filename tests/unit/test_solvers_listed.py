"""Latency by the model ``list``: bounds, starts, the walk, and the door."""

from __future__ import annotations

import dataclasses
import random
from itertools import pairwise

import numpy as np
import pytest
from problem_builder import build, uniform

from partitioner.errors import InfeasibleError, ProblemError
from partitioner.evaluation import evaluate
from partitioner.problem import LatencyModel, Objective, Problem, Status
from partitioner.solvers import diagnose, solve
from partitioner.solvers.free.model import free_model
from partitioner.solvers.limits import RELATIVE
from partitioner.solvers.listed.bounds import load_bound, path_bound, tails
from partitioner.solvers.listed.heft import starts
from partitioner.solvers.listed.segments import Segment, segments
from partitioner.solvers.listed.walk import scorer, walked
from partitioner.solvers.reduce import reduce_ops

# op0 feeds three branches of two ops each, which op7 joins.
BRANCHES = [
    (0, (1, 3, 5), 1.0, False),
    (1, (2,), 1.0, False),
    (2, (7,), 1.0, False),
    (3, (4,), 1.0, False),
    (4, (7,), 1.0, False),
    (5, (6,), 1.0, False),
    (6, (7,), 1.0, False),
    (7, (), 1.0, True),
]


def placed(times: np.ndarray, tensors: list, **fields: object) -> Problem:
    fields = {"objective": Objective.LATENCY, "latency_model": LatencyModel.LIST} | fields
    return build(times, tensors, contiguous=False, **fields)


def random_placement(seed: int, n: int, m: int, **fields: object) -> Problem:
    chance, rng = random.Random(seed), np.random.default_rng(seed)
    tensors = []
    for op in range(n):
        later = range(op + 1, min(n, op + 6))
        readers = tuple(sorted(chance.sample(later, min(len(later), chance.choice([1, 1, 2])))))
        tensors.append((op, readers, float(chance.randint(1, 9)), not readers))
    costs = {"send": uniform(m, 0.1, 0.05), "recv": uniform(m, 0.1, 0.05)}
    return placed(rng.uniform(1, 5, (n, m)), tensors, **(costs | fields))


def test_branches_go_to_devices_of_their_own() -> None:
    problem = placed(np.ones((8, 3)), BRANCHES, link=uniform(3, 0.25, 0))
    found = solve(problem, time_limit_s=60, workers=1)
    # On one device 8; with a branch each: op0 1, the link 0.25, two ops 2, the link 0.25, op7 1,
    # and the output's link 0.25.
    assert found.evaluation.latency_s == pytest.approx(4.75)
    assert found.stats.status is Status.OPTIMAL
    # A link as dear as the work keeps all on one device.
    dear = dataclasses.replace(problem, link=uniform(3, 4.0, 0))
    assert len(solve(dear, time_limit_s=60, workers=1).placements) == 1


def test_memory_makes_them_share() -> None:
    constants = {"constant_bytes": np.full(8, 10.0), "constant_ops": tuple((i,) for i in range(8))}
    pools = {"pool_of": np.arange(3), "pool_bytes": np.array([60.0, 20.0, 0.0])}
    problem = placed(np.ones((8, 3)), BRANCHES, **constants, **pools)
    found = solve(problem, time_limit_s=60, workers=1)
    by_hand = solve(problem, method="brute")
    # Two ops fit on the second device, so that op0, four others and op7 are on the first: 6 s. Two
    # ops that are not op0 and op7 on the second are done meanwhile.
    assert found.evaluation.latency_s == pytest.approx(6.0)
    assert by_hand.evaluation.latency_s == pytest.approx(6.0)
    none = dataclasses.replace(problem, pool_bytes=np.array([60.0, 15.0, 0.0]))
    with pytest.raises(InfeasibleError):
        solve(none, time_limit_s=60, workers=1)


def test_a_cap_below_the_optimum_is_infeasible() -> None:
    problem = placed(np.ones((8, 3)), BRANCHES)
    assert solve(problem, workers=1).evaluation.latency_s == pytest.approx(4.0)
    with pytest.raises(InfeasibleError):
        solve(dataclasses.replace(problem, latency_cap_s=3.9), time_limit_s=60, workers=1)


def test_segments_are_what_branches_do_between_fork_and_join() -> None:
    problem = placed(np.ones((8, 3)), BRANCHES)
    assert segments(problem) == [Segment(0, 7, (1, 2, 3, 4, 5, 6))]
    # Two chains without a common beginning or end.
    apart = placed(np.ones((4, 2)), [(0, (2,), 1.0, False), (1, (3,), 1.0, False)])
    assert segments(apart) == [Segment(-1, 4, (0, 1, 2, 3))]


def test_bounds_by_hand() -> None:
    problem = placed(np.ones((8, 3)), BRANCHES, link=uniform(3, 0.25, 0))
    # Longest path: four ops and the output's link.
    assert path_bound(problem) == pytest.approx(4.25)
    # Six ops on three devices between op0 and op7: 1 + 2 + 1.
    assert load_bound(problem, 10.0) == pytest.approx(4.0, rel=1e-5)
    # With two devices 1 + 3 + 1, where the whole load, 8, alone would say 4.
    two = placed(np.ones((8, 2)), BRANCHES)
    assert load_bound(two, 10.0) == pytest.approx(5.0, rel=1e-5)
    assert load_bound(two, 0.0) == 0.0
    # From op0's end on: op1, op2, op7 and the output's link, or with links between.
    assert tails(problem)[0] == pytest.approx([3.25] * 3)


@pytest.mark.parametrize("seed", range(4))
def test_starts_and_walk_keep_their_promises(seed: int) -> None:
    problem = random_placement(seed, 30, 3)
    loads = dataclasses.replace(problem, objective=Objective.PERIOD)
    model = free_model(loads, reduce_ops(problem))
    score = scorer(problem, model)
    begun = list(starts(problem, model))
    assert len(begun) == 4
    values = []
    for slots in begun:
        found = evaluate(problem, *model.assignment(slots))
        assert found.feasible
        assert score(slots) == pytest.approx(found.latency_s, rel=1e-12)
        values.append(found.latency_s)
    better = list(walked(model, score, begun[0], 0, lambda: 1.0, 1200))
    assert better
    steps = [score(slots) for slots in (begun[0], *better)]
    assert all(b < a for a, b in pairwise(steps))
    floor = max(path_bound(problem), load_bound(problem, 10.0))
    assert 0.3 * steps[-1] < floor <= min(*values, steps[-1])
    again = list(walked(model, score, begun[0], 0, lambda: 1.0, 1200))
    assert again == better
    assert list(walked(model, score, begun[0], 0, lambda: 0.0, 1200)) == []


def test_a_walk_leads_back_within_a_budget() -> None:
    constants = {"constant_bytes": np.ones(24), "constant_ops": tuple((i,) for i in range(24))}
    pools = {"pool_of": np.arange(2), "pool_bytes": np.array([13.0, 13.0])}
    problem = random_placement(9, 24, 2, **constants, **pools)
    loads = dataclasses.replace(problem, objective=Objective.PERIOD)
    model = free_model(loads, reduce_ops(problem))
    score = scorer(problem, model)
    start = [0] * 24
    assert not evaluate(problem, *model.assignment(start)).feasible
    *_, last = walked(model, score, start, 0, lambda: 1.0, 1500)
    assert evaluate(problem, *model.assignment(last)).feasible


def test_ops_beyond_the_few_are_proven_too() -> None:
    problem = random_placement(3, 16, 2)
    found = solve(problem, time_limit_s=60, workers=1)
    assert found.stats.status is Status.OPTIMAL
    assert found.stats.gap <= RELATIVE
    again = solve(problem, method="cpsat", time_limit_s=60, workers=1)
    assert again.stats.objective == pytest.approx(found.stats.objective, rel=2 * RELATIVE)


def test_without_time_there_is_a_start_and_its_bound() -> None:
    problem = random_placement(5, 200, 3)
    found = solve(problem, time_limit_s=0.0)
    assert found.stats.status is Status.FEASIBLE
    assert 0 < found.stats.bound < found.stats.objective
    hinted = solve(problem, time_limit_s=0.0, hint=found)
    assert hinted.stats.objective <= found.stats.objective


@pytest.mark.parametrize("method", ["dp", "highs"])
def test_methods_that_add_up_refuse(method: str) -> None:
    problem = placed(np.ones((8, 3)), BRANCHES)
    with pytest.raises(ProblemError, match="'list'"):
        solve(problem, method=method)


def test_other_aims_beside_it_are_refused() -> None:
    problem = placed(np.ones((8, 3)), BRANCHES)
    for change in (
        {"second": Objective.COPIES},
        {"objective": Objective.PERIOD, "latency_cap_s": 9.0},
        {"same_option": ((0, 1),)},
    ):
        with pytest.raises(ProblemError, match="minimized alone"):
            solve(dataclasses.replace(problem, **change))
    # Where the latency does not matter its model does not either.
    period = dataclasses.replace(problem, objective=Objective.PERIOD)
    assert solve(period, time_limit_s=60, workers=1).evaluation.period_s == pytest.approx(3.0)


def test_what_is_in_the_way_is_said() -> None:
    constants = {"constant_bytes": np.full(8, 10.0), "constant_ops": tuple((i,) for i in range(8))}
    pools = {"pool_of": np.arange(3), "pool_bytes": np.array([60.0, 20.0, 0.0])}
    problem = placed(np.ones((8, 3)), BRANCHES, latency_cap_s=5.5, **constants, **pools)
    with pytest.raises(InfeasibleError):
        solve(problem, time_limit_s=60, workers=1)
    causes = diagnose(problem, time_limit_s=60)
    # 6 s is the least within the budgets.
    cap = next(cause for cause in causes if "latency" in cause.limit)
    assert cap.demand == pytest.approx(6.0)
