from __future__ import annotations

import numpy as np
import pytest

from partitioner.runtime.trace import Records
from partitioner.trials import worker_times


def rows(run_us: list[int], send_us: list[int]) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """Records of items that waited 1 us for inputs and 2 us for room."""
    found = []
    for item, (run, send) in enumerate(zip(run_us, send_us, strict=True)):
        ready = 10_000 * item + 1
        found.append((item, ready - 1, ready, ready + run, ready + run + 2, ready + run + 2 + send))
    table = np.array(found, dtype=np.int64)
    table[:, 1:] *= 1000
    return table


def test_the_middle_of_a_run_counts() -> None:
    # Two of eight at either end are left out: filling and emptying.
    records = [Records(0, 0, "first", rows([900, 900, 10, 10, 10, 10, 900, 900], [5] * 8))]
    run_s, send_s = worker_times(records, 1)
    assert run_s[0] == pytest.approx((10e-6,))
    assert send_s[0] == pytest.approx((5e-6,))


def test_runs_are_averaged_and_copies_are_not() -> None:
    # One in four is held up for 80 us, as under a quota; one copy was interrupted.
    held = [10, 10, 10, 10, 10, 90, 10, 10]
    records = [Records(0, 0, "first", rows(held, [5, 5, 5, 500, 5, 5, 5, 5]))]
    run_s, send_s = worker_times(records, 1)
    assert run_s[0] == pytest.approx((30e-6,))
    assert send_s[0] == pytest.approx((5e-6,))


def test_every_replica_has_its_own_times() -> None:
    records = [
        Records(0, 0, "first", rows([10] * 4, [1] * 4)),
        Records(0, 1, "first", rows([20] * 4, [2] * 4)),
        Records(1, 0, "second", rows([30] * 4, [3] * 4)),
    ]
    run_s, send_s = worker_times(records, 2)
    assert [len(stage) for stage in run_s] == [2, 1]
    assert run_s[0] == pytest.approx((10e-6, 20e-6))
    assert send_s[1] == pytest.approx((3e-6,))
