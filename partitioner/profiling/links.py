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

Array = np.ndarray[Any, np.dtype[Any]]


class Writer:
    """A runner that makes its output anew for every item, as a kernel does."""

    def __init__(self, nbytes: int) -> None:
        self._result = np.zeros(nbytes, np.uint8)

    def run(self, inputs: tuple[Array, ...]) -> tuple[Array, ...]:
        """Fill and return the array."""
        self._result.fill(int(inputs[0][0]))
        return (self._result,)


class Reader:
    """A runner that reads its input once where it lies and once from its own memory.

    It returns both times and when it began, seconds: the difference is what reading another
    core's data costs.
    """

    def __init__(self, nbytes: int) -> None:
        self._own = np.zeros(nbytes, np.uint8)
        self._other = np.zeros(nbytes, np.uint8)

    def run(self, inputs: tuple[Array, ...]) -> tuple[Array, ...]:
        """Copy twice and return the times."""
        began = time.perf_counter()
        np.copyto(self._own, inputs[0])
        handed = time.perf_counter()
        np.copyto(self._other, self._own)
        return (np.array([began, handed - began, time.perf_counter() - handed]),)


def writer(nbytes: int, *, threads: int, cpus: Sequence[int]) -> Writer:
    """Runner factory (see `partitioner.runtime.spec.RunnerSpec`)."""
    return Writer(nbytes)


def reader(nbytes: int, *, threads: int, cpus: Sequence[int]) -> Reader:
    """Runner factory (see `partitioner.runtime.spec.RunnerSpec`)."""
    return Reader(nbytes)


def measure_handover(first: Device, second: Device) -> Handover:
    """Cost of a hop from a stage on `first` to one on `second`.

    The fixed part is the period of two stages that do next to nothing, which is all that a stage
    does for an item besides running it; it is booked half on each end of the hop. By size, the
    producer pays for its copy into the channel, into lines that the consumer has just read, and
    the consumer for reading lines that another core has written.

    Parameters
    ----------
    first, second : Device
        CPU devices; the same one is fine where there is no other.

    Returns
    -------
    Handover
    """
    small_period_s, small_send_s, _ = _run(first, second, _SMALL)
    _, large_send_s, large_read_s = _run(first, second, _LARGE)
    return Handover(
        send_base_s=small_period_s / 2,
        send_s_per_byte=max(0.0, large_send_s - small_send_s) / (_LARGE - _SMALL),
        recv_base_s=small_period_s / 2,
        recv_s_per_byte=max(0.0, large_read_s) / _LARGE,
    )


def _run(first: Device, second: Device, nbytes: int) -> tuple[float, float, float]:
    """Period, the writer's send time, the reader's extra time: median seconds an item."""
    tensors: dict[int | str, TensorSpec] = {
        0: TensorSpec("number", (1,), "uint8"),
        1: TensorSpec("data", (nbytes,), "uint8"),
        2: TensorSpec("times", (3,), "float64"),
    }
    stages = tuple(
        StageSpec(
            name,
            (ReplicaSpec(device.cpus, 1, RunnerSpec(f"{__name__}:{name}", (nbytes,))),),
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
