from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from partitioner.correction import Observation, corrected, factors
from partitioner.evaluation import evaluate
from partitioner.problem import Problem, Solution, TransferCost

MS = 1e-3
Times = Sequence[Sequence[float]]


@pytest.fixture
def row(problem: Problem) -> Problem:
    """Four ops of 1 ms on each of two cores (options 0 and 1) and of 0.6 ms on both (option 2).

    Hops cost 0.1 ms at each end, and sending 1 us a byte.
    """
    times = np.array([[1.0, 1.0, 0.6]] * 4) * MS
    send = TransferCost(problem.send.base_s, np.full_like(problem.send.base_s, 1e-6))
    return replace(problem, time_s=times, send=send)


def seen(
    problem: Problem,
    stage_of: tuple[int, ...],
    options: Sequence[int],
    run_ms: Sequence[float],
    error: float = 1e-4,
    send_times: float = 1.0,
) -> Observation:
    """Stages in a row, one option each; copies as modelled, or a multiple by their bytes."""
    placements = tuple((option,) for option in options)
    found = evaluate(problem, stage_of, placements)
    fixed = evaluate(
        replace(problem, send=TransferCost(problem.send.base_s, 0 * problem.send.base_s)),
        stage_of,
        placements,
    )
    send_s = tuple(
        (low + send_times * (all_ - low),)
        for (all_,), (low,) in zip(found.send_s, fixed.send_s, strict=True)
    )
    return Observation(
        Solution(stage_of, placements, found), tuple((ms * MS,) for ms in run_ms), send_s, error
    )


def test_without_observations_nothing_changes(row: Problem) -> None:
    assert corrected(row, []) is row
    assert [factor.run for factor in factors(row, [])] == [1.0] * row.n_options


def test_a_stage_takes_what_it_was_seen_to_take(row: Problem) -> None:
    # 2 ms by the profile; 3 on core 0 and 2.2 on core 1.
    known = corrected(row, [seen(row, (0, 0, 1, 1), (0, 1), (3.0, 2.2))])
    found = evaluate(known, (0, 0, 1, 1), ((0,), (1,)))
    assert [time for (time,) in found.compute_s] == pytest.approx([3.0 * MS, 2.2 * MS], rel=1e-3)
    # One factor for all its ops: nothing says which of them it is.
    assert known.time_s[0, 0] == pytest.approx(known.time_s[1, 0])
    # The fixed part of a hop is as it was.
    assert np.array_equal(known.send.base_s, row.send.base_s)
    assert np.array_equal(known.recv.base_s, row.recv.base_s)


def test_ops_between_two_cuts_get_the_difference(row: Problem) -> None:
    # Core 0 takes 2 ms for ops 0 and 1, 5 ms for 0, 1 and 2: op 2 takes 3 ms, not 1.
    plans = [
        seen(row, (0, 0, 1, 1), (0, 1), (2.0, 2.0)),
        seen(row, (0, 0, 0, 1), (0, 1), (5.0, 1.0)),
    ]
    known = corrected(row, plans)
    assert known.time_s[:2, 0].sum() == pytest.approx(2.0 * MS, rel=0.01)
    # As far as one op is corrected at most: twice the option's factor.
    usual = factors(row, plans)[0].run
    assert known.time_s[2, 0] == pytest.approx(min(3.0, 2.0 * usual) * MS, rel=0.01)
    assert known.time_s[2, 1] == pytest.approx(1.0 * MS, rel=0.1)


def test_what_was_not_tried_is_no_faster_than_its_kind(row: Problem) -> None:
    # Ops 2 and 3 on core 0 and 0 and 1 on core 1 were never seen, nor both cores joined.
    plans = [seen(row, (0, 0, 1, 1), (0, 1), (3.0, 3.0))]
    known = corrected(row, plans)
    assert known.time_s[:, :2] == pytest.approx(np.full((4, 2), 1.5 * MS), rel=1e-3)
    assert known.time_s[:, 2] == pytest.approx(np.full(4, 0.9 * MS), rel=1e-3)
    told = factors(row, plans)
    assert [factor.run for factor in told] == pytest.approx([1.5] * 3)
    assert [factor.workers for factor in told] == [1, 1, 0]


def test_an_option_is_drawn_towards_its_kind(row: Problem) -> None:
    # Seen on core 0 only, at twice its time: nothing is known of core 1 but that.
    plans = [seen(row, (0, 0, 0, 0), (0,), (8.0,))]
    told = factors(row, plans)
    assert told[0].run == pytest.approx(2.0)
    assert told[1].run == pytest.approx(2.0)
    # Core 1 at its time: the two are half drawn together, what was seen is kept.
    plans.append(seen(row, (0, 0, 0, 0), (1,), (4.0,)))
    told = factors(row, plans)
    assert 1.5 < told[0].run < 2.0
    assert 1.0 < told[1].run < 1.5
    known = corrected(row, plans)
    assert known.time_s[:, 0].sum() == pytest.approx(8.0 * MS, rel=1e-3)
    assert known.time_s[:, 1].sum() == pytest.approx(4.0 * MS, rel=1e-3)


def test_a_doubtful_observation_counts_less(row: Problem) -> None:
    sure = seen(row, (0, 0, 0, 0), (0,), (4.0,), error=0.01)
    doubtful = seen(row, (0, 0, 0, 0), (0,), (8.0,), error=0.3)
    known = corrected(row, [sure, doubtful])
    assert known.time_s[:, 0].sum() == pytest.approx(4.0 * MS, rel=0.02)


def test_replicas_are_seen_one_by_one(row: Problem) -> None:
    placements = ((0, 1),)
    found = evaluate(row, (0,) * 4, placements)
    both = Observation(
        Solution((0,) * 4, placements, found), ((5.0 * MS, 6.0 * MS),), ((0.1 * MS,) * 2,), 1e-4
    )
    known = corrected(row, [both])
    assert known.time_s.sum(axis=0)[:2] == pytest.approx([5.0 * MS, 6.0 * MS], rel=1e-3)


def test_reading_in_place_is_taken_off(row: Problem) -> None:
    # Stage 1 reads `skip` and `mid`, 800 bytes at 1 us: 0.8 ms of the 2.8 that it was seen to run.
    slow = replace(row, recv=TransferCost(row.recv.base_s, np.full_like(row.recv.base_s, 1e-6)))
    known = corrected(slow, [seen(slow, (0, 0, 1, 1), (0, 1), (2.1, 2.8))])
    assert known.time_s[2:, 1].sum() == pytest.approx(2.0 * MS, rel=1e-3)
    assert known.time_s[:2, 0].sum() == pytest.approx(2.0 * MS, rel=1e-3)


def test_copies_are_corrected_by_their_bytes(row: Problem) -> None:
    # Stage 0 sends 800 bytes, 0.8 ms; it took twice that. Stage 1 sends 200 to the caller.
    plans = [seen(row, (0, 0, 1, 1), (0, 1), (2.0, 2.0), send_times=2.0)]
    told = factors(row, plans)
    assert 1.5 < told[0].send < 2.0
    known = corrected(row, plans)
    assert known.send.per_unit_s[0] == pytest.approx(row.send.per_unit_s[0] * told[0].send)
    # What the caller sends is no stage's.
    assert np.array_equal(known.send.per_unit_s[-1], row.send.per_unit_s[-1])


def test_tiny_copies_tell_nothing(row: Problem) -> None:
    # An output of 200 bytes that took 0.1 ms more than its fixed 0.1: hardly a word about bytes.
    small = replace(row, send=TransferCost(row.send.base_s, np.full_like(row.send.base_s, 1e-9)))
    one = seen(small, (0, 0, 0, 0), (0,), (4.0,))
    told = factors(small, [replace(one, send_s=((0.2 * MS,),))])
    assert 1.0 < told[0].send < 3.0
