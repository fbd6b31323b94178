"""The serial minimum cut against every assignment there is."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from problem_builder import build, uniform

from partitioner.errors import ProblemError
from partitioner.evaluation import evaluate
from partitioner.problem import LatencyModel, Objective, Problem, Status, TransferCost
from partitioner.solvers import solve
from partitioner.solvers.mincut import Cut, applies, minimum_cut
from partitioner.solvers.reduce import reduce_ops


def table(rng: np.random.Generator, n: int) -> TransferCost:
    """A cost between all ends, each its own."""
    return TransferCost(rng.uniform(0, 0.5, (n, n)), rng.uniform(0, 0.5, (n, n)))


def drawn(seed: int, n_options: int = 2) -> Problem:
    """A small problem with pins, colours, model inputs and outputs, send-once or not."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 8))
    consumers = [tuple(int(v) for v in range(u + 1, n) if rng.random() < 0.4) for u in range(-1, n)]
    tensors = [t for t in range(n + 1) if consumers[t]] or [0]
    if not consumers[tensors[0]]:
        consumers[0] = (0,)
    time_s = rng.uniform(0, 4, (n, n_options)).round(2)
    time_s[rng.random((n, n_options)) < 0.1] = np.inf
    allowed = rng.random((n, n_options)) < 0.95
    group = tuple(int(v) for v in rng.choice(n, size=2, replace=False)) if n > 2 else ()
    return Problem(
        op_names=tuple(f"op{i}" for i in range(n)),
        option_names=tuple(f"d{i}" for i in range(n_options)),
        time_s=time_s,
        allowed=allowed,
        host_s=rng.choice([0.0, 0.3], n_options),
        uses=np.eye(n_options, dtype=np.int64),
        capacity=np.ones(n_options, dtype=np.int64),
        pool_of=np.zeros(n_options, dtype=np.int64),
        pool_bytes=np.array([np.inf]),
        producer=np.array(tensors) - 1,
        consumers=tuple(consumers[t] for t in tensors),
        to_caller=np.array([t > 0 and rng.random() < 0.3 for t in tensors]),
        amount=rng.uniform(0, 3, len(tensors)),
        tensor_bytes=np.ones(len(tensors)),
        send=table(rng, n_options + 1),
        recv=table(rng, n_options + 1),
        link=table(rng, n_options + 1),
        bus_of=np.full((n_options + 1,) * 2, -1),
        constant_bytes=np.zeros(0),
        constant_ops=(),
        live_bytes=np.ones(n),
        max_stages=2,
        send_once=bool(rng.random() < 0.5),
        colocate=(group,) if group and rng.random() < 0.5 else (),
        objective=Objective.LATENCY,
        contiguous=False,
    )


def least(problem: Problem) -> float:
    """The best of all assignments of ops to options, a stage on each that is used."""
    best = float("inf")
    for choice in itertools.product(range(problem.n_options), repeat=problem.n_ops):
        used = sorted(set(choice))
        stages = [used.index(option) for option in choice]
        value = evaluate(problem, stages, [(option,) for option in used])
        best = min(best, value.value(problem.objective))
    return best


def cut_of(problem: Problem) -> Cut:
    """The cut between colocated groups, whatever the order of stages."""
    return minimum_cut(problem, reduce_ops(replace(problem, contiguous=False)))


@pytest.mark.parametrize("seed", range(60))
def test_two_options_match_enumeration(seed: int) -> None:
    problem = drawn(seed)
    assert applies(problem)
    cut, best = cut_of(problem), least(problem)
    if best == float("inf"):
        assert cut.assignment is None
        assert cut.bound_s == float("inf")
        return
    assert cut.assignment is not None
    found = evaluate(problem, *cut.assignment).value(problem.objective)
    assert found == pytest.approx(best, rel=1e-9)
    assert found * (1 - 1e-6) <= cut.bound_s <= best


@pytest.mark.parametrize("seed", range(20))
def test_the_best_pair_of_three_options(seed: int) -> None:
    problem = drawn(seed + 1000, n_options=3)
    cut, best = cut_of(problem), least(problem)
    assert cut.bound_s == pytest.approx(best, rel=1e-6)
    if cut.assignment is not None:
        found = evaluate(problem, *cut.assignment).value(problem.objective)
        assert found == pytest.approx(best, rel=1e-9)


@pytest.mark.parametrize("seed", range(20))
def test_an_order_of_stages_leaves_a_bound(seed: int) -> None:
    problem = replace(drawn(seed), contiguous=True, latency_model=LatencyModel.SERIAL)
    assert cut_of(problem).bound_s <= least(replace(problem, contiguous=False))


def test_costs_of_very_different_size() -> None:
    problem = drawn(5)
    times = np.where(np.isfinite(problem.time_s), problem.time_s, 1.0) * 1e-9
    times[0, 1] = 1e18
    problem = replace(problem, time_s=times, allowed=np.ones_like(problem.allowed))
    cut, best = cut_of(problem), least(problem)
    assert cut.bound_s == pytest.approx(best, rel=1e-6)
    assert cut.bound_s <= best


def test_refuses_what_a_cut_cannot_count() -> None:
    problem = replace(drawn(1, n_options=3), max_stages=3)
    assert not applies(problem)
    with pytest.raises(ProblemError, match="3 usable options"):
        cut_of(problem)
    assert not applies(replace(problem, max_stages=2, objective=Objective.PERIOD))


def test_many_ops() -> None:
    n = 20_000
    rng = np.random.default_rng(0)
    base = drawn(1)
    reach = rng.integers(1, 30, n)
    problem = replace(
        base,
        op_names=tuple(map(str, range(n))),
        time_s=rng.uniform(0.1, 1.0, (n, 2)),
        allowed=np.ones((n, 2), dtype=bool),
        producer=np.arange(n - 1),
        consumers=tuple(tuple({u + 1, min(n - 1, u + int(reach[u]))}) for u in range(n - 1)),
        to_caller=np.zeros(n - 1, dtype=bool),
        amount=rng.uniform(0.0, 0.1, n - 1),
        send=TransferCost.zero(2),
        recv=TransferCost.zero(2),
        link=TransferCost(np.zeros((3, 3)), np.ones((3, 3))),
        tensor_bytes=np.zeros(n - 1),
        live_bytes=np.zeros(n),
        colocate=(),
    )
    cut = cut_of(problem)
    assert cut.assignment is not None
    found = evaluate(problem, *cut.assignment).value(problem.objective)
    alone = problem.time_s.sum(axis=0).min()
    assert found < 0.95 * alone
    assert found * (1 - 1e-6) <= cut.bound_s <= found


def test_contiguous_problems_of_any_size_take_the_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    # As if the problem were too large for all other methods.
    monkeypatch.setattr("partitioner.solvers.pipeline._DP_UNITS", 0)
    n = 60
    quick = np.arange(n) % 30 < 12
    cost = uniform(2, 0.3, 0.1)
    problem = build(
        np.stack([np.where(quick, 1.0, 2.0), np.where(quick, 2.0, 1.0)], axis=1),
        [(op, (op + 1,), 1.0, False) for op in range(n - 1)] + [(n - 1, (), 1.0, True)],
        objective=Objective.LATENCY,
        latency_model=LatencyModel.SERIAL,
        send=cost,
        recv=cost,
    )
    # The order of stages lets no cut go back and forth: the bound is that of a free assignment.
    free = solve(replace(problem, contiguous=False)).stats
    back_and_forth = solve(problem).stats
    assert back_and_forth.bound == pytest.approx(free.objective, rel=1e-9)
    assert back_and_forth.objective > free.objective * 1.1
    once = problem.time_s.copy()
    once[12:] = [2.0, 1.0]
    assert solve(replace(problem, time_s=once)).stats.status is Status.OPTIMAL
