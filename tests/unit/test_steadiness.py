from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from fake_cpus import put, put_cpus

from partitioner.errors import DeviceError
from partitioner.profiling import steadiness
from partitioner.profiling.steadiness import Steadiness, spin_rate


def clock(root: Path, cpu: int, khz: int) -> None:
    put(root, f"sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_cur_freq", khz)


@pytest.fixture
def board(tmp_path: Path) -> Path:
    put_cpus(tmp_path, range(4, 8), max_khz=2300000, cur_khz=2300000)
    return tmp_path


def steady(cpu: int) -> float:
    return 100.0


def test_a_clock_that_stays(board: Path) -> None:
    watch = Steadiness(root=board, rate=steady)
    watch.sample([4, 5])
    clock(board, 4, 2280000)
    watch.sample([4, 5])
    assert watch.notes() == ()


def test_a_clock_that_moves(board: Path) -> None:
    watch = Steadiness(root=board, rate=steady)
    watch.sample([4, 5, 6])
    clock(board, 4, 1200000)
    watch.look([4, 5, 6])
    assert watch.notes() == (
        "core 4 ran between 1.20 and 2.30 GHz (governor schedutil) while profiled: fix the "
        "governor, or expect times to differ by ±31%",
    )
    clock(board, 5, 1200000)
    watch.sample([4, 5, 6])
    (note,) = watch.notes()
    assert note.startswith("cores 4-5 ran between 1.20 and 2.30 GHz")


def test_a_governor_that_changes_is_named_with_the_other(board: Path) -> None:
    watch = Steadiness(root=board, rate=steady)
    watch.sample([4])
    put(board, "sys/devices/system/cpu/cpu4/cpufreq/scaling_governor", "powersave")
    clock(board, 4, 500000)
    watch.sample([4])
    assert "(governor powersave, schedutil)" in watch.notes()[0]


def test_a_tenth_at_each_end_does_not_count(board: Path) -> None:
    watch = Steadiness(root=board, rate=steady)
    for _ in range(8):
        watch.look([4])
    clock(board, 4, 500000)
    watch.look([4])
    assert len(watch.notes()) == 1, "one of nine is more than a tenth"
    clock(board, 4, 2300000)
    watch.look([4])
    assert watch.notes() == ()


def test_the_clock_is_read_after_the_loop_has_woken_the_core(board: Path) -> None:
    clock(board, 4, 500000)

    def wake(cpu: int) -> float:
        clock(board, cpu, 2300000)
        return 100.0

    watch = Steadiness(root=board, rate=wake)
    watch.sample([4])
    watch.sample([4])
    assert watch.notes() == ()


def test_a_loop_tells_where_no_clock_is_shown(tmp_path: Path) -> None:
    rates = iter([100.0, 100.0, 97.0, 80.0])
    watch = Steadiness(root=tmp_path, rate=lambda cpu: next(rates))
    watch.sample([0, 1])
    watch.sample([0, 1])
    assert watch.notes() == (
        "core 1 ran a fixed loop at 80% to 100% of its best speed while profiled (its clock "
        "cannot be read): keep other work off it, or expect times to differ by ±11%",
    )


def test_a_visit_is_sampled_before_and_after(board: Path) -> None:
    seen = []

    def rate(cpu: int) -> float:
        seen.append(cpu)
        return 100.0

    watch = Steadiness(root=board, rate=rate)
    with watch.visit([5, 6]):
        clock(board, 4, 500000)
        clock(board, 6, 500000)
        seen.append(-1)
    assert seen == [5, 6, -1, 5, 6]
    (note,) = watch.notes()
    assert note.startswith("core 6 ran between 0.50 and 2.30 GHz"), "core 4 was not measured"


def test_nothing_was_sampled(tmp_path: Path) -> None:
    assert Steadiness(root=tmp_path, rate=steady).notes() == ()


def test_looks_during_a_visit(board: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = os.sched_getaffinity(0)
    monkeypatch.setattr(steadiness, "allowed_cpus", lambda: frozenset(here) | {4})
    watch = Steadiness(root=board, rate=steady)
    with watch.during([4], every_s=0.001):
        clock(board, 4, 1000000)
        until = time.monotonic() + 10
        while not watch.notes() and time.monotonic() < until:
            clock(board, 4, 2000000)
            time.sleep(0.003)
            clock(board, 4, 1000000)
            time.sleep(0.003)
    assert "between 1.00 and 2.00 GHz" in watch.notes()[0]
    assert os.sched_getaffinity(0) == here


@pytest.mark.parametrize("spare", [True, False], ids=["no clock", "no other core"])
def test_nobody_looks_where_it_is_of_no_use(
    spare: bool, board: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steadiness, "allowed_cpus", lambda: frozenset({4, 5} if spare else {4}))
    watch = Steadiness(root=tmp_path / "none" if spare else board, rate=steady)
    monkeypatch.setattr(watch, "look", lambda cpus: pytest.fail("nobody should look"))
    with watch.during([4], every_s=0.0):
        time.sleep(0.01)
    assert watch.notes() == ()


def test_the_loop_runs_on_its_core_and_leaves_it() -> None:
    here = os.sched_getaffinity(0)
    assert spin_rate(min(here)) > 0
    assert os.sched_getaffinity(0) == here
    with pytest.raises(DeviceError, match="the kernel refuses"):
        spin_rate(8000)
    assert os.sched_getaffinity(0) == here
