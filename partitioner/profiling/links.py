"""What handing a tensor from one stage to the next costs, measured in a running pipeline."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from partitioner.machine import Device
from partitioner.profiling.table import Handover
from partitioner.runtime.pipeline import Pipeline
from partitioner.runtime.spec import PipelineSpec, ReplicaSpec, RunnerSpec, StageSpec, TensorSpec

__all__ = ["Reader", "Writer", "measure_handover", "reader", "writer"]

# Cuts of real networks are some hundred kB to a few MB; larger ones leave the caches and cost as
# much a byte or more.
_SMALL = 64
_LARGE = 1 << 20
_ITEMS = 400
# What a stage's weights and activations push out of the caches between two items.
_WORKING_SET = 8 << 20

Array = np.ndarray[Any, np.dtype[Any]]


class Writer:
    """A runner that goes through a working set and makes its output anew, as kernels do."""

    def __init__(self, nbytes: int, working_set: int) -> None:
        self._result = np.zeros(nbytes, np.uint8)
        self._others = np.zeros(working_set, np.uint8)

    def run(self, inputs: tuple[Array, ...]) -> tuple[Array, ...]:
        """Fill and return the array."""
        self._others += 1
        self._result.fill(int(inputs[0][0]))
        return (self._result,)


class Reader:
    """A runner that reads its input once where it lies and once from its own memory.

    It returns both times and when it began, seconds: the difference is what reading another
    core's data costs. Then it goes through a working set.
    """

    def __init__(self, nbytes: int, working_set: int) -> None:
        self._own = np.zeros(nbytes, np.uint8)
        self._other = np.zeros(nbytes, np.uint8)
        self._others = np.zeros(working_set, np.uint8)

    def run(self, inputs: tuple[Array, ...]) -> tuple[Array, ...]:
        """Copy twice and return the times."""
        began = time.perf_counter()
        np.copyto(self._own, inputs[0])
        handed = time.perf_counter()
        np.copyto(self._other, self._own)
        times = np.array([began, handed - began, time.perf_counter() - handed])
        self._others += 1
        return (times,)


def writer(nbytes: int, working_set: int, *, threads: int, cpus: Sequence[int]) -> Writer:
    """Runner factory (see `partitioner.runtime.spec.RunnerSpec`)."""
    return Writer(nbytes, working_set)


def reader(nbytes: int, working_set: int, *, threads: int, cpus: Sequence[int]) -> Reader:
    """Runner factory (see `partitioner.runtime.spec.RunnerSpec`)."""
    return Reader(nbytes, working_set)


def measure_handover(first: Device, second: Device) -> Handover:
    """Cost of a hop from a stage on `first` to one on `second`.

    The fixed part is the period of two stages that do next to nothing, which is all that a stage
    does for an item besides running it; it is booked half on each end of the hop. By size, the
    producer pays for its copy into the channel and the consumer for reading what another core has
    written, both between passes over a working set: a slot that was used some items ago is in
    nobody's near cache.

    Parameters
    ----------
    first, second : Device
        CPU devices; the same one is fine where there is no other.

    Returns
    -------
    Handover
    """
    small_period_s, small_send_s, _ = _run(first, second, _SMALL, 0)
    _, large_send_s, large_read_s = _run(first, second, _LARGE, _WORKING_SET)
    return Handover(
        send_base_s=small_period_s / 2,
        send_s_per_byte=max(0.0, large_send_s - small_send_s) / (_LARGE - _SMALL),
        recv_base_s=small_period_s / 2,
        recv_s_per_byte=max(0.0, large_read_s) / _LARGE,
    )


def _run(
    first: Device, second: Device, nbytes: int, working_set: int
) -> tuple[float, float, float]:
    """Period, the writer's send time, the reader's extra time: median seconds an item."""
    tensors: dict[int | str, TensorSpec] = {
        0: TensorSpec("number", (1,), "uint8"),
        1: TensorSpec("data", (nbytes,), "uint8"),
        2: TensorSpec("times", (3,), "float64"),
    }
    stages = tuple(
        StageSpec(
            name,
            (
                ReplicaSpec(
                    device.cpus,
                    1,
                    RunnerSpec(f"{__name__}:{name}", (nbytes, working_set)),
                    cgroup=device.cgroup,
                ),
            ),
            (index,),
            (index + 1,),
        )
        for index, (name, device) in enumerate((("writer", first), ("reader", second)))
    )
    items = (np.full(1, number % 251, np.uint8) for number in range(_ITEMS))
    with Pipeline(PipelineSpec(stages, tensors, (0,), (2,))) as pipe:
        times = np.array(list(pipe.map(items)))[_ITEMS // 4 :]
        send_s = pipe.stage_times()[0].send_s
    began, handed, local = times.T
    return float(np.median(np.diff(began))), send_s, float(np.median(handed) - np.median(local))
