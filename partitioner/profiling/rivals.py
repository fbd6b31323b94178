"""Keeps the other cores busy while some are measured: the same model, run over and over on them.

Started as ``python -m partitioner.profiling.rivals``, it is such a load; it runs until its standard
input is closed, and so never outlives who started it.
"""

from __future__ import annotations

import json
import select
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from partitioner.errors import ProfileError
from partitioner.graph import Tensor
from partitioner.machine import Device, Machine
from partitioner.profiling import agent
from partitioner.profiling.measure import request_for
from partitioner.runtime.environment import stage_environment

if TYPE_CHECKING:  # a load runs what is built
    from partitioner.runtime.build import Built

__all__ = ["busy", "main", "rivals_of"]

_READY = "ready"
# Loading a library and its first run take seconds on a slow core.
_PATIENCE_S = 120.0


def rivals_of(machine: Machine, device: Device) -> tuple[Device, ...]:
    """What the machine's other stages have while one has `device`: the cores left, by cluster.

    Parameters
    ----------
    machine : Machine
        All devices.
    device : Device
        Some of its cores.
    """
    left = (
        (other, tuple(cpu for cpu in other.cpus if cpu not in device.cpus))
        for other in machine.devices
        if other.kind == "cpu"
    )
    return tuple(replace(other, cpus=cpus) for other, cpus in left if cpus)


@contextmanager
def busy(rivals: Sequence[tuple[Built, Device]], inputs: Sequence[Tensor]) -> Iterator[None]:
    """Run compiled models on devices, again and again, until the block ends.

    Parameters
    ----------
    rivals : sequence of (Built, Device)
        What runs where; the block begins when all have run once.
    inputs : sequence of Tensor
        What the models take.

    Raises
    ------
    ProfileError
        If one cannot be started, or ends before the block does; with what it said.
    """
    loads: list[subprocess.Popen[str]] = []
    try:
        loads += [_start(built, inputs, device) for built, device in rivals]
        for load, (_, device) in zip(loads, rivals, strict=True):
            _require_ready(load, device)
        yield
        for load, (_, device) in zip(loads, rivals, strict=True):
            if load.poll() is not None:
                raise _failure(load, device)
    finally:
        for load in loads:
            load.kill()
            load.communicate()


def _start(built: Built, inputs: Sequence[Tensor], device: Device) -> subprocess.Popen[str]:
    load = subprocess.Popen(
        [sys.executable, "-m", "partitioner.profiling.rivals"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=stage_environment(device.threads),
    )
    assert load.stdin
    load.stdin.write(json.dumps(request_for(built, inputs, device, seed=0)) + "\n")
    load.stdin.flush()
    return load


def _require_ready(load: subprocess.Popen[str], device: Device) -> None:
    assert load.stdout
    there, _, _ = select.select([load.stdout], [], [], _PATIENCE_S)
    if not there:
        raise ProfileError(
            f"a load for {device.name!r} did not start within {_PATIENCE_S:.0f} s; is something "
            "else holding its cores?"
        )
    if load.stdout.readline().strip() != _READY:
        raise _failure(load, device)


def _failure(load: subprocess.Popen[str], device: Device) -> ProfileError:
    load.kill()
    _, said = load.communicate()
    lines = said.strip().splitlines() or [f"exit status {load.returncode}"]
    return ProfileError(f"a load for {device.name!r} failed: {lines[-1]}")


def main() -> int:
    """Be a load: run what the first line of standard input asks for until that is closed."""
    request: dict[str, Any] = json.loads(sys.stdin.readline())
    agent.settle(request)
    executable, inputs = agent.prepare(request)
    executable.run(inputs)
    print(_READY, flush=True)
    while not select.select([sys.stdin], [], [], 0)[0]:
        executable.run(inputs)
    return 0


if __name__ == "__main__":
    sys.exit(main())
