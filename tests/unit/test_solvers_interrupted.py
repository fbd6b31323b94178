"""Ctrl-C: the best so far, at once, whichever method runs, and Python's own handling kept."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from ortools.sat.python import cp_model
from problem_builder import build, uniform

from partitioner.problem import Objective, Problem, Status
from partitioner.solvers import k_best, solve
from partitioner.solvers.cpsat import search
from partitioner.solvers.cpsat.sound import run_sound, sound_solver
from partitioner.solvers.free import cpsat as free_cpsat
from partitioner.solvers.kbest import kbest
from partitioner.solvers.limits import Limits

LIMIT_S = 60.0


def hard(seed: int = 0) -> Problem:
    """Ops whose best assignment takes more than a second to prove."""
    rng = np.random.default_rng(seed)
    n = 60
    tensors = [
        (op, tuple(sorted({*rng.integers(op + 1, n, 2).tolist()})), float(rng.uniform(1, 9)), False)
        for op in range(n - 1)
    ]
    times = rng.uniform(10, 99, (n, 1)) * rng.uniform(0.8, 1.2, (n, 4))
    return build(times, tensors, recv=uniform(4, 0.1, 1.0))


def to_process() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def to_sender() -> None:
    signal.pthread_kill(threading.get_ident(), signal.SIGINT)


def seconds_to_stop(
    run: Callable[[threading.Event], object], interrupt: Callable[[], None] = to_process
) -> float:
    """Seconds from a signal, sent half a second after the run sets its event, to its return."""
    ready = threading.Event()
    sent: list[float] = []

    def send() -> None:
        ready.wait()
        time.sleep(0.5)
        sent.append(time.perf_counter())
        interrupt()

    thread = threading.Thread(target=send)
    thread.start()
    try:
        run(ready)
    finally:
        ready.set()
        thread.join()
    return time.perf_counter() - sent[0]


# Where the signal meets Hypothesis's callback of the garbage collector, Python drops its exception
# and says so; that the solve stops all the same is what the test is about.
@pytest.mark.filterwarnings(
    r"ignore:Exception ignored in. <function gc_cumulative_time:"
    "pytest.PytestUnraisableExceptionWarning"
)
@pytest.mark.parametrize("sent", [to_process, to_sender])
@pytest.mark.parametrize(("free", "method"), [(False, "cpsat"), (True, "cpsat"), (True, "auto")])
def test_the_best_so_far(free: bool, method: str, sent: Callable[[], None]) -> None:
    problem = replace(hard(), contiguous=not free, second=Objective.COPIES)
    found = []

    def run(ready: threading.Event) -> None:
        found.append(
            solve(
                problem,
                method=method,
                time_limit_s=LIMIT_S,
                progress=lambda *_: ready.set(),
                workers=2,
            )
        )

    assert seconds_to_stop(run, sent) < 10
    assert found[0].evaluation.feasible
    assert found[0].stats.status is Status.FEASIBLE
    assert found[0].stats.second == found[0].evaluation.copies
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


class Finalized:
    """Raises the signal when it goes: Python drops the exception, and only says so."""

    def __del__(self) -> None:
        signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("free", [False, True])
def test_a_signal_whose_exception_is_dropped(free: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = replace(hard(), contiguous=not free)
    dropped: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda args: dropped.append(args.exc_type))
    alive = [Finalized()]

    def solver(*args: Any) -> Any:
        alive.clear()
        return sound_solver(*args)

    for room in (search, free_cpsat):
        monkeypatch.setattr(room, "sound_solver", solver)
    began = time.perf_counter()
    found = solve(problem, method="cpsat", time_limit_s=LIMIT_S, workers=2)
    assert time.perf_counter() - began < 10
    assert dropped == [KeyboardInterrupt]
    assert found.stats.status is Status.FEASIBLE
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_the_plans_known_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kbest, "_complete", interrupt)
    (found,) = k_best(hard(), 3, time_limit_s=1.0)
    assert found.evaluation.feasible


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def test_a_signal_just_before_the_search_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    class Search:
        stopped = threading.Event()

        def solve(self, *_: object) -> None:
            self.stopped.wait(20)

        def stop_search(self) -> None:
            self.stopped.set()

    submit = ThreadPoolExecutor.submit

    def signalled(pool: ThreadPoolExecutor, run: Callable[..., object], *args: object) -> object:
        running = submit(pool, run, *args)
        if run is not int:
            raise KeyboardInterrupt
        return running

    monkeypatch.setattr(ThreadPoolExecutor, "submit", signalled)
    with pytest.raises(KeyboardInterrupt):
        run_sound(Search(), cp_model.CpModel(), Limits())
    assert Search.stopped.is_set()
