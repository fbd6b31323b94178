"""How the measuring process sums up its runs, on a simulated core with and without a quota."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from partitioner.profiling import agent

OPS_S = (1e-4, 3e-3, 9e-3, 2e-5)
"""Processor time of each op; a quota's slice is 4 ms, so some never see a stop within and some
always do."""
DISPATCH_S = 1e-4
KERNELS = tuple((f"op_{number}", (f"kernel_{number}",)) for number in range(len(OPS_S)))
INPUTS = ()


class Core:
    """A core that, under a quota, works 4 ms and then stands still 6 ms; its clocks and counts."""

    WORK_S, STOP_S = 4e-3, 6e-3

    def __init__(self, *, limited: bool, counts: bool = True) -> None:
        self.limited = limited
        self.counts = counts
        self.cpu_s = 0.0
        self.stops = 0

    def spend(self, seconds: float) -> None:
        self.cpu_s += seconds
        if self.limited:
            self.stops = int(self.cpu_s / self.WORK_S)

    def perf_counter(self) -> float:
        return self.cpu_s + self.stops * self.STOP_S

    def thread_time(self) -> float:
        return self.cpu_s

    def throttle_count(self) -> int:
        return self.stops if self.counts else 0


class Executable:
    """Runs the ops on a core, as `partitioner.runtime.executable.Executable` would."""

    def __init__(self, core: Core) -> None:
        self.core = core

    def run(self, inputs: tuple[Any, ...]) -> None:
        self.core.spend(DISPATCH_S + sum(OPS_S))

    def trace(
        self, inputs: tuple[Any, ...], clock: Callable[[], float]
    ) -> tuple[tuple[str, float], ...]:
        events = []
        for (_, (symbol,)), seconds in zip(KERNELS, OPS_S, strict=True):
            began = clock()
            self.core.spend(seconds)
            events.append((symbol, clock() - began))
        self.core.spend(DISPATCH_S)
        return tuple(events)


def measured(monkeypatch: pytest.MonkeyPatch, core: Core, seconds: float = 2.0) -> dict[str, Any]:
    monkeypatch.setattr(agent, "time", core)
    monkeypatch.setattr(agent, "throttle_count", core.throttle_count)
    executable: Any = Executable(core)
    return agent._measured(executable, INPUTS, KERNELS, seconds)


def test_a_free_core_is_timed_by_the_wall(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = measured(monkeypatch, Core(limited=False))
    assert answer["stretch"] == 1.0
    assert answer["total_s"] == pytest.approx([DISPATCH_S + sum(OPS_S)] * len(answer["total_s"]))
    assert [statistics.median(times) for times in answer["op_s"]] == pytest.approx(OPS_S)


def test_under_a_quota_ops_and_whole_take_their_share(monkeypatch: pytest.MonkeyPatch) -> None:
    core = Core(limited=True)
    answer = measured(monkeypatch, core)
    slower = (core.WORK_S + core.STOP_S) / core.WORK_S
    assert answer["stretch"] == pytest.approx(slower, rel=0.02)
    medians = [statistics.median(times) for times in answer["op_s"]]
    assert medians == pytest.approx([slower * seconds for seconds in OPS_S], rel=0.02)
    assert answer["work_s"] == pytest.approx(answer["total_s"])
    whole = statistics.median(answer["total_s"])
    assert whole == pytest.approx(sum(medians) + answer["stretch"] * DISPATCH_S)


def test_medians_by_the_wall_would_be_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    # What the second loop is for: nothing has counted the stops, so they are not looked for.
    answer = measured(monkeypatch, Core(limited=True, counts=False))
    assert answer["stretch"] == 1.0
    short, long = (statistics.median(answer["op_s"][number]) for number in (0, 2))
    assert short == pytest.approx(OPS_S[0])
    assert long > 2 * OPS_S[2]


def test_rare_stops_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    core = Core(limited=True)
    core.STOP_S = 5e-5
    answer = measured(monkeypatch, core)
    assert answer["stretch"] == 1.0
    assert statistics.median(answer["op_s"][0]) == pytest.approx(OPS_S[0])


def test_what_others_take_of_the_core_is_no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    # Other processes stop it as a quota would, uncounted: long ops are hit, the dispatch is not.
    core = Core(limited=True, counts=False)
    answer = measured(monkeypatch, core)
    assert answer["work_s"] == pytest.approx([DISPATCH_S + sum(OPS_S)] * len(answer["work_s"]))
    assert statistics.median(answer["total_s"]) > 2 * answer["work_s"][0]


def test_a_few_rounds_are_done_at_least(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = measured(monkeypatch, Core(limited=True), seconds=0.0)
    assert len(answer["total_s"]) == 5
    assert {len(times) for times in answer["op_s"]} == {5}


@pytest.mark.parametrize("shape", [(3, 5), (1,), (), (0, 4)])
@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_inputs_lie_where_kernels_read_them(shape: tuple[int, ...], dtype: str) -> None:
    array = np.arange(np.prod(shape), dtype=dtype).reshape(shape)
    found = agent.in_place(array)
    assert found.ctypes.data % 64 == 0 or not found.nbytes
    assert (found.shape, found.dtype) == (shape, array.dtype)
    assert found.flags.c_contiguous
    assert found.flags.writeable
    assert (found == array).all()
