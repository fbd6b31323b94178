"""Processes that `op_sums.py` starts: one that times blocks of runs, and loads for another core.

Both end when the process that started them does, whether they are stopped or not.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np

from partitioner.profiling.agent import in_place, per_op
from partitioner.runtime.affinity import pin
from partitioner.runtime.environment import stage_environment
from partitioner.runtime.executable import Executable

WARM_UP = 2
FEWEST = 3
SWEEPS = {"near": 4 << 20, "all": 96 << 20}
"""Bytes: more than a core's own caches hold, and more than the last one."""

CLOCKS = {"wall": time.perf_counter, "cpu": time.thread_time}

_END_WITH_PARENT = 1  # PR_SET_PDEATHSIG of prctl(2)

Array = np.ndarray[Any, np.dtype[Any]]


class Probe:
    """The whole model and its stages in one process.

    Parameters
    ----------
    request : mapping
        ``cpus``; ``items``, a file of the model's inputs by tensor number; ``parts``, by name
        ``library``, ``kernels``, ``enters`` and ``leaves`` (tensor numbers), in an order in which
        each finds what it takes; ``clock``, a name in `CLOCKS`.
    """

    def __init__(self, request: Mapping[str, Any]) -> None:
        self.parts: dict[str, tuple[Executable, tuple[Array, ...], Any]] = {}
        known = {int(name): array for name, array in np.load(request["items"]).items()}
        for name, part in request["parts"].items():
            executable = Executable(part["library"], request["cpus"], 1)
            inputs = tuple(in_place(known[tensor]) for tensor in part["enters"])
            for tensor, array in zip(part["leaves"], executable.run(inputs), strict=True):
                known[tensor] = np.array(array)
            self.parts[name] = executable, inputs, part["kernels"]
        self.clock = CLOCKS[request["clock"]]
        self.memory = {name: np.zeros(size // 8) for name, size in SWEEPS.items()}
        self.small = np.random.default_rng(0).random((48, 48), np.float32)

    def block(self, what: str, how: str, seconds: float) -> dict[str, Any]:
        """Seconds of each run of a part; of each op too when traced.

        Parameters
        ----------
        what : str
            A part, or ``"reference"``: a product in the nearest cache.
        how : str
            ``"plain"``, ``"traced"``, or a sweep to make before each run.
        seconds : float
            How long to go on.
        """
        if what == "reference":
            return {"total_s": _rounds(self._multiply, seconds / 2)}
        executable, inputs, kernels = self.parts[what]
        ops: list[list[float]] = []

        def run() -> float:
            began = self.clock()
            if how != "traced":
                executable.run(inputs)
                return self.clock() - began
            events = executable.trace(inputs, self.clock)
            elapsed = self.clock() - began
            ops.append(per_op(events, kernels))
            return elapsed

        def swept() -> float:
            self.memory[how] += 1.0
            return run()

        for _ in range(WARM_UP):
            executable.run(inputs)
        return {"total_s": _rounds(swept if how in SWEEPS else run, seconds), "op_s": ops}

    def _multiply(self) -> float:
        began = self.clock()
        for _ in range(100):
            self.small @ self.small
        return self.clock() - began


def _rounds(run: Callable[[], float], seconds: float) -> list[float]:
    found: list[float] = []
    until = time.perf_counter() + seconds
    while len(found) < FEWEST or time.perf_counter() < until:
        found.append(run())
    return found


def _serve(request: Mapping[str, Any]) -> None:
    probe = Probe(request)
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        print(json.dumps(probe.block(**json.loads(line))), flush=True)


def _load(request: Mapping[str, Any]) -> None:
    """Keep a core busy until killed: with a part, a sweep over memory, or nothing but steps."""
    if request["load"] == "sweep":
        memory = np.zeros(SWEEPS["all"] // 8)
        print(json.dumps("ready"), flush=True)
        while True:
            memory += 1.0
    if request["load"] == "spin":
        print(json.dumps("ready"), flush=True)
        while True:
            pass
    executable, inputs, _ = Probe(request).parts[request["load"]]
    print(json.dumps("ready"), flush=True)
    while True:
        executable.run(inputs)


# What the benchmark calls


@contextmanager
def probe(request: Mapping[str, Any]) -> Iterator[subprocess.Popen[str]]:
    """A process that is what the request says (`main`), ready, and ended after the block."""
    process = subprocess.Popen(
        [sys.executable, __file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=stage_environment(1),
    )
    try:
        assert process.stdin and process.stdout
        process.stdin.write(json.dumps(request) + "\n")
        process.stdin.flush()
        if not process.stdout.readline():
            raise RuntimeError(f"the probe ended with status {process.wait()}")
        yield process
    finally:
        process.kill()
        process.wait()


def ask(process: subprocess.Popen[str], question: Mapping[str, Any]) -> dict[str, Any]:
    """What a probe answers to the arguments of `Probe.block`."""
    assert process.stdin and process.stdout
    process.stdin.write(json.dumps(question) + "\n")
    process.stdin.flush()
    answer: dict[str, Any] = json.loads(process.stdout.readline())
    return answer


@contextmanager
def stopped_loads(
    request: Mapping[str, Any], cpus: Sequence[int], names: Sequence[str]
) -> Iterator[dict[str, subprocess.Popen[str]]]:
    """A process for each load, all stopped."""
    started: dict[str, subprocess.Popen[str]] = {}
    with ExitStack() as stack:
        for load in names:
            started[load] = stack.enter_context(probe({**request, "cpus": cpus, "load": load}))
            os.kill(started[load].pid, signal.SIGSTOP)
        yield started


@contextmanager
def running(load: subprocess.Popen[str] | None) -> Iterator[None]:
    """The load goes on inside the block."""
    if load is None:
        yield
        return
    os.kill(load.pid, signal.SIGCONT)
    try:
        yield
    finally:
        os.kill(load.pid, signal.SIGSTOP)


def main() -> int:
    """Be what the first line of standard input asks for."""
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_END_WITH_PARENT, signal.SIGKILL)
    if os.getppid() != parent:
        return 1
    request = json.loads(sys.stdin.readline())
    pin(request["cpus"])
    if "load" in request:
        _load(request)
    _serve(request)
    return 0


if __name__ == "__main__":
    sys.exit(main())
