from __future__ import annotations

import dataclasses
from functools import cache

import numpy as np
import pytest
from problem_builder import build, uniform

from partitioner.errors import InfeasibleError
from partitioner.problem import LatencyModel, Objective, Problem, TransferCost
from partitioner.solvers import solve
from partitioner.solvers.diagnosis.diagnose import Cause, describe, diagnose

INF = np.inf


def chain(times: list[list[float]], **fields: object) -> Problem:
    """Ops in a row with the given times."""
    n = len(times)
    tensors = [(i, (i + 1,), 1.0, False) for i in range(n - 1)] + [(n - 1, (), 1.0, True)]
    return build(np.array(times, dtype=float), tensors, **fields)


LATENCY = {"objective": Objective.LATENCY, "latency_model": LatencyModel.ATOMIC}


def solvable(problem: Problem) -> bool:
    try:
        return solve(problem).evaluation.feasible
    except InfeasibleError:
        return False


def holding(sizes: list[float], budgets: list[float], **fields: object) -> Problem:
    """A chain whose ops hold constants, on devices with a memory of their own each."""
    m = len(budgets)
    return chain(
        [[1.0] * m] * len(sizes),
        constant_bytes=np.array(sizes, dtype=float),
        constant_ops=tuple((op,) for op in range(len(sizes))),
        pool_of=np.arange(m),
        pool_bytes=np.array(budgets, dtype=float),
        **fields,
    )


def by_limit(causes: tuple[Cause, ...], start: str) -> Cause:
    (found,) = (cause for cause in causes if cause.limit.startswith(start))
    return found


def pinned(n: int, m: int, pins: dict[int, int]) -> np.ndarray:
    allowed = np.ones((n, m), dtype=bool)
    for op, option in pins.items():
        allowed[op] = np.arange(m) == option
    return allowed


INFEASIBLE: dict[str, Problem] = {
    "op without option": chain([[1, 1], [INF, INF], [1, 1]]),
    "pin to what cannot run it": chain([[1, 1], [INF, 1], [1, 1]], allowed=pinned(3, 2, {1: 0})),
    "pins across": chain([[1, 1]] * 3, allowed=pinned(3, 2, {0: 0, 1: 1, 2: 0})),
    "colocated, apart by support": chain([[1, INF], [INF, 1]], colocate=((0, 1),)),
    "colocated, apart by pins": chain(
        [[1, 1]] * 4, colocate=((0, 3), (1, 2)), allowed=pinned(4, 2, {0: 0, 3: 1})
    ),
    "one option, apart by support": chain(
        [[1, INF], [1, 1], [INF, 1]], same_option=((0, 2), (0, 1)), **LATENCY
    ),
    "one option, memory": holding(
        [3, 1, 3],
        [4, 5, INF],
        same_option=((0, 2),),
        uses=np.diag([1, 1, 0]),
        latency_cap_s=2.0,
        send=TransferCost(*(np.diag([1.0, 1, 1], 1) for _ in range(2))),
        max_stages=3,
        **LATENCY,
    ),
    "one op too large": holding([3, 10, 2], [8, 6]),
    "all together too large": holding([5, 6, 7, 4], [9, 9]),
    "resources": chain(
        [[1, 1]] * 2,
        uses=np.array([[2, 0], [0, 3]]),
        capacity=np.array([1, 1]),
    ),
    "stages": holding([4, 4, 4], [5, 5, 5], max_stages=2),
    "period cap": chain([[4, 9], [3, 8], [5, 2]], period_cap_s=6.0),
    "latency cap": chain(
        [[4, 9], [3, 8], [5, 2]],
        send=uniform(2, 1.0, 0.0),
        period_cap_s=7.5,
        latency_cap_s=8.0,
    ),
    "memory beside a pin": holding([10, 1], [8, 6], allowed=pinned(2, 2, {1: 1})),
    "op without option and memory": dataclasses.replace(
        holding([5, 6, 7], [9, 8]), time_s=np.array([[1, 1], [INF, INF], [1, 1]])
    ),
    "replicas": dataclasses.replace(holding([4, 4], [7, 3]), replicas=np.array([2, 1])),
    "budgets far apart": holding([50, 40, 7], [100, 3], allowed=pinned(3, 2, {2: 1})),
    "free": holding([4, 3, 4, 3], [7, 6], contiguous=False),
}


def less(problem: Problem, lifted: Problem) -> Problem | None:
    """A lift a little smaller than from `problem` to `lifted`; None where it is yes or no."""
    for field in ("pool_bytes", "period_cap_s", "latency_cap_s"):
        low, high = getattr(problem, field), getattr(lifted, field)
        if np.any(high > low):
            return dataclasses.replace(lifted, **{field: high - (high > low) * 1e-5 * high})
    for field in ("capacity", "max_stages"):
        low, high = getattr(problem, field), getattr(lifted, field)
        if np.any(high > low):
            return dataclasses.replace(lifted, **{field: high - (high > low)})
    return None


@cache
def causes_of(name: str) -> tuple[Cause, ...]:
    return diagnose(INFEASIBLE[name])


@pytest.fixture(scope="module", params=INFEASIBLE)
def case(request: pytest.FixtureRequest) -> tuple[Problem, tuple[Cause, ...]]:
    return INFEASIBLE[request.param], causes_of(request.param)


def test_causes_are_found_and_proven(case: tuple[Problem, tuple[Cause, ...]]) -> None:
    problem, causes = case
    assert not solvable(problem)
    assert causes
    assert len({cause.alone for cause in causes}) == 1
    for cause in causes:
        assert cause.exact
        assert cause.shortfall > 0


def test_the_lift_suffices_and_a_little_less_does_not(
    case: tuple[Problem, tuple[Cause, ...]],
) -> None:
    problem, causes = case
    for cause in causes:
        rest = problem
        for other in () if cause.alone else causes:
            rest = rest if other is cause else other.apply(rest)
        assert not solvable(rest), "the others suffice"
        lifted = cause.apply(rest)
        assert solvable(lifted), cause
        smaller = less(rest, lifted)
        assert smaller is None or not solvable(smaller), cause


@pytest.mark.parametrize(
    ("name", "limit", "demand", "capacity"),
    [
        ("op without option", "op 'op1'", 1, 0),
        ("one option, apart by support", "one option of (op0, op2)", 1, 0),
        ("one op too large", "memory pool 0", 12, 8),
        ("one op too large", "memory pool 1", 12, 6),
        ("all together too large", "memory of every pool", 11, 9),
        ("resources", "resource 1", 3, 1),
        ("stages", "max_stages", 3, 2),
        ("stages", "memory pool 0", 8, 5),
        ("period cap", "the cap on the period", 7, 6),
        ("replicas", "memory pool 0", 16, 7),
        ("free", "memory of every pool", 7, 6),
        ("budgets far apart", "memory of every pool", 7, 3),
        ("budgets far apart", "memory pool 1", 7, 3),
    ],
)
def test_figures(name: str, limit: str, demand: float, capacity: float) -> None:
    cause = by_limit(causes_of(name), limit)
    assert (cause.demand, cause.capacity) == (pytest.approx(demand), capacity)
    assert cause.shortfall == pytest.approx(demand - capacity)


def test_the_text_says_which_by_how_much_and_what_to_do() -> None:
    text = describe(causes_of("stages"))
    assert text.splitlines()[0] == (
        "no assignment is possible; any one of these makes one possible:"
    )
    assert "max_stages: needs 3 stages, has 2, short by 1; allow 3 stages" in text
    assert "memory pool 0 (dev0): needs 8 bytes, has 5, short by 3; raise its budget to 8" in text


def test_few_pins_among_many_are_found() -> None:
    pins = dict.fromkeys(range(20), 0) | {7: 1, 13: 1}
    problem = chain([[1, 1]] * 20, allowed=pinned(20, 2, pins))
    (cause,) = diagnose(problem)
    assert cause.limit == "pin of op7, op13"
    assert solvable(cause.apply(problem))


def test_nothing_to_say_of_a_solvable_problem() -> None:
    assert diagnose(chain([[1, 1]] * 3)) == ()
    assert describe(()) == ""


def test_without_time_nothing_is_claimed() -> None:
    causes = diagnose(INFEASIBLE["stages"], time_limit_s=0.0)
    assert causes
    assert not any(cause.exact for cause in causes)
