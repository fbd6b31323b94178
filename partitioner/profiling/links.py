"""What handing a tensor from one stage to the next costs, measured in a running pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from partitioner.machine import Device
from partitioner.profiling.table import Handover
from partitioner.runtime.pipeline import Pipeline
from partitioner.runtime.spec import PipelineSpec, ReplicaSpec, RunnerSpec, StageSpec, TensorSpec
from partitioner.runtime.trace import Trace

__all__ = ["Echo", "echo", "measure_handover"]

_SMALL = 64
_LARGE = 4 << 20
_ITEMS = 300

Array = np.ndarray[Any, np.dtype[Any]]


class Echo:
    """A runner that computes nothing: it returns the same array for every item."""

    def __init__(self, nbytes: int) -> None:
        self._result = (np.zeros(nbytes, np.uint8),)

    def run(self, inputs: tuple[Array, ...]) -> tuple[Array, ...]:
        """Return the array."""
        return self._result


def echo(nbytes: int, *, threads: int, cpus: Sequence[int]) -> Echo:
    """Runner factory (see `partitioner.runtime.spec.RunnerSpec`)."""
    return Echo(nbytes)


def measure_handover(first: Device, second: Device) -> Handover:
    """Cost of a hop from a stage on `first` to one on `second`.

    The fixed part is the period of two stages that do nothing, which is all that a stage does for
    an item besides running it; it is booked half on each end of the hop. The part by size is the
    producer's copy into the channel. The consumer reads in place.

    Parameters
    ----------
    first, second : Device
        CPU devices; the same one is fine where there is no other.

    Returns
    -------
    Handover
    """
    small_period_s, small_send_s = _run(first, second, _SMALL)
    _, large_send_s = _run(first, second, _LARGE)
    per_byte = max(0.0, large_send_s - small_send_s) / (_LARGE - _SMALL)
    return Handover(
        send_base_s=small_period_s / 2,
        send_s_per_byte=per_byte,
        recv_base_s=small_period_s / 2,
        recv_s_per_byte=0.0,
    )


def _run(first: Device, second: Device, nbytes: int) -> tuple[float, float]:
    """Period of the second stage and the first's send time, median seconds an item."""
    runner = RunnerSpec("partitioner.profiling.links:echo", (nbytes,))
    stages = tuple(
        StageSpec(f"echo {i}", (ReplicaSpec(device.cpus, 1, runner),), (i,), (i + 1,))
        for i, device in enumerate((first, second))
    )
    tensors: dict[int | str, TensorSpec] = {
        i: TensorSpec(f"t{i}", (nbytes,), "uint8") for i in range(3)
    }
    item = np.zeros(nbytes, np.uint8)
    trace = Trace(_ITEMS + 1)
    with Pipeline(PipelineSpec(stages, tensors, (0,), (2,)), trace=trace) as pipe:
        for _ in pipe.map(item for _ in range(_ITEMS)):
            pass
        sends = pipe.stage_times()[0].send_s
    consumer = next(worker.rows for worker in trace.records() if worker.stage == 1)
    return float(np.median(np.diff(consumer[:, -1]))) / 1e9, sends
