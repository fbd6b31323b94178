"""Times of ops in place and of whole stages, taken in fresh processes on the device's own cores."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from partitioner.errors import ProfileError
from partitioner.graph import Tensor
from partitioner.machine import Device
from partitioner.profiling.table import Measurement
from partitioner.runtime.environment import stage_environment

if TYPE_CHECKING:  # building loads a compiler and importers, measuring what is built does not
    from partitioner.runtime.build import Built

__all__ = ["InPlace", "measure_in_place", "measure_whole", "pooled", "request_for"]

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
        The processor time of a whole run beyond its kernels, by op: the VM's own work. Elapsed
        time would count what other processes took of the core.
    stretch : float
        Elapsed time over processor time, where a quota stops the process now and then; 1 where
        none does. It is in all times already.
    """

    total: Measurement
    ops: tuple[tuple[str, Measurement], ...]
    dispatch_s: float
    stretch: float = 1.0


def measure_in_place(
    built: Built, inputs: Sequence[Tensor], device: Device, *, seconds: float, seed: int = 0
) -> InPlace:
    """Time every op of a compiled module where it runs: in its module, on the device's cores.

    One fresh process. Where memory happens to lie moves a process's times as a whole, and a shared
    machine's speed drifts: take several visits and `pooled` them.

    Parameters
    ----------
    built : Built
        The compiled module.
    inputs : sequence of Tensor
        What it takes.
    device : Device
        Its cores and threads.
    seconds : float
        Measuring time; a few rounds are done at least.
    seed : int
        Of the random inputs.

    Raises
    ------
    ProfileError
        If the measuring process fails; with what it said.
    """
    answer = _ask(built, inputs, device, seconds, seed, traced=True)
    total = Measurement.of(answer["total_s"])
    ops = tuple(
        (op, Measurement.of(times))
        for (op, _), times in zip(built.kernels, answer["op_s"], strict=True)
    )
    beyond_s = statistics.median(answer["work_s"]) - sum(row.median_s for _, row in ops)
    return InPlace(total, ops, max(0.0, beyond_s) / max(1, len(ops)), answer["stretch"])


def pooled(visits: Sequence[InPlace]) -> InPlace:
    """Several visits to one device as one: medians of their medians."""
    columns = zip(*(visit.ops for visit in visits), strict=True)
    return InPlace(
        total=_pool([visit.total for visit in visits]),
        ops=tuple((column[0][0], _pool([row for _, row in column])) for column in columns),
        dispatch_s=statistics.median(visit.dispatch_s for visit in visits),
        stretch=statistics.median(visit.stretch for visit in visits),
    )


def _pool(rows: Sequence[Measurement]) -> Measurement:
    between = Measurement.of(row.median_s for row in rows)
    return Measurement(
        median_s=between.median_s,
        # A visit is quiet or not as a whole, so its own spread may hide that others differ.
        iqr_s=max(between.iqr_s, statistics.median(row.iqr_s for row in rows)),
        runs=sum(row.runs for row in rows),
    )


def measure_whole(
    built: Built, inputs: Sequence[Tensor], device: Device, *, seconds: float, seed: int = 0
) -> Measurement:
    """Time a compiled stage alone on its cores, as `measure_in_place` does, without tracing."""
    return Measurement.of(_ask(built, inputs, device, seconds, seed, traced=False)["total_s"])


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
        **request_for(built, inputs, device, seed),
        "seconds": seconds,
        "kernels": built.kernels if traced else [],
    }
    try:
        done = subprocess.run(
            [sys.executable, "-m", "partitioner.profiling.agent"],
            input=json.dumps(request),
            capture_output=True,
            text=True,
            env=stage_environment(device.threads),
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


def request_for(
    built: Built, inputs: Sequence[Tensor], device: Device, seed: int
) -> dict[str, Any]:
    """What a measuring process is told of what it loads and where it belongs, JSON-ready."""
    return {
        "library": str(built.path),
        "cpus": list(device.cpus),
        "threads": device.threads,
        "cgroup": device.cgroup,
        "inputs": [(tensor.shape, tensor.dtype) for tensor in inputs],
        "seed": seed,
    }
