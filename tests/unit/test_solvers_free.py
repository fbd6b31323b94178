"""Free assignments against every assignment there is."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from problem_builder import build, uniform

from partitioner.errors import InfeasibleError, ProblemError
from partitioner.evaluation import evaluate
from partitioner.problem import Objective, Problem, Solution, Status, TransferCost
from partitioner.solvers import solve
from partitioner.solvers.bounds import load_prices
from partitioner.solvers.free.coarse import coarsened
from partitioner.solvers.free.cpsat import Outcome, canonical
from partitioner.solvers.free.model import FreeModel, free_model
from partitioner.solvers.free.packing import Packing
from partitioner.solvers.free.repartition import repartition
from partitioner.solvers.free.search import State, anneal, greedy
from partitioner.solvers.free.solve import _bound, run_free
from partitioner.solvers.limits import Clock, Limits
from partitioner.solvers.reduce import reduce_ops
from partitioner.solvers.session import Session


def table(rng: np.random.Generator, n: int, kind: int) -> TransferCost:
    """No cost, the same everywhere, or each its own."""
    if kind == 0:
        return TransferCost.zero(n - 1)
    if kind == 1:
        return TransferCost(np.full((n, n), 0.1), np.full((n, n), 0.3))
    return TransferCost(rng.uniform(0, 0.4, (n, n)), rng.uniform(0, 0.4, (n, n)))


def drawn(seed: int, objective: Objective = Objective.PERIOD) -> Problem:
    """A small problem with whatever features the seed gives it."""
    rng = np.random.default_rng(seed)
    n, m = int(rng.integers(1, 6)), int(rng.integers(1, 4))
    consumers = [tuple(v for v in range(u + 1, n) if rng.random() < 0.5) for u in range(-1, n)]
    tensors = [t for t in range(n + 1) if consumers[t]]
    time_s = rng.uniform(0, 4, (n, m)).round(2)
    if rng.random() < 0.5:
        time_s[:] = time_s[:, :1]
    time_s[rng.random((n, m)) < 0.05] = np.inf
    shared = rng.random() < 0.3
    sizes = rng.integers(1, 5, n + 1).astype(float)
    pools = np.zeros(m, dtype=np.int64) if rng.random() < 0.3 else np.arange(m)
    return Problem(
        op_names=tuple(f"op{i}" for i in range(n)),
        option_names=tuple(f"d{i}" for i in range(m)),
        time_s=time_s,
        allowed=rng.random((n, m)) < 0.97,
        host_s=np.full(m, rng.choice([0.0, 0.3])),
        uses=np.ones((m, 1), dtype=np.int64) if shared else np.eye(m, dtype=np.int64),
        capacity=np.full(1 if shared else m, rng.integers(1, 3)),
        pool_of=pools,
        pool_bytes=np.full(m, rng.choice([np.inf, 0.7]) * sizes.sum()),
        producer=np.array([t - 1 for t in tensors], dtype=np.int64),
        consumers=tuple(consumers[t] for t in tensors),
        to_caller=np.array([t > 0 and bool(rng.random() < 0.3) for t in tensors], dtype=bool),
        amount=rng.uniform(0, 3, len(tensors)),
        tensor_bytes=np.ones(len(tensors)),
        send=table(rng, m + 1, int(rng.integers(3))),
        recv=table(rng, m + 1, int(rng.integers(3))),
        link=table(rng, m + 1, int(rng.integers(3))),
        bus_of=np.full((m + 1, m + 1), rng.choice([-1, 0])),
        constant_bytes=sizes,
        constant_ops=(*((u,) for u in range(n)), tuple(range(n))),
        live_bytes=rng.integers(0, 3, n).astype(float),
        max_stages=int(rng.integers(1, 5)),
        queue_slots=int(rng.integers(2)),
        send_once=bool(rng.random() < 0.5),
        colocate=((0, n - 1),) if n > 2 and rng.random() < 0.3 else (),
        replicas=rng.integers(1, 3, m) if rng.random() < 0.3 else np.ones(m, dtype=np.int64),
        host_core=np.zeros(m, dtype=np.int64) if rng.random() < 0.3 else np.full(m, -1),
        objective=objective,
        contiguous=False,
        latency_cap_s=float(rng.choice([np.inf, 12.0])),
        period_cap_s=float(rng.choice([np.inf, 8.0])),
    )


def partitions(n: int) -> Iterator[list[int]]:
    """Stage of each op, stages numbered by their first op."""
    if n == 0:
        yield []
        return
    for rest in partitions(n - 1):
        for stage in range(max(rest, default=-1) + 2):
            yield [*rest, stage]


def least(problem: Problem) -> float:
    """The best objective of all."""
    best = float("inf")
    for stages in partitions(problem.n_ops):
        for options in itertools.product(range(problem.n_options), repeat=max(stages) + 1):
            evaluation = evaluate(problem, stages, [(option,) for option in options])
            best = min(best, evaluation.value(problem.objective))
    return best


def solved(problem: Problem, time_limit_s: float = 10.0) -> Solution | None:
    """The solution of the free methods, None when they prove that there is none."""
    try:
        session = Session(problem, Limits(time_limit_s=time_limit_s, workers=1), "free")
        run_free(session)
        return session.result()
    except InfeasibleError:
        return None


def of(problem: Problem) -> FreeModel:
    """The model of a problem."""
    return free_model(problem, reduce_ops(problem))


def check(problem: Problem) -> None:
    best, found = least(problem), solved(problem)
    if best == float("inf"):
        assert found is None
        return
    assert found is not None
    assert found.evaluation.value(problem.objective) == pytest.approx(best, rel=1e-6, abs=1e-9)
    assert found.stats.bound <= best * (1 + 1e-9)
    assert found.stats.status.value == "OPTIMAL"


@pytest.mark.parametrize("seed", range(20))
def test_period_matches_enumeration(seed: int) -> None:
    check(drawn(seed))


@pytest.mark.parametrize(
    "objective", [Objective.LATENCY, Objective.COPIES, Objective.MEMORY, Objective.DEVICES]
)
@pytest.mark.parametrize("seed", range(100, 105))
def test_other_objectives_match_enumeration(seed: int, objective: Objective) -> None:
    check(drawn(seed, objective))


@pytest.mark.parametrize("seed", range(200, 230))
def test_loads_are_those_of_evaluation(seed: int) -> None:
    problem = replace(drawn(seed), period_cap_s=float("inf"), latency_cap_s=float("inf"))
    model = of(problem)
    rng = np.random.default_rng(seed)
    if not all(model.slots_of):
        return
    slot_of = [int(rng.choice(slots)) for slots in model.slots_of]
    state = State(model, slot_of, float("inf"))
    for _ in range(6):
        unit = int(rng.integers(len(slot_of)))
        slot = int(rng.choice(model.slots_of[unit]))
        if slot != state.slot_of[unit]:
            state.move(unit, slot, state.change(unit, slot))
    evaluation = evaluate(problem, *model.assignment(state.slot_of))
    assert state.value() == pytest.approx(evaluation.period_s, abs=1e-9)
    assert (state.excess() <= 0) == evaluation.feasible
    fresh = State(model, state.slot_of, float("inf"))
    assert state.load == pytest.approx(fresh.load, abs=1e-9)


@pytest.mark.parametrize("seed", range(300, 310))
def test_packing_never_refutes_what_exists(seed: int) -> None:
    problem = replace(drawn(seed), latency_cap_s=float("inf"))
    best = least(problem)
    prices = load_prices(problem, reduce_ops(problem))
    if best in (0.0, float("inf")) or not prices:
        return
    model = of(problem)
    work = prices[-1].work
    packing = Packing(model, best, lambda: 1.0)
    for _ in range(3):
        bound, units = packing.surrogate(work, 1.0)
        assert bound <= best
        work = work if units is None else work * (1 - 0.2 * units)
    assert packing.refutes(best * (1 + 1e-9), work, 0.5) is not True


def packed(sizes: list[float], bins: int) -> Problem:
    """Independent ops on equal devices."""
    n = len(sizes)
    return Problem(
        op_names=tuple(map(str, range(n))),
        option_names=tuple(f"d{i}" for i in range(bins)),
        time_s=np.repeat(np.array(sizes)[:, None], bins, axis=1),
        allowed=np.ones((n, bins), dtype=bool),
        host_s=np.zeros(bins),
        uses=np.eye(bins, dtype=np.int64),
        capacity=np.ones(bins, dtype=np.int64),
        pool_of=np.arange(bins),
        pool_bytes=np.full(bins, np.inf),
        producer=np.zeros(0, dtype=np.int64),
        consumers=(),
        to_caller=np.zeros(0, dtype=bool),
        amount=np.zeros(0),
        tensor_bytes=np.zeros(0),
        send=TransferCost.zero(bins),
        recv=TransferCost.zero(bins),
        link=TransferCost.zero(bins),
        bus_of=np.full((bins + 1, bins + 1), -1),
        constant_bytes=np.zeros(0),
        constant_ops=(),
        live_bytes=np.zeros(n),
        max_stages=bins,
        contiguous=False,
    )


def test_packing_refutes_what_the_average_allows() -> None:
    # Seven ops of 3 on three devices: one holds three of them, though the average is 7.
    problem = packed([3.0] * 7, 3)
    packing = Packing(of(problem), 9.0, lambda: 10.0)
    # A third of them is more than two.
    assert packing.surrogate(np.full(7, 3.0), 10.0)[0] == pytest.approx(9.0, rel=1e-4)
    assert packing.refutes(8.9, np.full(7, 3.0), 10.0) is True
    assert packing.refutes(9.0, np.full(7, 3.0), 10.0) is False


def test_canonical_renames_equal_slots_only() -> None:
    problem = packed([5.0, 4.0, 3.0, 2.0], 3)
    model = of(problem)
    assert canonical(model, [2, 1, 2, 0]) == [0, 1, 0, 2]


def test_annealing_improves_on_greedy() -> None:
    rng = np.random.default_rng(3)
    problem = packed(rng.uniform(1, 2, 40).round(3).tolist(), 4)
    model = of(problem)
    start = greedy(model, range(40))
    assert start is not None
    before = State(model, start, float("inf")).value()
    turns = itertools.count()
    values = [v for v, _ in anneal(model, start, 0, lambda: next(turns) < 40, 10_000)]
    assert values == sorted(values, reverse=True)
    assert values[-1] < before


def woven(seed: int) -> Problem:
    """Ten ops on three devices, two of them equal, each fed by two of those before."""
    rng = np.random.default_rng(seed)
    n = 10
    readers: list[set[int]] = [set() for _ in range(n)]
    for op in range(1, n):
        for maker in rng.integers(max(0, op - 4), op, 2):
            readers[maker].add(op)
    return build(
        rng.uniform(1, 4, (n, 1)).round(2) * np.array([1.0, 1.0, 1.5]),
        [(u, tuple(sorted(r)), float(rng.uniform(0.2, 2)), not r) for u, r in enumerate(readers)],
        send=uniform(3, 0.05, 0.2),
        recv=uniform(3, 0.05, 0.2),
        send_once=bool(seed % 2),
        contiguous=False,
    )


@pytest.mark.parametrize("seed", range(4))
def test_searches_and_packing_enclose_the_optimum(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As if the problem were large: walks, coarser problems, packing and repartition alone.
    monkeypatch.setattr("partitioner.solvers.free.solve._FEW", 0)
    monkeypatch.setattr("partitioner.solvers.free.solve._contiguous", lambda _: None)
    monkeypatch.setattr(
        "partitioner.solvers.free.solve.prove",
        lambda _, *, floor, **__: Outcome(floor, finished=False),
    )
    problem = woven(seed)
    best = solve(problem, method="brute").stats.objective
    session = Session(problem, Limits(time_limit_s=1.5, workers=1), "free")
    run_free(session)
    assert session.objective == pytest.approx(best, rel=1e-6)
    plain = Session(problem, Limits(time_limit_s=1.5, workers=1), "free")
    _bound(plain)
    assert plain.bound < session.bound <= best * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(4))
def test_repartition_and_coarser_problems_lead_to_the_optimum(seed: int) -> None:
    problem = woven(seed)
    best = solve(problem, method="brute").stats.objective
    model = of(problem)
    start = greedy(model, range(len(model.slots_of)))
    clock = Clock(2.0)
    found = [
        slots for _, slots in repartition(model, start, Limits(workers=1), lambda: clock.left_s)
    ]
    values = [evaluate(problem, *model.assignment(slots)).period_s for slots in [start, *found]]
    assert values == sorted(values, reverse=True)
    assert values[-1] == pytest.approx(best, rel=1e-6)
    # What is feasible in the coarser problem has the same value in the problem.
    smaller = coarsened(problem, model.units, best, 0.03, 0.4)
    coarse = of(smaller)
    assert len(coarse.units) < len(model.units)
    least_there = solve(smaller, method="brute")
    there = evaluate(problem, least_there.stage_of, least_there.placements)
    assert there.period_s == least_there.stats.objective >= best


def test_contiguous_problems_are_refused() -> None:
    session = Session(replace(drawn(1), contiguous=True), Limits(time_limit_s=1.0), "free")
    with pytest.raises(ProblemError, match="contiguous"):
        run_free(session)


@pytest.mark.parametrize("seed", range(6))
def test_sizes_that_are_no_whole_numbers_of_bytes(seed: int) -> None:
    # In gigabytes, say: rounded to whole ones nothing would be left of them.
    rng = np.random.default_rng(seed)
    n = 7
    sizes = rng.uniform(0.1, 0.4, n)
    problem = build(
        rng.uniform(1, 4, (n, 2)) * np.array([1.0, 3.0]),
        [(op, (op + 1,), 1.0, False) for op in range(n - 1)] + [(n - 1, (), 1.0, True)],
        contiguous=False,
        constant_bytes=sizes * (1.8 / sizes.sum()),
        constant_ops=tuple((op,) for op in range(n)),
        pool_of=np.arange(2),
        pool_bytes=np.full(2, 1.0),
    )
    best = solve(problem, method="brute").stats.objective
    found = solve(problem, method="cpsat", workers=1)
    assert found.stats.status is Status.OPTIMAL
    assert found.stats.objective == pytest.approx(best, rel=1e-6)


def test_a_model_that_takes_longer_to_build_than_there_is_time_is_not_built(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem = drawn(3)
    monkeypatch.setattr("partitioner.solvers.cpsat.search._MOST_TERMS", 0)
    found = solve(problem, method="cpsat", time_limit_s=5.0)
    assert found.stats.wall_s < 4.0
    assert found.stats.bound <= solve(problem, method="brute").stats.objective * (1 + 1e-9)


@pytest.mark.parametrize("objective", list(Objective))
def test_a_cap_at_the_only_assignment_among_costs_far_apart(objective: Objective) -> None:
    # Two devices share 90 us of work; the cap leaves one way, which neither taking the largest
    # first finds nor integers of which the last op's worst time is a small number.
    sizes = [16.0, 17.0, 14.0, 11.0, 9.0, 9.0, 7.0, 7.0]
    n = len(sizes) + 1
    problem = build(
        1e-6 * np.array([*([size, size] for size in sizes), [0.0, 1e27]]),
        [(n - 1, (), 1.0, True)],
        objective=objective,
        contiguous=False,
        period_cap_s=45e-6,
        constant_bytes=np.full(n, 1e9),
        constant_ops=tuple((op,) for op in range(n)),
    )
    best = solve(problem, method="brute").stats.objective
    found = solve(problem, method="cpsat", workers=1)
    assert found.stats.status is Status.OPTIMAL
    assert found.stats.objective == pytest.approx(best, rel=1e-6)


@pytest.mark.parametrize(
    ("excess", "best"), [(0.5e-9, 0.5), (1.0001e-9, 1.0), (2e-9, 1.0), (1e-7, 1.0)]
)
def test_a_cap_broken_by_less_than_the_rounding(excess: float, best: float) -> None:
    # Two replicas halve the period, but take a little more than the cap; evaluation forgives 1e-9.
    problem = build(
        np.array([[1.0, 1.0 + excess]]),
        [(0, (), 1.0, True)],
        replicas=np.array([1, 2]),
        contiguous=False,
        latency_cap_s=1.0,
    )
    found = solve(problem, method="cpsat", workers=1)
    assert found.stats.objective == pytest.approx(best)
    assert found.stats.status is Status.OPTIMAL
