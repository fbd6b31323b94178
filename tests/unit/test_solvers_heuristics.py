from __future__ import annotations

import random
import sys
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from problem_builder import build, uniform

from partitioner.errors import InfeasibleError, NoneFoundError
from partitioner.evaluation import evaluate
from partitioner.problem import Problem, Status, TransferCost
from partitioner.solvers import SOLVERS, Limits, solve
from partitioner.solvers.bounds import load_prices, lower_bound
from partitioner.solvers.heuristics import incumbent
from partitioner.solvers.lines.line import Flows, Line
from partitioner.solvers.lines.orders import orders
from partitioner.solvers.pipeline import begin
from partitioner.solvers.reduce import reduce_ops
from partitioner.solvers.session import Session
from partitioner.solvers.windows import closing
from partitioner.solvers.windows.closing import close_in

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import synthetic


def small(seed: int) -> Problem:
    """Up to 8 ops on equal, two kinds of, or unequal options; the optimum is a matter of ms."""
    chance, rng = random.Random(seed), np.random.default_rng(seed)
    n, m = chance.randint(3, 8), chance.choice([2, 2, 3])
    tensors: list[tuple[int, tuple[int, ...], float, bool]] = []
    for op in range(n):
        later = list(range(op + 1, n))
        readers = sorted(chance.sample(later, min(len(later), chance.choice([0, 1, 1, 2, 3]))))
        output = not readers or chance.random() < 0.2
        tensors.append((op, tuple(readers), chance.uniform(1, 9), output))
    if chance.random() < 0.7:
        readers = sorted(chance.sample(range(n), 2))
        tensors.append((-1, tuple(readers), chance.uniform(1, 9), False))
    kind = chance.choice(["equal", "equal", "classes", "unequal"])
    factor = {
        "equal": np.ones((n, m)),
        "classes": np.where(np.arange(m) < 1, 1.0, rng.uniform(1.5, 3, (n, 1))),
        "unequal": rng.uniform(0.5, 2, (n, m)),
    }[kind]
    level = chance.choice([0.05, 0.3, 1.0])
    fields: dict[str, object] = {
        "send": uniform(m, level * chance.random(), level * chance.random() / 3),
        "recv": uniform(m, level * chance.random(), level * chance.random() / 3),
        "send_once": chance.random() < 0.4,
        "host_s": np.full(m, chance.choice([0.0, 0.1])),
        "max_stages": chance.randint(1, m),
    }
    if chance.random() < 0.3:
        fields["replicas"] = np.full(m, 2)
    if chance.random() < 0.2:
        fields["colocate"] = (tuple(sorted(chance.sample(range(n), 2))),)
    if chance.random() < 0.3:
        sizes = rng.integers(1, 10, n).astype(float)
        fields |= {
            "pool_of": np.arange(m),
            "live_bytes": rng.integers(0, 10, n).astype(float),
            "constant_ops": tuple((op,) for op in range(n)),
            "constant_bytes": sizes,
            "queue_slots": 1,
            "pool_bytes": rng.uniform(0.8, 2, m) * (sizes.sum() + 20),
        }
    return build(rng.uniform(1, 10, (n, 1)) * factor, tensors, **fields)


def optimum(problem: Problem) -> float | None:
    try:
        return SOLVERS["brute"](problem, Limits()).stats.objective
    except (InfeasibleError, NoneFoundError):
        return None


@pytest.mark.parametrize("first", range(0, 160, 40))
def test_incumbents_and_bounds_enclose_the_optimum(first: int) -> None:
    closed = 0
    for seed in range(first, first + 40):
        problem = small(seed)
        best = optimum(problem)
        if best is None:
            continue
        session = Session(problem, Limits(time_limit_s=20), "auto")
        prices = begin(session)
        assert session.bound <= best * (1 + 1e-9), seed
        assert session.objective >= best * (1 - 1e-9), seed
        close_in(session, prices)
        assert session.bound <= best * (1 + 1e-9), seed
        assert session.objective >= best * (1 - 1e-9), seed
        closed += session.proven
    assert closed >= 8


def crossing(seed: int) -> Problem:
    """Up to 14 ops on 3 to 5 equal options; tensors cross several cuts."""
    chance, rng = random.Random(seed), np.random.default_rng(seed)
    n, m, reach = chance.randint(8, 14), chance.choice([3, 4, 5]), chance.choice([3, 6, 14])
    tensors: list[tuple[int, tuple[int, ...], float, bool]] = []
    for op in range(n):
        later = range(op + 1, min(n, op + 1 + reach))
        readers = sorted(chance.sample(later, min(len(later), chance.choice([0, 1, 2, 2, 3]))))
        tensors.append((op, tuple(readers), chance.uniform(1, 9), not readers))
    level = chance.choice([0.05, 0.1, 0.3])
    return build(
        rng.uniform(chance.choice([1, 8]), 11, (n, 1)) * np.ones((n, m)),
        tensors,
        send=uniform(m, level * chance.random(), level / 4),
        recv=uniform(m, level * chance.random(), level / 4),
        send_once=chance.random() < 0.3,
        max_stages=m,
    )


@pytest.mark.parametrize("rows", [None, (3, 8)])
def test_windows_of_tensors_that_cross_several_cuts(
    rows: tuple[int, int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if rows is not None:
        monkeypatch.setattr(closing, "_ROWS", rows[0])
        monkeypatch.setattr(closing, "_MOST_ROWS", rows[1])
    closed = 0
    for seed in range(24):
        problem = crossing(seed)
        best = SOLVERS["dp"](problem, Limits()).stats.objective
        session = Session(problem, Limits(time_limit_s=20), "auto")
        close_in(session, begin(session))
        assert session.bound <= best * (1 + 1e-9), seed
        assert session.objective >= best * (1 - 1e-9), seed
        closed += session.proven
    assert closed >= (3 if rows else 12)


def test_a_line_prices_stages_as_evaluation_does() -> None:
    problem = synthetic.problem("inception", 60, 3)
    units = reduce_ops(problem)
    order = next(islice(orders(units, problem.amount, 0), 1, None))
    flows = Flows.of(problem, units, [0])
    line = Line(flows, order)
    cuts = np.array([0, 17, 41, 60])
    moved = line.transfers(0, cuts)
    own = line.own(0)[cuts]
    stage_of = np.empty(60, dtype=int)
    stage_of[order] = np.repeat([0, 1, 2], np.diff(cuts))
    scored = evaluate(problem, stage_of.tolist(), ((0,), (1,), (2,)))
    assert scored.copies == len({*_hops(problem, stage_of)})
    sends_one_each = all(len({s for t, s in _hops(problem, stage_of) if t == tensor}) <= 1
                         for tensor in range(problem.n_tensors))  # fmt: skip
    assert sends_one_each
    for stage in range(3):
        priced = own[stage + 1] - own[stage] + moved[stage, stage + 1] + problem.host_s[0]
        assert priced == pytest.approx(scored.busy_s[stage][0], rel=1e-9)


def _hops(problem: Problem, stage_of: np.ndarray) -> list[tuple[int, int]]:
    return [
        (tensor, int(stage))
        for tensor, readers in enumerate(problem.consumers)
        if problem.producer[tensor] >= 0
        for stage in {int(stage_of[r]) for r in readers} - {int(stage_of[problem.producer[tensor]])}
    ]


def test_orders_are_topological_and_differ() -> None:
    problem = synthetic.problem("nasnet", 300, 2)
    units = reduce_ops(problem)
    found = list(islice(orders(units, problem.amount, 1), 5))
    for order in found:
        place = np.argsort(order)
        assert sorted(order.tolist()) == list(range(300))
        assert all(place[u] < place[v] for v, before in enumerate(units.before) for u in before)
    assert len({order.tobytes() for order in found}) == 5


@pytest.mark.parametrize("shape", list(synthetic.SHAPES))
def test_synthetic_problems_have_the_size_asked_for(shape: str) -> None:
    problem = synthetic.problem(shape, 500, 4, "classes", seed=3)
    again = synthetic.problem(shape, 500, 4, "classes", seed=3)
    assert (problem.n_ops, problem.n_options) == (500, 4)
    assert np.array_equal(problem.time_s, again.time_s)
    assert problem.consumers == again.consumers
    copies = synthetic.BASE_S + problem.amount[:-1] * synthetic.PER_BYTE_S
    assert 0.1 < copies.mean() / problem.time_s[:, 0].mean() < 0.8


def test_an_incumbent_of_thousands_of_ops_is_near_the_bound() -> None:
    problem = synthetic.problem("transformer", 5_000, 8)
    units = reduce_ops(problem)
    prices = load_prices(problem, units)
    bound = lower_bound(problem, units, prices)
    found = incumbent(problem, units, Limits(), prices, bound)
    assert found is not None
    assert found.evaluation.feasible
    assert bound <= found.stats.objective <= 1.01 * bound


def test_windows_prove_what_tables_of_downsets_cannot_hold() -> None:
    problem = synthetic.problem("transformer", 1_000, 8)
    found = solve(problem, time_limit_s=30)
    assert found.stats.status is Status.OPTIMAL


def test_many_unequal_devices_are_taken_in_turn() -> None:
    # 2 ** 16 sets of devices are too many for a table.
    problem = synthetic.problem("chain", 300, 16, "unequal")
    found = solve(problem, time_limit_s=0)
    whole = min(
        evaluate(problem, [0] * 300, ((option,),)).period_s for option in range(problem.n_options)
    )
    assert found.evaluation.feasible
    assert found.stats.objective < whole / 4


def test_memory_splits_what_time_would_not() -> None:
    # Copies make one stage best; memory holds half of the constants.
    tensors = [(op, (op + 1,), 1.0, False) for op in range(9)] + [(9, (), 1.0, True)]
    problem = build(
        np.ones((10, 2)),
        tensors,
        send=TransferCost.zero(2),
        recv=uniform(2, 20.0, 0.0),
        constant_bytes=np.ones(10),
        constant_ops=tuple((op,) for op in range(10)),
        pool_of=np.array([0, 1]),
        pool_bytes=np.array([5.0, 5.0]),
    )
    found = solve(problem, time_limit_s=0)
    assert found.stage_of == (0,) * 5 + (1,) * 5
