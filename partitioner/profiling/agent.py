"""The measuring process: pinned before TVM starts, one request in, one answer out, both JSON.

Started as ``python -m partitioner.profiling.agent``; it runs where the cores are.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from partitioner.profiling.throttle import throttle_count
from partitioner.runtime import affinity, cgroup

if TYPE_CHECKING:
    from partitioner.runtime.executable import Executable

__all__ = ["in_place", "main", "measure", "per_op", "prepare", "settle"]

_WARM_UP = 2
_FEWEST_ROUNDS = 5
# Processor time over elapsed time above which stops by a quota are too few to matter.
_FREE = 0.97


def measure(request: dict[str, Any]) -> dict[str, Any]:
    """Time a library's runs, whole and kernel by kernel, alternating.

    Parameters
    ----------
    request : dict
        ``library``, ``cpus``, ``threads``, ``cgroup`` (None for none), ``inputs`` (shape and dtype
        of each), ``seed``, ``seconds`` to spend, ``kernels`` (for each op its kernel symbols;
        empty: whole runs only).

    Returns
    -------
    dict
        ``total_s``: seconds of each whole run; ``work_s``: processor time of each; ``op_s``: for
        each op, seconds of each traced run; ``stretch``: 1, or by how much a quota stretches
        processor time (see `_measured`), which all of them have in them.
    """
    executable, inputs = prepare(request)
    for _ in range(_WARM_UP):
        executable.run(inputs)
    return _measured(executable, inputs, request["kernels"], request["seconds"])


def prepare(request: dict[str, Any]) -> tuple[Executable, tuple[Any, ...]]:
    """Load a request's library in this thread and draw its inputs."""
    from partitioner.graph import OpGraph, Tensor
    from partitioner.runtime.executable import Executable
    from partitioner.samples import random_item

    executable = Executable(request["library"], request["cpus"], request["threads"])
    tensors = tuple(
        Tensor(i, str(i), None, (), tuple(shape), dtype, 0)
        for i, (shape, dtype) in enumerate(request["inputs"])
    )
    graph = OpGraph("inputs", (), tensors, (), tuple(range(len(tensors))), ())
    return executable, tuple(map(in_place, random_item(graph, request["seed"]).values()))


def in_place(array: Any) -> Any:
    """A copy of an array at an address where kernels read it in place, as in a pipeline's channel.

    Inputs at other addresses are copied at every run, which no stage of a pipeline does.
    """
    import numpy as np

    from partitioner.runtime.channel import ALIGNMENT

    room = np.empty(array.nbytes + ALIGNMENT, np.uint8)
    start = -room.ctypes.data % ALIGNMENT
    result = room[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    result[...] = array
    return result


def settle(request: dict[str, Any]) -> None:
    """Bring this process to the request's control group and cores, before it starts a thread."""
    if request["cgroup"] is not None:
        cgroup.join(request["cgroup"])
    affinity.pin(request["cpus"])


def _measured(
    executable: Executable,
    inputs: tuple[Any, ...],
    kernels: Sequence[tuple[str, Sequence[str]]],
    seconds: float,
) -> dict[str, Any]:
    """Rounds by the clock on the wall; under a quota, by processor time and stretched.

    A quota lets a process run at full speed for a few milliseconds and then stops it for a few.
    Most runs of a short kernel have no stop in them, so that its median says nothing of them, and
    its mean needs very many runs. What a kernel needs of the processor is steady, and it is
    stretched by as much as everything is: by elapsed over processor time of the whole loop.
    """
    stops = throttle_count()
    found = _rounds(executable, inputs, kernels, seconds, time.perf_counter)
    if throttle_count() == stops or found.cpu_s > _FREE * found.elapsed_s:
        return found.answer(stretch=1.0)
    found = _rounds(executable, inputs, kernels, seconds, time.thread_time)
    return found.answer(stretch=found.elapsed_s / found.cpu_s)


@dataclass(frozen=True, slots=True)
class _Rounds:
    """What a loop found: seconds of runs by the clock given, and of whole ones by both clocks."""

    total_s: list[float]
    work_s: list[float]
    op_s: list[list[float]]
    elapsed_s: float
    cpu_s: float

    def answer(self, stretch: float) -> dict[str, Any]:
        """What the agent answers, all times stretched."""
        return {
            "total_s": [one * stretch for one in self.total_s],
            "work_s": [one * stretch for one in self.work_s],
            "op_s": [[one * stretch for one in times] for times in self.op_s],
            "stretch": stretch,
        }


def _rounds(
    executable: Executable,
    inputs: tuple[Any, ...],
    kernels: Sequence[tuple[str, Sequence[str]]],
    seconds: float,
    clock: Callable[[], float],
) -> _Rounds:
    totals: list[float] = []
    work: list[float] = []
    traced: list[list[float]] = [[] for _ in kernels]
    began, cpu_began = time.perf_counter(), time.thread_time()
    while len(totals) < _FEWEST_ROUNDS or time.perf_counter() - began < seconds:
        work_start, start = time.thread_time(), clock()
        executable.run(inputs)
        totals.append(clock() - start)
        work.append(time.thread_time() - work_start)
        if kernels:
            events = executable.trace(inputs, clock)
            for times, one in zip(traced, per_op(events, kernels), strict=True):
                times.append(one)
    elapsed_s, cpu_s = time.perf_counter() - began, time.thread_time() - cpu_began
    return _Rounds(totals, work, traced, elapsed_s, cpu_s)


def per_op(
    events: Sequence[tuple[str, float]], kernels: Sequence[tuple[str, Sequence[str]]]
) -> list[float]:
    """Sum each op's kernels out of one traced run; `main` runs the ops in the recorded order."""
    names = [name for name, _ in events]
    sums = []
    position = 0
    for op, symbols in kernels:
        # Control flow and opaque calls stay one function, named as the op.
        wanted = [op] if names[position : position + 1] == [op] else list(symbols)
        end = position + len(wanted)
        if names[position:end] != wanted:
            raise RuntimeError(f"op {op!r} should run {wanted}; it ran {names[position:end]}")
        sums.append(sum(seconds for _, seconds in events[position:end]))
        position = end
    if position != len(names):
        raise RuntimeError(f"kernel {names[position]!r} of the traced run belongs to no op")
    return sums


def main() -> int:
    """Answer the request on standard input."""
    request = json.loads(sys.stdin.read())
    settle(request)
    answer = measure(request)
    affinity.check(request["cpus"])
    sys.stdout.write(json.dumps(answer))
    return 0


if __name__ == "__main__":
    sys.exit(main())
