"""The table of dynamic programming: its value is a bound, and the optimum where costs separate."""

from __future__ import annotations

import dataclasses
from contextlib import suppress

import numpy as np
import pytest
from every_assignment import drawn, feasible
from problem_builder import build, uniform

from partitioner.errors import InfeasibleError
from partitioner.problem import LatencyModel, Objective, Problem, TransferCost
from partitioner.solvers import solve
from partitioner.solvers.bounds import load_prices
from partitioner.solvers.dp import pricing
from partitioner.solvers.dp.cuts import Cuts
from partitioner.solvers.dp.ideals import all_ideals, membership
from partitioner.solvers.dp.reach import Reach
from partitioner.solvers.dp.table import applies, exact_cuts, search_cuts
from partitioner.solvers.dp.weights import weighed
from partitioner.solvers.limits import Clock, Limits
from partitioner.solvers.reduce import reduce_ops


def table(problem: Problem, cutoff: float = float("inf")) -> float:
    units = reduce_ops(problem)
    prices = load_prices(problem, units)
    cuts = exact_cuts(problem, units, Limits(), cutoff, prices)
    return search_cuts(problem, units, cuts, Limits(), Clock(20), cutoff, prices).best()[0]


def separable(seed: int, **fields: object) -> Problem:
    """A drawn problem whose stages pay no more or less for who stands beside them."""
    problem = drawn(seed, **fields)
    m = problem.n_options
    nothing = TransferCost.zero(m)
    rng = np.random.default_rng(seed)
    return dataclasses.replace(
        problem,
        send=uniform(m, rng.random(), rng.random() / 4),
        recv=uniform(m, rng.random(), rng.random() / 4),
        link=uniform(m, 0.3, 0.1) if problem.objective is Objective.LATENCY else nothing,
        bus_of=np.full((m + 1, m + 1), -1),
        send_once=True,
        host_core=np.full(m, -1),
        pool_of=np.zeros(m, dtype=np.int64),
        pool_bytes=np.array([1e9]),
        latency_model=LatencyModel.SERIAL,
        capacity=np.full(m, 2) if seed % 2 else problem.replicas,
    )


@pytest.mark.parametrize("objective", list(Objective))
@pytest.mark.parametrize("capped", [False, True])
def test_the_optimum_where_costs_separate(objective: Objective, capped: bool) -> None:
    for seed in range(12):
        problem = separable(seed, objective=objective)
        if capped:
            fastest = solve(
                dataclasses.replace(problem, objective=Objective.PERIOD), method="brute"
            )
            problem = dataclasses.replace(problem, period_cap_s=fastest.stats.objective * 1.15)
        found, best = table(problem), solve(problem, method="brute")
        value = best.stats.objective
        assert found <= value * (1 + 1e-9), f"seed {seed}"
        # The caller's own time is no stage's and is left to the re-scoring.
        if objective is not Objective.PERIOD or best.evaluation.bottleneck.startswith("stage"):
            assert found == pytest.approx(value, rel=1e-9), f"seed {seed}"
        for factor in (1.3, 1.0 + 1e-6):
            assert table(problem, value * factor + 1e-9) == pytest.approx(found, rel=1e-9)
        assert table(problem, found * (1 - 1e-6)) == float("inf")


@pytest.mark.parametrize("objective", list(Objective))
def test_each_stage_fits_the_memory_of_its_option(objective: Objective) -> None:
    """With a pool for each option, which one stage occupies, the table knows all of the memory."""
    short = 0
    for seed in range(16):
        problem = separable(seed, objective=objective)
        problem = dataclasses.replace(problem, capacity=problem.replicas)
        roomy = solve(problem, method="brute")
        most = max(
            size * problem.replicas[option]
            for size, (option,) in zip(roomy.evaluation.stage_bytes, roomy.placements, strict=True)
        )
        m = problem.n_options
        tight = dataclasses.replace(
            problem, pool_of=np.arange(m), pool_bytes=np.full(m, most * 0.99)
        )
        try:
            best = solve(tight, method="brute")
        except InfeasibleError:
            assert table(tight) == float("inf"), f"seed {seed}"
            continue
        if objective is Objective.PERIOD and not best.evaluation.bottleneck.startswith("stage"):
            continue
        assert table(tight) == pytest.approx(best.stats.objective, rel=1e-9), f"seed {seed}"
        short += best.stats.objective > roomy.stats.objective * (1 + 1e-9)
    assert short > 2


@pytest.mark.parametrize("objective", list(Objective))
def test_never_above_the_optimum_whatever_the_cutoff(objective: Objective) -> None:
    compared = 0
    for seed in range(30):
        problem = drawn(seed, objective=objective)
        if not applies(problem):
            continue
        try:
            best = solve(problem, method="brute").stats.objective
        except InfeasibleError:
            continue
        compared += 1
        for cutoff in (float("inf"), best * 1.2 + 1e-9, best * (1 + 1e-6) + 1e-9):
            assert table(problem, cutoff) <= best * (1 + 1e-9), f"seed {seed}"
    assert compared > 5


def test_what_it_applies_to() -> None:
    problem = drawn(1, objective=Objective.PERIOD)
    assert applies(problem)
    assert not applies(dataclasses.replace(problem, contiguous=False))
    atomic = dataclasses.replace(
        problem, objective=Objective.LATENCY, latency_model=LatencyModel.ATOMIC
    )
    assert not applies(atomic)
    assert applies(dataclasses.replace(atomic, latency_model=LatencyModel.SERIAL))
    capped = dataclasses.replace(problem, latency_cap_s=3.0)
    assert applies(capped)
    assert not applies(dataclasses.replace(capped, objective=Objective.COPIES))


def test_replicas_share_a_stage_s_items() -> None:
    # One stage as three replicas takes 9/3 s an item; two stages would take at least 4 s.
    tensors = [(0, (1,), 1.0, False), (1, (), 1.0, True)]
    problem = build(
        np.array([[4.0, 4.0], [5.0, 5.0]]),
        tensors,
        replicas=np.array([1, 3]),
        uses=np.array([[1], [3]]),
        capacity=np.array([3]),
    )
    assert table(problem) == pytest.approx(3.0)
    assert table(dataclasses.replace(problem, capacity=np.array([2]))) == pytest.approx(5.0)


def test_what_lies_between_downsets_is_counted_by_hand() -> None:
    """Every term against sets, on all pairs of nested downsets of drawn graphs."""
    for seed in range(6):
        problem = drawn(seed)
        units = reduce_ops(problem)
        ideals = all_ideals(units, 1000)
        assert ideals is not None
        members = membership(ideals, len(units))
        cuts = Cuts.of(units, members)
        rng = np.random.default_rng(seed)
        weight = rng.uniform(0, 1, len(cuts.inputs) + 2 * len(cuts.moved))
        whole = slice(0, len(ideals))
        sums, nested = cuts.transfers.sums(whole, whole, weight), cuts.nested(whole, whole)
        for j, after in enumerate(members):
            for i, before in enumerate(members):
                inside = not (before & ~after).any()
                assert nested[j, i] == inside
                if not inside:
                    continue
                stage = set(np.flatnonzero(after & ~before))
                expected = 0.0
                for group, flow in enumerate((*cuts.inputs, *cuts.moved)):
                    there = flow.producer < 0 or before[flow.producer]
                    expected += weight[group] * bool(there and stage & set(flow.readers))
                for group, flow in enumerate(cuts.moved, start=len(cuts.inputs) + len(cuts.moved)):
                    later = {r for r in flow.readers if not after[r]}
                    expected += weight[group] * bool(flow.producer in stage and later)
                assert sums[j, i] == pytest.approx(expected, abs=1e-12)


def test_no_useful_downset_is_out_of_reach() -> None:
    """Every cut of every assignment below a period is kept for that period."""
    for seed in range(4):
        problem = drawn(seed)
        units = reduce_ops(problem)
        prices = load_prices(problem, units)
        ideals = all_ideals(units, 1000)
        assert ideals is not None
        members = membership(ideals, len(units))
        every = feasible(problem)
        if not every:
            continue
        period_s = float(np.quantile([e.period_s for _, e in every], 0.1))
        kept = Reach(problem, members, prices, period_s).ever()
        known = {ideal for ideal, keep in zip(ideals, kept, strict=True) if keep}
        for (stage_of, placements), evaluation in every:
            if evaluation.period_s > period_s:
                continue
            for stage in range(len(placements) + 1):
                cut = sum(
                    1 << unit for unit, ops in enumerate(units.members) if stage_of[ops[0]] < stage
                )
                assert cut in known, f"seed {seed}"


@pytest.mark.parametrize("objective", list(Objective))
def test_prices_state_by_state_and_all_at_once(
    objective: Objective, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared = 0
    for seed in range(12):
        problem = drawn(seed, objective=objective, latency_model=LatencyModel.SERIAL)
        found = []
        for each in (10**12, -(10**12)):
            monkeypatch.setattr(pricing, "_STEP", each)
            with suppress(InfeasibleError):
                found.append(solve(problem, method="dp").stats.objective)
        assert len(found) in (0, 2), seed
        if found:
            assert found[0] == pytest.approx(found[1], rel=2e-6), seed
            compared += 1
    assert compared > 5


def test_weights_of_downsets() -> None:
    rng = np.random.default_rng(0)
    for n in (1, 8, 21):
        members = rng.random((40, n)) < 0.5
        whole, broken = rng.integers(-(2**40), 2**40, (n, 2)), rng.random((n, 3))
        assert np.array_equal(weighed(members, whole), members.astype(np.int64) @ whole)
        assert weighed(members, broken) == pytest.approx(members @ broken, rel=1e-12)
