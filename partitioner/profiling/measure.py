"""Times of ops in place and of whole stages, taken in fresh processes on the device's own cores."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from partitioner.errors import ProfileError
from partitioner.graph import Tensor
from partitioner.machine import Device
from partitioner.profiling.table import Measurement
from partitioner.runtime.build import Built

__all__ = ["InPlace", "measure_in_place", "measure_whole"]

# A process that takes this much longer than it was given hangs.
_PATIENCE_S = 300.0


@dataclass(frozen=True, slots=True)
class InPlace:
    """Times of one module on one device.

    Attributes
    ----------
    total : Measurement
        The whole, not traced.
    ops : tuple of (str, Measurement)
        Each op's kernels.
    dispatch_s : float
        What a whole run takes beyond its kernels, by op: the VM's own work.
    """

    total: Measurement
    ops: tuple[tuple[str, Measurement], ...]
    dispatch_s: float


def measure_in_place(
    built: Built,
    inputs: Sequence[Tensor],
    device: Device,
    *,
    seconds: float,
    processes: int = 2,
    seed: int = 0,
) -> InPlace:
    """Time every op of a compiled module where it runs: in its module, on the device's cores.

    Several fresh processes share the time, since where memory happens to lie moves a process's
    times as a whole.

    Parameters
    ----------
    built : Built
        The compiled module.
    inputs : sequence of Tensor
        What it takes.
    device : Device
        Its cores and threads.
    seconds : float
        Measuring time in all; every process does a few rounds at least.
    processes : int
        Fresh processes.
    seed : int
        Of the random inputs.

    Raises
    ------
    ProfileError
        If the measuring process fails; with what it said.
    """
    totals: list[float] = []
    per_op: list[list[float]] = [[] for _ in built.kernels]
    for process in range(processes):
        answer = _ask(built, inputs, device, seconds / processes, seed + process, traced=True)
        totals += answer["total_s"]
        for times, more in zip(per_op, answer["op_s"], strict=True):
            times += more
    total = Measurement.of(totals)
    ops = tuple(
        (op, Measurement.of(times)) for (op, _), times in zip(built.kernels, per_op, strict=True)
    )
    beyond = total.median_s - sum(row.median_s for _, row in ops)
    return InPlace(total, ops, max(0.0, beyond) / max(1, len(ops)))


def measure_whole(
    built: Built,
    inputs: Sequence[Tensor],
    device: Device,
    *,
    seconds: float,
    processes: int = 2,
    seed: int = 0,
) -> Measurement:
    """Time a compiled stage alone on its cores, as `measure_in_place` does, without tracing."""
    totals: list[float] = []
    for process in range(processes):
        totals += _ask(built, inputs, device, seconds / processes, seed + process, traced=False)[
            "total_s"
        ]
    return Measurement.of(totals)


def _ask(
    built: Built,
    inputs: Sequence[Tensor],
    device: Device,
    seconds: float,
    seed: int,
    *,
    traced: bool,
) -> dict[str, Any]:
    request = {
        "library": str(built.path),
        "cpus": list(device.cpus),
        "threads": device.threads,
        "inputs": [(tensor.shape, tensor.dtype) for tensor in inputs],
        "seed": seed,
        "seconds": seconds,
        "kernels": built.kernels if traced else [],
    }
    threads = str(device.threads)
    environment = {**os.environ, "TVM_NUM_THREADS": threads, "OPENBLAS_NUM_THREADS": threads}
    try:
        done = subprocess.run(
            [sys.executable, "-m", "partitioner.profiling.agent"],
            input=json.dumps(request),
            capture_output=True,
            text=True,
            env=environment,
            timeout=seconds + _PATIENCE_S,
            check=True,
        )
    except subprocess.CalledProcessError as error:
        said = error.stderr.strip().splitlines() or [f"exit status {error.returncode}"]
        raise ProfileError(
            f"measuring {built.path.name} on {device.name!r} failed: {said[-1]}"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise ProfileError(
            f"measuring {built.path.name} on {device.name!r} did not end within "
            f"{seconds + _PATIENCE_S:.0f} s; is something else holding its cores?"
        ) from error
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer
