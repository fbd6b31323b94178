"""A stage's worker: take an item's inputs, run, hand the outputs over, in order, until stopped.

The same code serves a process and a thread; `partitioner.runtime.hosts` starts either.
"""

from __future__ import annotations

import importlib
import itertools
import threading
import traceback
from collections.abc import Iterator
from time import perf_counter_ns
from typing import Any, Protocol

import numpy as np

from partitioner.errors import BuildError, DeviceError, StageError
from partitioner.runtime import affinity, cgroup
from partitioner.runtime.channel import Arena, Receiver, Sender, copy
from partitioner.runtime.link import Link
from partitioner.runtime.spec import RunnerSpec
from partitioner.runtime.trace import Log
from partitioner.runtime.wiring import Routes, WorkerSpec

__all__ = ["Runner", "Worker", "serve"]

# A wait ends when the awaited comes or the pipeline stops (which wakes every waiter); looking up
# now and then costs nothing and needs no proof that no wake-up can be missed.
_LOOK_UP_S = 1.0

Arrays = tuple[np.ndarray[Any, np.dtype[Any]], ...]


class Runner(Protocol):
    """What computes a stage."""

    def run(self, inputs: Arrays) -> Arrays:
        """Compute one item.

        Parameters
        ----------
        inputs : tuple of ndarray
            In the stage's order. They lie in shared memory and are valid during the call only;
            each comes at one of a few addresses, always the same.

        Returns
        -------
        tuple of ndarray
            In the stage's order. They may alias inputs or the runner's own memory.
        """
        ...  # pragma: no cover


class _Stopped(Exception):  # noqa: N818 - not an error
    """The pipeline stops."""


def serve(spec: WorkerSpec, arena: Arena, link: Link, *, whole_process: bool) -> bool:
    """Be the worker that `spec` describes until the pipeline stops or the stage fails.

    Parameters
    ----------
    spec : WorkerSpec
        The worker.
    arena : Arena
        The pipeline's shared memory.
    link : Link
        Where to say that it is ready, or what went wrong.
    whole_process : bool
        Whether every thread of this process belongs to the worker, and must keep to its CPUs.

    Returns
    -------
    bool
        Whether it ended without a failure.
    """
    log = Log(spec.log, arena)
    try:
        _take_place(spec, whole_process)
        runner = _load(spec.runner)(*spec.runner.args, threads=spec.threads, cpus=tuple(spec.cpus))
        worker = Worker(spec, arena, runner, log)
        worker.warm_up()
        # After the first run, since that is when libraries start their threads.
        mine = None if whole_process else {threading.get_native_id()}
        seen = affinity.check(spec.cpus, mine)
        link.send({"event": "ready", "threads": {str(tid): sorted(seen[tid]) for tid in seen}})
        worker.loop()
    except _Stopped:
        return True
    except Exception as error:  # The door of the worker: a runner may raise anything at all.
        link.send(
            {
                "event": "failed",
                "item": log.current(),
                "type": type(error).__name__,
                "text": str(error),
                "traceback": traceback.format_exc(),
            }
        )
        return False
    return True


def _take_place(spec: WorkerSpec, whole_process: bool) -> None:
    if spec.cgroup is not None:
        if not whole_process:
            raise DeviceError(
                f"a thread cannot join the control group {spec.cgroup}, its whole process would; "
                "run the pipeline with workers='process', or on devices without a group."
            )
        cgroup.join(spec.cgroup)  # First: a group may take cores away.
    affinity.pin(spec.cpus)


class Worker:
    """The channels and the runner of one replica.

    Parameters
    ----------
    spec : WorkerSpec
        The worker.
    arena : Arena
        The pipeline's shared memory.
    runner : Runner
        What computes the stage.
    log : Log
        Where times are recorded.
    """

    def __init__(self, spec: WorkerSpec, arena: Arena, runner: Runner, log: Log) -> None:
        self._spec = spec
        self._memory = arena.memory
        self._runner = runner
        self._log = log
        self._receives = [Routes[Receiver](port, Receiver, arena) for port in spec.receives]
        self._sends = [Routes[Sender](port, Sender, arena) for port in spec.sends]
        self._expected = [(tensor.shape, tensor.numpy_dtype) for tensor in spec.outputs]
        # Where each input is found: which port, which tensor of its slot.
        places = {
            position: (number, index)
            for number, port in enumerate(spec.receives)
            for index, position in enumerate(port.positions)
        }
        self._places = [places[position] for position in range(len(spec.inputs))]

    def warm_up(self) -> None:
        """Run once on what the queues hold before the first item: zeros."""
        item = self._spec.pattern.index(self._spec.replica)
        slots = [routes.at(item).slot for routes in self._receives]
        self._check(self._runner.run(self._gather(slots)))

    def loop(self) -> None:
        """Serve items until the pipeline stops.

        Raises
        ------
        StageError
            If the runner's outputs are not what the stage promised.
        """
        log, run = self._log, self._runner.run
        for item in self._items():
            begin = perf_counter_ns()
            receivers = [routes.at(item) for routes in self._receives]
            for receiver in receivers:
                self._until(receiver.take)
            ready = perf_counter_ns()
            log.start(item)
            outputs = run(self._gather([receiver.slot for receiver in receivers]))
            self._check(outputs)
            ran = perf_counter_ns()
            senders = [(routes.at(item), routes.positions) for routes in self._sends]
            for sender, _ in senders:
                self._until(sender.reserve)
            room = perf_counter_ns()
            for sender, positions in senders:
                for target, position in zip(sender.slot, positions, strict=True):
                    copy(target, outputs[position])
            # Inputs go back only now: outputs may alias them.
            for receiver in receivers:
                receiver.release()
            # Recorded before the last step, so that who has an item's results has its times.
            log.finish(item, begin, ready, ran, room, perf_counter_ns())
            for sender, _ in senders:
                sender.commit()

    def _items(self) -> Iterator[int]:
        pattern, replica = self._spec.pattern, self._spec.replica
        mine = [number for number, one in enumerate(pattern) if one == replica]
        return (base + number for base in itertools.count(0, len(pattern)) for number in mine)

    def _gather(self, slots: list[Arrays]) -> Arrays:
        return tuple([slots[port][index] for port, index in self._places])

    def _until(self, wait: Any) -> None:
        while not wait(_LOOK_UP_S):
            if self._memory[0]:
                raise _Stopped
        # Stopping wakes waiters by adding units, which look like items.
        if self._memory[0]:
            raise _Stopped

    def _check(self, outputs: Arrays) -> None:
        found = [(array.shape, array.dtype) for array in outputs]
        if found == self._expected:
            return
        shown = ", ".join(f"{dtype}{list(shape)}" for shape, dtype in found)
        needed = ", ".join(str(tensor) for tensor in self._spec.outputs)
        raise StageError(
            f"the runner returned [{shown}], needed [{needed}]; the stage's outputs and its "
            "executable do not belong together.",
            stage=self._spec.stage,
            item=self._log.current(),
        )


def _load(runner: RunnerSpec) -> Any:
    module, _, name = runner.factory.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise BuildError(
            f"runner factory {runner.factory!r} cannot be loaded ({error}); "
            "needed 'package.module:function', importable where the pipeline runs."
        ) from error
