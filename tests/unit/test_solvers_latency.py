"""Latency of the model 'atomic' against an enumeration of its own."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import networkx as nx
import numpy as np
import pytest
from problem_builder import build, uniform

from partitioner.errors import InfeasibleError, ProblemError
from partitioner.evaluation import evaluate
from partitioner.problem import (
    LatencyModel,
    Objective,
    Problem,
    Solution,
    Status,
    TransferCost,
)
from partitioner.solvers import solve
from partitioner.solvers.latency.rules import applies
from partitioner.solvers.latency.solve import run_latency
from partitioner.solvers.limits import Limits
from partitioner.solvers.reduce import reduce_ops
from partitioner.solvers.session import Session


def drawn(seed: int, most_ops: int = 7) -> Problem:
    """A seeded problem: equal accelerators that pay for transfers beside an unlimited processor."""
    rng = np.random.default_rng(seed)
    n, k = int(rng.integers(1, most_ops + 1)), int(rng.integers(1, 4))
    density = rng.choice([0.2, 0.5])
    edges = [(a, b) for a in range(n) for b in range(a + 1, n) if rng.random() < density]
    time = np.repeat(np.round(rng.uniform(0, 5, (n, 1)), 1), k + 1, axis=1)
    time[:, k] = time[:, 0] * rng.choice([1, 3, 10])
    time[rng.random(n) < 0.2] = 0.0
    if rng.random() < 0.3:
        time[rng.integers(n), :k] = np.inf
    producers = sorted({a for a, _ in edges})
    amount = np.round(rng.uniform(0, rng.choice([0.5, 4]), len(producers)), 1)
    amount[rng.random(len(producers)) < 0.2] = 0.0
    together = rng.choice(n, 2, replace=False).tolist() if n > 1 and rng.random() < 0.4 else []
    memory = float(rng.choice([3, 5, 8, 50]))
    size = np.round(rng.uniform(0, 3, n), 1)
    return instance(
        time, edges, dict(zip(producers, amount.tolist(), strict=True)), size, memory, together
    )


def instance(
    time: np.ndarray,
    edges: list[tuple[int, int]],
    amount: dict[int, float],
    size: np.ndarray,
    memory: float,
    together: list[int],
) -> Problem:
    n, m = time.shape
    k = m - 1
    paid = np.zeros((m + 1, m + 1))
    paid[:k, :m] = 1.0
    nothing = np.zeros((m + 1, m + 1))
    return Problem(
        op_names=tuple(f"op{i}" for i in range(n)),
        option_names=(*(f"acc{i}" for i in range(k)), "cpu"),
        time_s=time,
        allowed=np.ones((n, m), dtype=np.bool_),
        host_s=np.zeros(m),
        uses=np.eye(m, k, dtype=np.int64),
        capacity=np.ones(k, dtype=np.int64),
        pool_of=np.arange(m),
        pool_bytes=np.array([memory] * k + [np.inf]),
        producer=np.array(list(amount), dtype=np.int64),
        consumers=tuple(tuple(b for a, b in edges if a == maker) for maker in amount),
        to_caller=np.zeros(len(amount), dtype=np.bool_),
        amount=np.array(list(amount.values())),
        tensor_bytes=np.zeros(len(amount)),
        send=TransferCost(nothing, paid),
        recv=TransferCost(nothing, paid.T),
        link=TransferCost.zero(m),
        bus_of=np.full((m + 1, m + 1), -1),
        constant_bytes=size,
        constant_ops=tuple((i,) for i in range(n)),
        live_bytes=np.zeros(n),
        max_stages=n,
        send_once=True,
        colocate=(tuple(sorted(together)),) if together else (),
        objective=Objective.LATENCY,
        latency_model=LatencyModel.ATOMIC,
    )


def assignments(problem: Problem) -> Iterator[tuple[list[int], list[tuple[int]]]]:
    """Every op on the processor or an accelerator, one stage each, in an order along the edges."""
    members = reduce_ops(problem).members
    cpu = problem.n_options - 1
    for chosen in itertools.product(range(problem.n_options), repeat=len(members)):
        node = [0] * problem.n_ops
        for unit, option in enumerate(chosen):
            for op in members[unit]:
                node[op] = option if option < cpu else cpu + unit
        stages = nx.DiGraph()
        stages.add_nodes_from(node)
        stages.add_edges_from((node[a], node[b]) for a, b in problem.edges if node[a] != node[b])
        if nx.is_directed_acyclic_graph(stages):
            order = list(nx.topological_sort(stages))
            yield [order.index(each) for each in node], [(min(each, cpu),) for each in order]


def least(problem: Problem) -> float:
    values = (evaluate(problem, *each).value(Objective.LATENCY) for each in assignments(problem))
    return min(values, default=float("inf"))


def solved(problem: Problem, time_limit_s: float = 20.0, hint: Solution | None = None) -> Solution:
    session = Session(problem, Limits(time_limit_s=time_limit_s, hint=hint, workers=1), "latency")
    run_latency(session)
    return session.result()


@pytest.mark.parametrize("first", range(0, 40, 10))
def test_optimum_is_that_of_enumeration(first: int) -> None:
    for seed in range(first, first + 10):
        problem = drawn(seed, most_ops=6)
        best = least(problem)
        if best == float("inf"):
            with pytest.raises(InfeasibleError):
                solved(problem)
            continue
        solution = solved(problem)
        assert solution.stats.status is Status.OPTIMAL, seed
        assert solution.stats.objective == pytest.approx(best, rel=1e-6, abs=1e-9), seed
        assert solution.stats.bound <= best * (1 + 1e-9), seed


def test_limits_on_the_period_are_kept() -> None:
    time = np.array([[3.0, 3.0, 30.0], [3.0, 3.0, 30.0]])
    problem = instance(time, [(0, 1)], {0: 1.0}, np.zeros(2), 10.0, [])
    assert solved(problem).stats.objective == pytest.approx(6.0)
    # Two stages, each with its transfer.
    assert solved(replace(problem, period_cap_s=4.0)).stats.objective == pytest.approx(8.0)
    with pytest.raises(InfeasibleError):
        solved(replace(problem, period_cap_s=2.0))


def test_limits_on_the_latency_are_kept() -> None:
    problem = layered(4, 2, seed=5)
    best = solved(problem).stats.objective
    assert solved(replace(problem, latency_cap_s=best)).stats.objective == pytest.approx(best)
    with pytest.raises(InfeasibleError):
        solved(replace(problem, latency_cap_s=best * 0.999))


def test_groups_that_share_a_device_may_run_apart_on_the_processor() -> None:
    better = 0
    for seed in range(400, 500):
        together = drawn(seed, most_ops=5)
        if not together.colocate or together.n_options > 3:
            continue
        problem = replace(together, colocate=(), same_option=together.colocate)
        best = least(problem)
        if best == float("inf"):
            continue
        solution = solve(problem, time_limit_s=10.0, workers=1)
        assert solution.stats.status is Status.OPTIMAL, seed
        assert solution.stats.objective == pytest.approx(best, rel=1e-6, abs=1e-9), seed
        again = evaluate(problem, solution.stage_of, solution.placements)
        assert again.value(Objective.LATENCY) == solution.stats.objective
        better += best < least(together) * (1 - 1e-6)
    assert better > 0


def test_a_group_named_twice_and_one_that_must_share_a_stage_too() -> None:
    apart = 0
    for seed in range(400, 440):
        together = drawn(seed, most_ops=5)
        if not together.colocate or together.n_options > 3 or least(together) == float("inf"):
            continue
        once = replace(together, colocate=(), same_option=together.colocate)
        free = solve(once, workers=1).stats.objective
        twice = replace(once, same_option=together.colocate * 2)
        assert solve(twice, workers=1).stats.objective == pytest.approx(free, rel=1e-6), seed
        both = replace(together, same_option=together.colocate)
        found = solve(both, workers=1)
        assert found.evaluation.feasible, seed
        assert found.stats.objective == pytest.approx(least(together), rel=1e-6), seed
        apart += free < found.stats.objective * (1 - 1e-6)
    assert apart > 0


def test_groups_that_share_a_device_are_refused_where_nothing_treats_them() -> None:
    problem = replace(layered(4, 2, seed=5), same_option=((0, 1),))
    with pytest.raises(ProblemError, match="method 'cpsat' does not treat groups"):
        solve(problem, method="cpsat")
    with pytest.raises(ProblemError, match="of the model 'atomic' only; colocate them"):
        solve(replace(problem, objective=Objective.PERIOD))
    with pytest.raises(ProblemError, match="one stage and at most one any number"):
        solve(replace(problem, uses=np.zeros_like(problem.uses)))


def test_no_time_gives_an_assignment_and_a_bound_below_the_optimum() -> None:
    for seed in range(300, 330):
        problem = drawn(seed)
        try:
            quick = solved(problem, time_limit_s=0.0)
        except InfeasibleError:
            continue
        exact = solved(problem)
        assert quick.evaluation.feasible
        assert quick.stats.bound <= exact.stats.objective * (1 + 1e-9)
        assert quick.stats.objective >= exact.stats.objective * (1 - 1e-9)


def test_a_hint_is_never_made_worse() -> None:
    problem = layered(8, 3, seed=3)
    hint = solved(problem, time_limit_s=0.5)
    again = solved(problem, time_limit_s=0.0, hint=hint)
    assert again.stats.objective <= hint.stats.objective


def test_wide_graphs_have_an_assignment_and_a_bound() -> None:
    problem = layered(8, 12, seed=1)
    solution = solved(problem, time_limit_s=1.0)
    alone = evaluate(problem, range(problem.n_ops), [(problem.n_options - 1,)] * problem.n_ops)
    assert solution.stats.objective <= alone.latency_s
    assert 0 < solution.stats.bound <= solution.stats.objective


def test_times_far_apart() -> None:
    problem = drawn(7)
    slow = problem.time_s.copy()
    slow[0, -1] = 1e18
    tiny = TransferCost(problem.send.base_s, problem.send.per_unit_s * 1e-9)
    mixed = replace(problem, time_s=slow * np.array([1e-9] * (slow.shape[1] - 1) + [1]), send=tiny)
    best = least(mixed)
    assert solved(mixed).stats.objective == pytest.approx(best, rel=1e-6)


def bundled(tensors: int) -> Problem:
    """Four ops in a row, each best on a device of its own; the first hands tensors to the last."""
    wires = [(0, (3,), 1.0, False)] * tensors + [(op, (op + 1,), 1.0, False) for op in range(3)]
    cost = uniform(4, 0.0, 0.1)
    times = 4.0 - 3.0 * np.eye(4)
    times[[0, 3]] *= 10.0
    return build(
        times,
        [*wires, (3, (), 1.0, True)],
        objective=Objective.LATENCY,
        send=cost,
        recv=cost,
        send_once=True,
        constant_bytes=np.ones(4),
        constant_ops=tuple((op,) for op in range(4)),
        pool_of=np.arange(4),
        pool_bytes=np.full(4, 2.5),
    )


@pytest.mark.parametrize("tensors", [3, 200])
def test_any_number_of_tensors_may_be_open(tensors: int) -> None:
    problem = bundled(tensors)
    best = solve(problem, method="brute").stats.objective
    solution = solved(problem)
    assert solution.stats.status is Status.OPTIMAL
    assert solution.stats.objective == pytest.approx(best, rel=1e-9)
    assert best * (1 - 1e-6) <= solution.stats.bound <= best * (1 + 1e-9)


def test_all_downsets_are_searched_where_a_few_gave_no_assignment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # No option alone has the memory for all, so that nothing is known before.
    monkeypatch.setattr("partitioner.solvers.latency.solve._quick", lambda *_, **__: None)
    problem = bundled(2)
    solution = solved(problem)
    best = solve(problem, method="brute").stats.objective
    assert solution.stats.objective == pytest.approx(best, rel=1e-9)
    with pytest.raises(InfeasibleError):
        solved(replace(problem, pool_bytes=np.full(4, 0.5)))


def test_transfers_that_depend_on_both_ends_are_left_to_others() -> None:
    problem = layered(2, 2, seed=0)
    uneven = problem.send.per_unit_s.copy()
    uneven[0, 1] = 7.0
    other = replace(problem, send=TransferCost(problem.send.base_s, uneven))
    assert applies(problem, reduce_ops(problem))
    assert not applies(other, reduce_ops(other))


def layered(layers: int, width: int, seed: int) -> Problem:
    """Layers of ops, each fed by two of the layer before."""
    rng = np.random.default_rng(seed)
    n = layers * width
    edges = sorted(
        {
            (int(a), op)
            for op in range(width, n)
            for a in rng.integers(op // width * width - width, op // width * width, 2)
        }
    )
    time = np.repeat(rng.uniform(1, 5, (n, 1)), 4, axis=1) * [1, 1, 1, 8]
    amount = {a: float(rng.uniform(0, 1)) for a in sorted({a for a, _ in edges})}
    return instance(time, edges, amount, rng.uniform(1, 3, n), 0.6 * n, [])
