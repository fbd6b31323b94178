"""Core counts and replicas at once: against exhaustive search, and what makes them quick."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from cluster_problems import cluster_problem
from every_assignment import feasible
from problem_builder import build, uniform

from partitioner.errors import InfeasibleError
from partitioner.evaluation import evaluate
from partitioner.problem import Objective, Problem, Solution, Status, TransferCost
from partitioner.solvers import k_best, solve, with_replicas
from partitioner.solvers.bounds import load_prices, lower_bound
from partitioner.solvers.dp import run
from partitioner.solvers.dp.budget import run_budget, shares_a_budget
from partitioner.solvers.dp.crossing import crossing
from partitioner.solvers.dp.cuts import Cuts
from partitioner.solvers.dp.run import run_cuts_on
from partitioner.solvers.dp.table import TooLargeError
from partitioner.solvers.limits import Limits
from partitioner.solvers.occupancy import Occupancy
from partitioner.solvers.reduce import reduce_ops, symmetry
from partitioner.solvers.reductions.options import trimmed
from partitioner.solvers.session import Session


def clusters(sizes: tuple[int, ...], replicas: int = 4, **fields: object) -> Problem:
    """A chain of six ops on clusters, the second half as quick as the first, and so on.

    Each number of a cluster's cores is an option, with up to so many replicas.
    """
    work, parallel = np.array([3.0, 5.0, 2.0, 7.0, 1.0, 4.0]), 0.9
    counts = [(cluster, k) for cluster, size in enumerate(sizes) for k in range(1, size + 1)]
    times = [work * 2.0**c * (1 - parallel + parallel / k) for c, k in counts]
    uses = [[k * (c == other) for other in range(len(sizes))] for c, k in counts]
    problem = build(
        np.stack(times, axis=1),
        [(op, (op + 1,) if op < 5 else (), 1.0, op == 5) for op in range(6)],
        uses=np.array(uses),
        capacity=np.array(sizes),
        max_stages=sum(sizes),
        send=uniform(len(uses), 0.1, 0.0),
        recv=uniform(len(uses), 0.1, 0.0),
    )
    return replace(with_replicas(problem, replicas).problem, **fields)


def solved(problem: Problem, method: str) -> Solution | None:
    try:
        return solve(problem, method=method, time_limit_s=60.0, workers=1)
    except InfeasibleError:
        return None


@pytest.mark.parametrize("first", range(0, 60, 12))
def test_as_good_as_exhaustive_search(first: int) -> None:
    for seed in range(first, first + 12):
        problem = cluster_problem(seed)
        best, found = solved(problem, "brute"), solved(problem, "auto")
        if best is None or found is None:
            assert best is found, f"seed {seed}"
            continue
        assert found.stats.status is Status.OPTIMAL, f"seed {seed}"
        assert found.stats.objective == pytest.approx(best.stats.objective, rel=1e-6)
        assert found.stats.bound <= best.stats.objective * (1 + 1e-9), f"seed {seed}"
        again = evaluate(problem, found.stage_of, found.placements)
        assert again == found.evaluation, f"seed {seed}"


def test_states_of_two_clusters_are_what_they_have_in_use() -> None:
    problem = clusters((4, 4))
    occupancy = Occupancy(problem, symmetry(problem))
    keys = list(occupancy.every())
    assert len(keys) == 25
    assert keys[0] == occupancy.start == ((0, 0), 0)
    place = {key: index for index, key in enumerate(keys)}
    for key in keys:
        assert all(place[larger] > place[key] for _, larger in occupancy.after(key))
    assert occupancy.few(25) == keys
    assert occupancy.few(24) is None
    # Six ops make six stages at most, whatever is left.
    assert occupancy.left(((1, 0), 0))[1] == 6
    assert occupancy.done(((1, 0), 0))[1] == 1


def test_states_count_the_stages_where_these_are_limited() -> None:
    problem = clusters((2, 2), max_stages=2)
    occupancy = Occupancy(problem, symmetry(problem))
    assert max(count for _, count in occupancy.every()) == 2
    assert occupancy.after(((1, 1), 2)) == ()
    assert occupancy.done(((1, 1), 1))[1] == 1
    assert occupancy.left(((1, 1), 1))[1] == 1


def test_replicas_stand_in_for_cores_of_one_stage() -> None:
    """Kernels do not run k times as fast on k cores, so that k replicas are as good."""
    problem = clusters((4, 4))
    fewer = trimmed(problem)
    assert fewer is not None
    assert fewer.problem.uses.tolist() == [
        [k * a, k * b] for k in (1, 2, 3, 4) for a, b in ((1, 0), (0, 1))
    ]
    assert sorted(set(fewer.instead)) == list(range(8))
    best = solve(problem, method="brute", time_limit_s=60.0)
    found = solve(fewer.problem, method="brute", time_limit_s=60.0)
    assert found.stats.objective == best.stats.objective
    back = fewer.restore(found)
    assert evaluate(problem, back.stage_of, back.placements).period_s == best.stats.objective
    carried = fewer.carried(best)
    scored = evaluate(fewer.problem, carried.stage_of, carried.placements)
    assert scored.period_s <= best.stats.objective


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"objective": Objective.DEVICES, "period_cap_s": 10.0}, "each replica is a device"),
        ({"pool_bytes": np.array([3.0]), "live_bytes": np.ones(6)}, "each holds the memory"),
        ({"objective": Objective.LATENCY}, "one item is on one of them"),
        ({"latency_cap_s": 30.0}, "one item is on one of them"),
    ],
)
def test_replicas_stand_in_for_nothing_where_they_cost_more(
    fields: dict[str, object], why: str
) -> None:
    problem = clusters((4, 4), **fields)
    fewer = trimmed(problem)
    several = np.flatnonzero((problem.uses.sum(axis=1) > 1) & (problem.replicas == 1))
    assert fewer is None or set(several.tolist()) <= set(fewer.kept), why


def test_links_keep_all_options() -> None:
    """What a link carries adds up over the stages of an option, so that another is no stand-in."""
    problem = clusters((2, 2), 1)
    link = uniform(problem.n_options, 0.1, 0.0)
    slower = problem.time_s.copy()
    slower[:, 1] = 100.0
    assert trimmed(replace(problem, time_s=slower)) is not None
    assert trimmed(replace(problem, time_s=slower, link=link)) is None


def test_an_option_that_charges_its_neighbours_more_is_no_stand_in() -> None:
    problem = clusters((2, 2), 1)
    slower = problem.time_s.copy()
    slower[:, 1] = slower[:, 0]
    problem = replace(problem, time_s=slower)
    fewer = trimmed(problem)
    assert fewer is not None
    assert fewer.kept == (0, 2, 3)
    recv = problem.recv.base_s.copy()
    recv[0, 2] += 1.0
    dear = TransferCost(recv, problem.recv.per_unit_s)
    assert trimmed(replace(problem, recv=dear)) is None


def test_without_options_replaced_the_optimum_stays() -> None:
    left_out = 0
    for seed in range(100, 140):
        problem = cluster_problem(seed)
        fewer = trimmed(problem)
        if fewer is None:
            continue
        left_out += problem.n_options - fewer.problem.n_options
        best, found = solved(problem, "brute"), solved(fewer.problem, "brute")
        assert (best is None) == (found is None), f"seed {seed}"
        if best is not None and found is not None:
            assert found.stats.objective == pytest.approx(best.stats.objective, rel=1e-12)
    assert left_out > 20


def test_what_crosses_a_cut_is_no_more_than_it_costs() -> None:
    """Transfers before and after each cut, priced by the options in use, bear the bound out."""
    counted = 0.0
    for seed in range(20):
        problem = cluster_problem(seed)
        found = solved(problem, "cpsat")
        if found is None:
            continue
        units = reduce_ops(problem)
        rate = np.random.default_rng(seed).uniform(0.5, 2.0, problem.n_options)
        stages = range(1, len(found.placements))
        members = np.array(
            [[stage < cut for stage in found.stage_of] for cut in stages], dtype=bool
        )
        if not len(members):
            continue
        whole = np.vstack([np.zeros(problem.n_ops), members, np.ones(problem.n_ops)]).astype(bool)
        ops = [unit_ops[0] for unit_ops in units.members]
        before, after = crossing(problem, units, Cuts.of(units, whole[:, ops]), [rate])[0]
        options = [option for (option,) in found.placements]
        paid = [
            rate[option] * (sum(send) + sum(recv)) / len(send)
            for option, send, recv in zip(
                options, found.evaluation.send_s, found.evaluation.recv_s, strict=True
            )
        ]
        for cut in range(len(options) + 1):
            assert before[cut] <= sum(paid[:cut]) * (1 + 1e-9) + 1e-12, f"seed {seed}"
            assert after[cut] <= sum(paid[cut:]) * (1 + 1e-9) + 1e-12, f"seed {seed}"
        counted += before[-1]
    assert counted > 5


def test_the_k_best_in_order_with_proof() -> None:
    problem = clusters((2, 2), 2)
    found = k_best(problem, 5, time_limit_s=60.0)
    periods = sorted(evaluation.period_s for _, evaluation in feasible(problem))
    assert len(found) == 5
    assert found[0].stats.objective == pytest.approx(periods[0])
    assert all(plan.stats.status is Status.OPTIMAL for plan in found)
    values = [plan.stats.objective for plan in found]
    assert values == sorted(values)


def test_a_wide_period_is_proven_without_a_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a good assignment to start from the table is built up from the bound."""
    problem = clusters((4, 4))
    best = solve(problem, method="brute", time_limit_s=60.0).stats.objective
    session = Session(problem, Limits(time_limit_s=60.0), "test")
    prices = load_prices(problem, session.units)
    session.prove(0.8 * best)
    seen: list[float] = []

    def noted(*given: Any) -> int:
        seen.append(given[2])
        return run_cuts_on(*given)

    monkeypatch.setattr(run, "run_cuts_on", noted)
    run.run_dp(session, prices)
    assert session.proven
    assert len(seen) > 1
    assert seen == sorted(seen)
    assert session.objective == best


def test_a_table_too_large_is_tried_nearer_to_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = clusters((4, 4))
    best = solve(problem, method="brute", time_limit_s=60.0).stats.objective
    session = Session(problem, Limits(time_limit_s=60.0), "test")
    prices = load_prices(problem, session.units)
    session.prove(0.8 * best)

    def narrow(*given: Any) -> int:
        if given[2] > session.bound + 0.05 * best:
            raise TooLargeError("too many")
        return run_cuts_on(*given)

    monkeypatch.setattr(run, "run_cuts_on", narrow)
    run.run_dp(session, prices)
    assert session.proven
    assert session.objective == best


def test_the_shortest_period_within_a_budget_that_all_share() -> None:
    bound = 0
    for seed in range(200, 290):
        problem = cluster_problem(seed)
        if not shares_a_budget(problem):
            continue
        session = Session(problem, Limits(time_limit_s=60.0), "test")
        prices = load_prices(problem, session.units)
        session.prove(lower_bound(problem, session.units, prices))
        run_budget(session, prices)
        best = solved(problem, "brute")
        if best is None:
            assert session.infeasible, f"seed {seed}"
            continue
        free = solved(replace(problem, pool_bytes=np.array([np.inf])), "auto")
        assert free is not None
        bound += free.stats.objective < best.stats.objective * (1 - 1e-6)
        assert session.proven, f"seed {seed}"
        assert session.objective == pytest.approx(best.stats.objective, rel=1e-6), f"seed {seed}"
        assert session.bound <= best.stats.objective * (1 + 1e-9), f"seed {seed}"
    assert bound > 1


def test_a_budget_of_several_pools_or_a_capped_latency_is_left_to_other_methods() -> None:
    tight = clusters((2, 2), pool_bytes=np.array([3.0]), live_bytes=np.ones(6))
    assert shares_a_budget(tight)
    assert not shares_a_budget(replace(tight, pool_bytes=np.array([1e6])))
    assert not shares_a_budget(replace(tight, latency_cap_s=10.0))
    pools = np.arange(tight.n_options) % 2
    assert not shares_a_budget(replace(tight, pool_of=pools, pool_bytes=np.array([3.0, 3.0])))
