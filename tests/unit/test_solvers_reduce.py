"""Reductions keep the optimum: exhaustive search with and without, on drawn problems."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from every_assignment import drawn, feasible
from problem_builder import build, uniform

from partitioner.errors import InfeasibleError
from partitioner.evaluation import evaluate
from partitioner.problem import Objective, Problem, Status, TransferCost
from partitioner.solvers import solve
from partitioner.solvers.bounds import load_prices
from partitioner.solvers.dp.ideals import all_ideals
from partitioner.solvers.limits import Clock
from partitioner.solvers.reduce import Units, reduce_ops, repriced_units
from partitioner.solvers.reductions.narrow import REDUCTIONS, Narrowed, Reduction, narrowed

OBJECTIVES = tuple(Objective)


def best(problem: Problem) -> float:
    try:
        return solve(problem, method="brute").stats.objective
    except InfeasibleError:
        return float("inf")


def together(problem: Problem, units: Units) -> Problem:
    """The problem whose assignments are those that the units can express."""
    groups = tuple(ops for ops in units.members if len(ops) > 1)
    return dataclasses.replace(problem, colocate=groups)


def reduced(problem: Problem, cutoff: float, *reductions: Reduction) -> Narrowed:
    units = reduce_ops(problem)
    prices = load_prices(problem, units)
    return narrowed(problem, units, cutoff, prices, Clock(10), reductions or REDUCTIONS)


def dear(seed: int, objective: Objective) -> Problem:
    """A drawn problem whose transfers cost as much as ops do."""
    problem = drawn(seed, objective=objective)
    rng = np.random.default_rng(seed)
    size = (problem.n_options + 1,) * 2
    costs = {
        name: TransferCost(rng.uniform(0, 1, size), rng.uniform(0.2, 1, size))
        for name in ("send", "recv")
    }
    return dataclasses.replace(problem, **costs, amount=problem.amount**2)


def lazy(seed: int, objective: Objective, *, loose: bool) -> Problem:
    """A drawn problem in which about half of the ops take no time, and some hold nothing."""
    problem = drawn(seed, objective=objective)
    rng = np.random.default_rng(seed)
    n, m = problem.n_ops, problem.n_options
    times = problem.time_s * (rng.random((n, 1)) < 0.5)
    fields: dict[str, object] = {"time_s": times}
    if rng.random() < 0.6:
        fields["send"], fields["recv"] = uniform(m, 0.5, 0.1), uniform(m, 0.2, 0.2)
        fields["link"] = TransferCost.zero(m)
    if loose:
        fields["pool_bytes"] = np.full(2, 1e6)
    if not loose or objective is Objective.MEMORY:
        fields["constant_bytes"] = problem.constant_bytes * np.append(rng.random(n) < 0.3, False)
        fields["live_bytes"] = problem.live_bytes * (rng.random(n) < 0.3)
    return dataclasses.replace(problem, **fields)


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("loose", [True, False])
@pytest.mark.parametrize("contiguous", [True, False])
def test_idle_ops_keep_the_optimum(objective: Objective, loose: bool, contiguous: bool) -> None:
    fewer = 0
    for seed in range(40):
        problem = dataclasses.replace(lazy(seed, objective, loose=loose), contiguous=contiguous)
        found = reduced(problem, float("inf"), REDUCTIONS[0])
        if len(found.units) == len(reduce_ops(problem)):
            continue
        fewer += 1
        assert best(together(problem, found.units)) == pytest.approx(best(problem), rel=1e-12)
    assert fewer > 3


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_an_assignment_is_carried_over_and_no_worse(objective: Objective) -> None:
    carried = 0
    for seed in range(14):
        problem = lazy(seed, objective, loose=True)
        found = reduced(problem, float("inf"), REDUCTIONS[0])
        if not found.moves:
            continue
        for assignment, evaluation in feasible(problem)[::23]:
            stage_of, placements = found.carried(assignment)
            again = evaluate(problem, stage_of, placements)
            assert again.value(objective) <= evaluation.value(objective) * (1 + 1e-12)
            assert all(len({stage_of[op] for op in ops}) == 1 for ops in found.units.members)
            carried += 1
    assert carried > 20


@pytest.mark.parametrize("objective", [Objective.PERIOD, Objective.LATENCY])
@pytest.mark.parametrize("slack", [1.0, 1.02, 1.2])
def test_dear_tensors_keep_what_is_below_the_cutoff(objective: Objective, slack: float) -> None:
    fewer = 0
    for seed in range(40):
        problem = dear(seed, objective)
        optimum = best(problem)
        if not np.isfinite(optimum):
            continue
        found = reduced(problem, optimum * slack, REDUCTIONS[1])
        fewer += len(found.units) < len(reduce_ops(problem))
        assert best(together(problem, found.units)) == pytest.approx(optimum, rel=1e-12)
    assert fewer > 1


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_dear_tensors_under_caps(objective: Objective) -> None:
    fewer = 0
    for seed in range(25):
        plain = dear(seed, objective)
        period, latency = (
            best(dataclasses.replace(plain, objective=o))
            for o in (Objective.PERIOD, Objective.LATENCY)
        )
        if not np.isfinite(period):
            continue
        problem = dataclasses.replace(
            plain, period_cap_s=period * 1.05, latency_cap_s=latency * 1.6
        )
        found = reduced(problem, float("inf"))
        fewer += len(found.units) < len(reduce_ops(problem))
        assert best(together(problem, found.units)) == pytest.approx(best(problem), rel=1e-12)
    assert fewer > 1


def test_a_chain_with_a_tensor_that_no_stage_can_send() -> None:
    # Sending the first op's result alone takes longer than everything on one device.
    tensors = [(0, (1,), 100.0, False), (1, (2,), 1.0, False), (2, (), 1.0, True)]
    problem = build(np.full((3, 2), 2.0), tensors, send=uniform(2, 0.0, 0.1))
    assert reduced(problem, 6.0).units.members == ((0, 1), (2,))
    assert solve(problem).stats.objective == best(problem) == 4.1


def test_a_move_that_just_fits_the_period() -> None:
    # 2 s and 1 s of sending, 3 s on the link meanwhile, 3 s: all of both devices at 3 s an item.
    tensors = [(0, (1,), 1.0, False), (1, (), 0.0, True)]
    times = np.array([2.0, 3.0])[:, None] * np.ones((1, 2))
    problem = build(times, tensors, send=uniform(2, 0.0, 1.0), link=uniform(2, 0.0, 3.0))
    assert best(problem) == 3.0
    assert len(reduced(problem, 3.0).units) == 2
    assert len(reduced(problem, 2.99).units) == 1


def test_a_tensor_that_only_its_quick_reader_can_receive_in_time() -> None:
    # 0 feeds 1 and 2, 1 feeds 3. Receiving what 0 makes takes 3 s, too long before 1 and 3, but
    # 0, 1 | 2 | 3 takes 2 + 5 and all in one stage 7.5 s.
    tensors = [(0, (1, 2), 1.0, False), (1, (3,), 0.0, False)]
    tensors += [(2, (), 0.0, True), (3, (), 0.0, True)]
    times = np.array([1.0, 1.0, 0.5, 5.0])[:, None] * np.ones((1, 3))
    problem = build(times, tensors, recv=uniform(3, 0.0, 3.0), objective=Objective.LATENCY)
    assert best(problem) == 7.0
    found = reduced(problem, 7.0, REDUCTIONS[1])
    assert best(together(problem, found.units)) == 7.0


def test_idle_ops_go_along_in_chains_one_after_the_other() -> None:
    # 0 -> 1 -> 2 -> 3 with 1 and 2 idle and ever smaller tensors: only the cut before 3 remains.
    tensors = [(0, (1,), 9.0, False), (1, (2,), 5.0, False), (2, (3,), 1.0, False)]
    tensors.append((3, (), 1.0, True))
    times = np.array([3.0, 0.0, 0.0, 3.0])[:, None] * np.ones((1, 2))
    cost = uniform(2, 0.0, 0.1)
    problem = build(times, tensors, send=cost, recv=cost)
    assert reduced(problem, float("inf")).units.members == ((0, 1, 2), (3,))
    assert solve(problem).stats.objective == best(problem)


def test_idle_ops_where_prices_differ_between_devices_of_one_stage_only() -> None:
    # dev0 and dev1 are one machine by two names: no stage on dev1 ever stands beside one on dev0.
    tensors = [(0, (1,), 9.0, False), (1, (2,), 1.0, False), (2, (), 1.0, True)]
    cost = uniform(3, 0.0, 0.1)
    dear = cost.per_unit_s.copy()
    dear[0, 1] = dear[1, 0] = 0.7
    fields: dict[str, object] = {
        "send": TransferCost(cost.base_s, dear),
        "uses": np.array([[1, 0], [1, 0], [0, 1]]),
        "capacity": np.array([1, 1]),
    }
    problem = build(np.array([3.0, 0.0, 3.0])[:, None] * np.ones((1, 3)), tensors, **fields)
    found = reduced(problem, float("inf"), REDUCTIONS[0])
    assert found.units.members == ((0, 1), (2,))
    assert best(together(problem, found.units)) == best(problem)
    apart = dataclasses.replace(problem, uses=np.eye(3, dtype=np.int64), capacity=np.ones(3))
    assert len(reduced(apart, float("inf"), REDUCTIONS[0]).units) == 3


def test_an_idle_op_whose_result_is_larger_goes_along_with_its_reader() -> None:
    tensors = [(0, (1,), 1.0, False), (1, (2,), 9.0, False), (2, (), 1.0, True)]
    cost = uniform(2, 0.0, 0.1)
    problem = build(
        np.array([3.0, 0.0, 3.0])[:, None] * np.ones((1, 2)), tensors, send=cost, recv=cost
    )
    found = reduced(problem, float("inf"), REDUCTIONS[0])
    assert found.units.members == ((0,), (1, 2))
    assert best(together(problem, found.units)) == best(problem)


def test_an_idle_op_with_several_readers_stays_where_each_costs_a_send() -> None:
    # One send to the idle op, beside either reader, against two beside the maker.
    tensors = [(0, (1,), 5.0, False), (1, (2, 3), 5.0, False)]
    tensors += [(2, (), 0.0, True), (3, (), 0.0, True)]
    times = np.array([3.0, 0.0, 3.0, 3.0])[:, None] * np.ones((1, 3))
    problem = build(times, tensors, send=uniform(3, 0.0, 0.1))
    assert best(problem) == 3.5
    assert len(reduced(problem, float("inf"), REDUCTIONS[0]).units) == 4
    once = dataclasses.replace(problem, send_once=True)
    assert reduced(once, float("inf"), REDUCTIONS[0]).units.members == ((0, 1), (2,), (3,))
    assert best(once) == 3.5


def test_an_idle_op_stays_where_its_input_goes_to_the_caller_too() -> None:
    # One send serves both the caller and the idle op; beside the maker there would be two.
    tensors = [(0, (1,), 5.0, True), (1, (2,), 5.0, False), (2, (), 0.0, True)]
    times = np.array([3.0, 0.0, 3.0])[:, None] * np.ones((1, 2))
    problem = build(times, tensors, send=uniform(2, 0.0, 0.1), send_once=True)
    assert best(problem) == 3.5
    found = reduced(problem, float("inf"), REDUCTIONS[0])
    assert best(together(problem, found.units)) == 3.5


def test_an_idle_op_stays_where_two_stages_of_one_option_pay_less() -> None:
    tensors = [(0, (1,), 9.0, False), (1, (2,), 1.0, False), (2, (), 1.0, True)]
    cost = uniform(2, 0.0, 0.1)
    cheap = cost.per_unit_s.copy()
    cheap[0, 0] = cheap[1, 1] = 0.0
    times = np.array([3.0, 0.0, 3.0])[:, None] * np.ones((1, 2))
    problem = build(times, tensors, send=TransferCost(cost.base_s, cheap))
    assert reduced(problem, float("inf"), REDUCTIONS[0]).units.members == ((0, 1), (2,))
    twice = dataclasses.replace(problem, capacity=np.full(2, 2))
    assert len(reduced(twice, float("inf"), REDUCTIONS[0]).units) == 3


def test_constants_keep_an_idle_op_where_memory_is_short() -> None:
    tensors = [(0, (1,), 2.0, False), (1, (2,), 1.0, False), (2, (), 1.0, True)]
    problem = build(
        np.array([[1.0, 1.0], [0.0, 0.0], [1.0, 1.0]]),
        tensors,
        send=uniform(2, 0.0, 0.1),
        constant_ops=((0,), (1,), (2,)),
        constant_bytes=np.array([8.0, 8.0, 1.0]),
        pool_of=np.array([0, 1]),
        pool_bytes=np.array([10.0, 10.0]),
    )
    assert len(reduced(problem, float("inf"), REDUCTIONS[0]).units) == 3
    roomy = dataclasses.replace(problem, pool_bytes=np.full(2, 40.0))
    assert reduced(roomy, float("inf"), REDUCTIONS[0]).units.members == ((0, 1), (2,))


def test_units_priced_anew_are_those_reduced_anew() -> None:
    for seed in range(20):
        problem = dataclasses.replace(drawn(seed), colocate=((0, 1),))
        factor = np.random.default_rng(seed).uniform(0.5, 2.0, (problem.n_ops, 1))
        changed = dataclasses.replace(
            problem, time_s=problem.time_s * factor, live_bytes=problem.live_bytes * factor[:, 0]
        )
        kept, new = repriced_units(changed, reduce_ops(problem)), reduce_ops(changed)
        assert kept.members == new.members
        assert kept.flows == new.flows
        assert kept.shared == new.shared
        for name in ("time_s", "live_bytes", "constant_bytes"):
            np.testing.assert_array_equal(getattr(kept, name), getattr(new, name))


def branched(seed: int, objective: Objective) -> Problem:
    """Identical branches between a fork and a join, beside other ops, on drawn devices."""
    rng = np.random.default_rng(seed)
    length, branches = int(rng.integers(1, 3)), int(rng.integers(2, 4))
    n = 2 + length * branches
    heads = tuple(1 + length * b for b in range(branches))
    amount = rng.integers(1, 9, length + 2).astype(float)
    tensors = [(0, heads, amount[0], False), (n - 1, (), amount[1], True)]
    for head in heads:
        for i in range(length):
            reader = head + i + 1 if i + 1 < length else n - 1
            tensors.append((head + i, (reader,), amount[2 + i], False))
    plain = drawn(seed, objective=objective)
    m = plain.n_options
    own = rng.uniform(1, 5, (length, m))
    times = np.vstack([rng.uniform(1, 5, m), np.tile(own, (branches, 1)), rng.uniform(1, 5, m)])
    fields = {
        name: getattr(plain, name)
        for name in ("send", "recv", "link", "send_once", "host_s", "replicas", "uses", "capacity")
    }
    return build(
        times,
        tensors,
        **fields,
        objective=objective,
        latency_model=plain.latency_model,
        max_stages=3,
    )


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_an_order_of_identical_branches_keeps_the_optimum(objective: Objective) -> None:
    found = 0
    for seed in range(4):
        problem = branched(seed, objective)
        units = narrowed(problem, reduce_ops(problem), np.inf, (), Clock(10), ()).units
        heads = [(units.members[a][0], units.members[b][0]) for a, b in units.order]
        found += len(heads)
        every = feasible(problem)
        ordered = [
            evaluation.value(objective)
            for (stage_of, _), evaluation in every
            if all(stage_of[a] <= stage_of[b] for a, b in heads)
        ]
        best_of_all = min(evaluation.value(objective) for _, evaluation in every)
        assert min(ordered) == pytest.approx(best_of_all, rel=1e-12)
        assert solve(problem).stats.objective == pytest.approx(best_of_all, rel=1e-6)
    assert found >= 4


def order(problem: Problem) -> tuple[tuple[int, int], ...]:
    """Identical branches of a problem that is not reduced otherwise."""
    return narrowed(problem, reduce_ops(problem), np.inf, (), Clock(10), ()).units.order


def test_branches_that_differ_have_no_order() -> None:
    tensors = [(0, (1, 2), 1.0, False), (1, (3,), 2.0, False), (2, (3,), 2.0, False)]
    tensors.append((3, (), 1.0, True))
    same = build(np.ones((4, 2)), tensors)
    assert order(same) == ((1, 2),)
    assert order(dataclasses.replace(same, contiguous=False)) == ()
    slower = np.ones((4, 2))
    slower[2, 1] = 2.0
    for change in (
        {"time_s": slower},
        {"amount": np.array([1.0, 2.0, 3.0, 1.0])},
        {"tensor_bytes": np.array([1.0, 2.0, 3.0, 1.0])},
        {"live_bytes": np.array([0.0, 1.0, 2.0, 0.0])},
        {"to_caller": np.array([False, True, False, True])},
        {"constant_bytes": np.ones(1), "constant_ops": ((1,),)},
        {"constant_bytes": np.ones(1), "constant_ops": ((0, 1, 2),)},
    ):
        assert order(dataclasses.replace(same, **change)) == ()


@pytest.mark.parametrize("first_s", [1.0, 2.0])
def test_twins_read_the_same(first_s: float) -> None:
    # 0 -> 2 and 1 -> 3, both to 4: two chains alike, or two chains of which only the ends are.
    tensors = [(0, (2,), 1.0, False), (1, (3,), 1.0, False), (2, (4,), 1.0, False)]
    tensors += [(3, (4,), 1.0, False), (4, (), 1.0, True)]
    times = np.ones((5, 2))
    times[0] = first_s
    assert order(build(times, tensors)) == (((0, 1),) if first_s == 1.0 else ())


def test_a_branch_ends_where_something_else_is_read() -> None:
    # 0 -> 1 -> 4 and 0 -> 2 -> 5, and 4 reads 3 too.
    tensors = [(0, (1, 2), 1.0, False), (1, (4,), 1.0, False), (2, (5,), 1.0, False)]
    tensors += [(3, (4,), 1.0, False), (4, (), 1.0, True), (5, (), 1.0, True)]
    assert order(build(np.ones((6, 2)), tensors)) == ()
    assert order(build(np.ones((6, 2)), [*tensors[:3], (3, (), 1.0, False), *tensors[4:]])) == (
        (1, 2),
    )


def test_many_identical_branches_have_few_downsets() -> None:
    # A layer of 40 experts has 2 ** 40 downsets, and 41 up to exchanging experts.
    experts = tuple(range(1, 41))
    tensors = [(0, experts, 1.0, False), *((e, (41,), 1.0, False) for e in experts)]
    tensors.append((41, (), 1.0, True))
    cost = uniform(3, 0.01, 0.0)
    problem = build(np.ones((42, 3)), tensors, send=cost, recv=cost, send_once=True)
    units = narrowed(problem, reduce_ops(problem), np.inf, (), Clock(10), ()).units
    ideals = all_ideals(units, 1000)
    assert ideals is not None
    assert len(ideals) == 43
    found = solve(problem)
    assert found.stats.status is Status.OPTIMAL
    # A balanced 14, 14, 14; the middle stage receives 1 and sends its 14 results.
    assert found.stats.objective < 15
