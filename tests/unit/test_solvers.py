from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from problem_builder import build, uniform

from partitioner.errors import InfeasibleError, ProblemError
from partitioner.problem import LatencyModel, Objective, Problem, Status, TransferCost
from partitioner.solvers import SOLVERS, Limits, neighbours, pipeline, solve
from partitioner.solvers.dp import run as tables

METHODS = ("auto", *SOLVERS)


def chain(times: np.ndarray, **fields: object) -> Problem:
    """A chain whose ops pass one unit on."""
    n = len(times)
    tensors = [(op, (op + 1,), 1.0, False) for op in range(n - 1)] + [(n - 1, (), 1.0, True)]
    return build(times, tensors, **fields)


def equal(times: list[float], devices: int) -> np.ndarray:
    return np.array(times)[:, None] * np.ones((1, devices))


@pytest.mark.parametrize("method", METHODS)
def test_a_chain_on_two_equal_devices(method: str) -> None:
    # 1 2 3 | 4 2: the halves are 6 and 6.
    found = solve(chain(equal([1, 2, 3, 4, 2], 2)), method=method)
    assert found.stage_of == (0, 0, 0, 1, 1)
    assert sorted(found.placements) == [(0,), (1,)]
    assert (found.stats.objective, found.stats.status) == (6.0, Status.OPTIMAL)
    assert found.stats.gap <= 1e-6


@pytest.mark.parametrize("method", METHODS)
def test_unequal_devices_in_either_order(method: str) -> None:
    # dev0 is three times as fast: 1 1 on dev1 (6 s) and 4 3 on dev0 (7 s).
    times = np.array([1.0, 1.0, 4.0, 3.0])[:, None] * np.array([[1.0, 3.0]])
    found = solve(chain(times), method=method)
    assert (found.stage_of, found.placements) == ((0, 0, 1, 1), ((1,), (0,)))
    assert found.stats.objective == 7.0


@pytest.mark.parametrize("method", METHODS)
def test_a_divisible_cluster(method: str) -> None:
    # Four cores as x1, x2 or x4 at 12, 7, 5 s an op: two stages of x2 take 7 s, one of x4 10 s.
    uses = np.array([[1], [2], [4]])
    problem = chain(
        np.array([[12.0, 7.0, 5.0]] * 2), uses=uses, capacity=np.array([4]), max_stages=4
    )
    found = solve(problem, method=method)
    assert (found.placements, found.stats.objective) == (((1,), (1,)), 7.0)


@pytest.mark.parametrize("method", METHODS)
def test_copies_can_make_the_uncut_model_best(method: str) -> None:
    problem = chain(equal([1, 1], 2), recv=uniform(2, 5.0, 0.0), send=TransferCost.zero(2))
    # The output costs the caller 5 s anyway; a cut would cost the second stage 5 s too.
    assert len(solve(problem, method=method).placements) == 1


@pytest.mark.parametrize("method", METHODS)
def test_serial_latency_takes_the_fastest_devices(method: str) -> None:
    times = np.array([[1.0, 9.0], [9.0, 1.0]])
    problem = chain(
        times,
        link=uniform(2, 0.5, 0.0),
        objective=Objective.LATENCY,
        latency_model=LatencyModel.SERIAL,
    )
    # 1 + 0.5 + 1 + 0.5 to the caller.
    assert solve(problem, method=method).stats.objective == pytest.approx(3.0)


@pytest.mark.parametrize("method", ["auto", "cpsat", "brute"])
def test_atomic_latency_overlaps_branches(method: str) -> None:
    tensors = [
        (0, (1, 2), 1.0, False),
        (1, (3,), 1.0, False),
        (2, (3,), 1.0, False),
        (3, (), 1.0, True),
    ]
    problem = build(
        equal([1, 5, 5, 1], 3),
        tensors,
        objective=Objective.LATENCY,
        latency_model=LatencyModel.ATOMIC,
    )
    # op0 | op1, op2 side by side | op3: 1 + 5 + 1, which needs four stages. With three, op3 shares
    # one with a branch and that one waits for the other branch: 1 + 5 + 6, no better than uncut.
    assert solve(problem, method=method).stats.objective == 12.0
    wide = dataclasses.replace(
        problem,
        uses=np.ones((3, 1), dtype=np.int64),
        capacity=np.array([4]),
        max_stages=4,
    )
    assert solve(wide, method=method).stats.objective == 7.0


def test_dynamic_programming_refuses_atomic_latency() -> None:
    problem = chain(equal([1, 1], 2), objective=Objective.LATENCY)
    with pytest.raises(ProblemError, match=r"atomic.*use method 'cpsat'"):
        solve(problem, method="dp")


@pytest.mark.parametrize("method", [each for each in METHODS if each != "highs"])
def test_costs_of_very_different_size(method: str) -> None:
    # op1 takes 1e18 s on dev1 and op3 on dev0, and the rest between a nanosecond and a second.
    times = np.array([[1e-9, 1e-9], [0.5, 1e18], [1e-6, 1e-6], [1e18, 0.25]])
    found = solve(chain(times), method=method)
    assert found.stats.status is Status.OPTIMAL
    assert found.stats.objective == pytest.approx(0.5, rel=1e-5)
    assert found.stage_of[1] < found.stage_of[3]


@pytest.mark.parametrize("method", METHODS)
def test_unavoidably_large_costs(method: str) -> None:
    found = solve(chain(equal([1e18, 1e-9, 3.0], 2)), method=method)
    assert found.stats.objective == pytest.approx(1e18, rel=1e-6)
    assert found.stats.status is Status.OPTIMAL


@pytest.mark.parametrize("method", METHODS)
def test_all_costs_zero(method: str) -> None:
    found = solve(chain(equal([0.0, 0.0], 2)), method=method)
    assert (found.stats.objective, found.stats.status) == (0.0, Status.OPTIMAL)


@pytest.mark.parametrize("method", METHODS)
def test_memory_forces_a_worse_balance(method: str) -> None:
    # By time the cut is after op2; by memory (4 a device, 1 an op and 3 for op0) after op1.
    problem = chain(
        equal([1, 1, 2, 2, 2], 2),
        constant_bytes=np.array([3.0, 1.0, 1.0, 1.0, 1.0]),
        constant_ops=tuple((op,) for op in range(5)),
        pool_of=np.array([0, 1]),
        pool_bytes=np.array([4.0, 4.0]),
    )
    found = solve(problem, method=method)
    assert (found.stage_of, found.stats.objective) == ((0, 0, 1, 1, 1), 6.0)


@pytest.mark.parametrize("method", ["auto", "dp", "cpsat"])
def test_colocation_takes_what_lies_between(method: str) -> None:
    found = solve(chain(equal([1, 1, 1, 1], 2), colocate=((0, 2),)), method=method)
    assert found.stage_of == (0, 0, 0, 1)


def test_no_time_still_gives_a_good_assignment() -> None:
    problem = chain(equal([1, 2, 3, 4, 2, 2, 5], 3), recv=uniform(3, 0.1, 0.0))
    found = solve(problem, time_limit_s=0.0)
    best = solve(problem).stats.objective
    assert best <= found.stats.objective <= 1.01 * best
    assert 0 < found.stats.bound <= best * (1 + 1e-6)
    proven = found.stats.objective <= found.stats.bound * (1 + 1e-6)
    assert (found.stats.status is Status.OPTIMAL) == proven


def test_progress_tells_of_improvements_only() -> None:
    seen: list[tuple[float, float, float]] = []
    found = solve(
        chain(equal([1, 2, 3, 4, 2], 2), recv=uniform(2, 0.1, 0.0)),
        progress=lambda objective, bound, spent: seen.append((objective, bound, spent)),
    )
    assert seen[-1][0] == found.stats.objective
    objectives, bounds, times = zip(*seen, strict=True)
    assert list(objectives) == sorted(objectives, reverse=True)
    assert list(bounds) == sorted(bounds)
    assert list(times) == sorted(times)


def test_a_hint_is_never_lost() -> None:
    problem = chain(equal([1, 2, 3, 4, 2], 2))
    best = solve(problem)
    again = solve(problem, hint=best, time_limit_s=0.0)
    assert again.stats.objective == best.stats.objective


def test_interruption_returns_the_best_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_args: object, **_fields: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(pipeline, "close_in", lambda _session, _prices: None)
    monkeypatch.setattr(tables, "exact_cuts", interrupt)
    monkeypatch.setattr(pipeline, "search", interrupt)
    found = solve(chain(equal([1, 2, 3, 4, 2], 2), recv=uniform(2, 0.1, 0.0)))
    assert found.stats.status is Status.FEASIBLE
    assert found.evaluation.feasible


def test_many_downsets_give_way_to_search() -> None:
    # 17 independent ops have 2 ** 17 downsets.
    rng = np.random.default_rng(3)
    tensors = [(op, (), 1.0, True) for op in range(17)]
    problem = build(rng.uniform(1, 2, (17, 1)) * np.array([[1.0, 1.7]]), tensors)
    with pytest.raises(ProblemError, match=r"downsets.*use method 'cpsat' or 'auto'"):
        solve(problem, method="dp")
    found = solve(problem, time_limit_s=20)
    assert found.stats.status is Status.OPTIMAL


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        (
            {"allowed": np.array([[True, True], [False, False]])},
            "op 'op1' needs 1 option.*could run on dev0, dev1, which its pin excludes",
        ),
        ({"time_s": np.array([[1.0, 1.0], [np.inf, np.inf]])}, "no option supports it"),
        (
            {"time_s": np.array([[1.0, np.inf], [np.inf, 1.0]]), "colocate": ((0, 1),)},
            "must share a stage.*of 2 options none runs all 2",
        ),
        ({"capacity": np.array([0, 0])}, "of which there are 0.*short by 1"),
        (
            {
                "constant_bytes": np.array([50.0, 9.0]),
                "constant_ops": ((0,), (1,)),
                "pool_bytes": np.array([40.0]),
            },
            "'op0' alone needs 50 bytes.*is 40, short by 10",
        ),
        (
            {
                "constant_bytes": np.array([30.0, 30.0]),
                "constant_ops": ((0,), (1,)),
                "pool_bytes": np.array([40.0]),
            },
            "need 60 bytes and all memory budgets together are 40, short by 20",
        ),
        (
            {
                "constant_bytes": np.array([30.0, 30.0]),
                "constant_ops": ((0,), (1,)),
                "pool_of": np.array([0, 1]),
                "pool_bytes": np.array([40.0, 40.0]),
                "max_stages": 1,
            },
            "cannot be met together",
        ),
    ],
)
@pytest.mark.parametrize("method", ["auto", "dp", "cpsat"])
def test_infeasible_problems_say_why(method: str, fields: dict[str, object], says: str) -> None:
    times = np.asarray(fields.get("time_s", np.ones((2, 2))))
    rest = {name: value for name, value in fields.items() if name != "time_s"}
    with pytest.raises(InfeasibleError, match=says):
        solve(chain(times, **rest), method=method)


def test_unknown_method_and_bad_limit() -> None:
    problem = chain(equal([1, 1], 2))
    with pytest.raises(ProblemError, match="no solver 'magic'; known are auto, dp, cpsat, highs,"):
        solve(problem, method="magic")
    with pytest.raises(ProblemError, match="time_limit_s is nan"):
        solve(problem, time_limit_s=float("nan"))
    with pytest.raises(ProblemError, match="at most 12 ops"):
        SOLVERS["brute"](chain(equal([1.0] * 13, 2)), Limits())


def test_neighbours_of_an_optimum_are_no_better() -> None:
    problem = chain(equal([1, 2, 3, 4, 2], 2), recv=uniform(2, 0.1, 0.0))
    best = solve(problem)
    found = neighbours(problem, best)
    texts = [text for text, _ in found]
    assert "move op2 later, to stage 1" in texts
    assert "move op3 earlier, to stage 0" in texts
    assert "join stages 0 and 1 where stage 0 is" in texts
    values = [evaluation.period_s for _, evaluation in found]
    assert values == sorted(values)
    assert values[0] >= best.stats.objective
    # 1 2 | 3 4 2 with 0.1 received.
    assert dict(found)["move op2 later, to stage 1"].period_s == pytest.approx(9.1)
