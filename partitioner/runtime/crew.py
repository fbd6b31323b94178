"""All workers of a pipeline: started together, watched, stopped together."""

from __future__ import annotations

import select
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from partitioner import errors
from partitioner.errors import PartitionerError, StageError
from partitioner.runtime.channel import Arena
from partitioner.runtime.hosts import HOSTS, Host
from partitioner.runtime.trace import Log, Records
from partitioner.runtime.wiring import Wiring

__all__ = ["Crew", "Member"]

_GRACE_S = 2.0  # How long workers may finish their items when the pipeline stops.


@dataclass(frozen=True, slots=True)
class Member:
    """A worker as others see it.

    Attributes
    ----------
    stage, replica : int
        Which worker.
    name : str
        The stage's name.
    cpus : tuple of int
        The CPUs that its threads keep to.
    pid : int
        Its process; the caller's for a worker thread.
    """

    stage: int
    replica: int
    name: str
    cpus: tuple[int, ...]
    pid: int


class Crew:
    """The workers, ready for items.

    Parameters
    ----------
    wiring : Wiring
        What each does.
    arena : Arena
        The pipeline's memory; its descriptor is closed here, once every worker has it.
    kind : str
        A key of `HOSTS`.
    timeout_s : float
        How long they may take to get ready.

    Raises
    ------
    DeviceError
        If one cannot have the CPUs it was promised.
    StageError, BuildError
        If one does not get ready. None is left running then.
    """

    def __init__(self, wiring: Wiring, arena: Arena, kind: str, timeout_s: float) -> None:
        self._wiring = wiring
        self._arena = arena
        self._hosts: list[Host] = []
        try:
            for worker in wiring.workers:
                self._hosts.append(HOSTS[kind](worker, arena))
            self._wait_ready(timeout_s)
        except BaseException:
            self.stop()
            raise
        finally:
            arena.close_fd()

    @property
    def members(self) -> tuple[Member, ...]:
        """Who they are, in the order of stages and replicas."""
        return tuple(
            Member(host.spec.stage, host.spec.replica, host.spec.name, host.spec.cpus, host.pid)
            for host in self._hosts
        )

    def records(self) -> Iterator[Records]:
        """Yield the records of each worker."""
        for worker in self._wiring.workers:
            rows = Log(worker.log, self._arena).read()
            yield Records(worker.stage, worker.replica, worker.name, rows)

    def at_work(self, worker: int) -> int | None:
        """Return the item that a worker is working on, None between items.

        Parameters
        ----------
        worker : int
            Counted over stages and replicas.
        """
        return Log(self._wiring.workers[worker].log, self._arena).current()

    def failure(self) -> PartitionerError | None:
        """Return what went wrong with a worker, None if nothing has."""
        for number, host in enumerate(self._hosts):
            message = host.link.receive()
            if message is not None and message["event"] == "failed":
                return _explain(host, message, starting=False)
            if message is None and host.link.ended:
                return _explain_death(host, self.at_work(number))
        return None

    def stop(self) -> None:
        """Stop all workers: ask, wait a while, end those that are processes."""
        self._arena.memory[0] = 1
        for layout in self._wiring.channels:
            layout.filled(self._arena).release()
            layout.free(self._arena).release()
        until = time.monotonic() + _GRACE_S
        try:
            for host in self._hosts:
                host.join(max(0.0, until - time.monotonic()))
        finally:  # A second Ctrl-C shortens the wait, it does not leave workers behind.
            for host in self._hosts:
                host.end()

    def _wait_ready(self, timeout_s: float) -> None:
        until = time.monotonic() + timeout_s
        waiting: dict[int, Host] = {host.link.fileno(): host for host in self._hosts}
        poll = select.poll()
        for fd in waiting:
            poll.register(fd, select.POLLIN)
        while waiting:
            ready = poll.poll(max(0.0, until - time.monotonic()) * 1e3)
            if not ready:
                late = ", ".join(str(host.spec) for host in waiting.values())
                raise StageError(
                    f"{late}: not ready after {timeout_s:g} s; loading or the first run hangs, or "
                    "needs a longer start_timeout_s.",
                    stage=next(iter(waiting.values())).spec.stage,
                )
            for fd, _ in ready:
                host = waiting[fd]
                message = host.link.receive()
                if message is not None and message["event"] == "failed":
                    raise _explain(host, message, starting=True)
                if message is not None:
                    poll.unregister(fd)
                    del waiting[fd]
                elif host.link.ended:
                    raise _explain_death(host, None)


def _explain(host: Host, message: dict[str, Any], starting: bool) -> PartitionerError:
    """The error a worker reported, as one of ours."""
    item, kind, text = message["item"], message["type"], message["text"]
    where = f"{host.spec}" + ("" if item is None else f", item {item}")
    if starting and kind in errors.__all__ and kind != "StageError":
        error: PartitionerError = getattr(errors, kind)(f"{where}: {text}")
        return error
    doing = "the worker could not start" if starting else "the stage failed"
    return StageError(
        f"{where}: {doing}: {kind}: {text}\n"
        f"The pipeline is shut down. In the worker:\n{message['traceback']}",
        stage=host.spec.stage,
        item=item,
    )


def _explain_death(host: Host, item: int | None) -> StageError:
    where = f"{host.spec}" + ("" if item is None else f", item {item}")
    return StageError(
        f"{where}: the worker {host.fate()} without a word; a crash in a kernel, or memory "
        "ran out, or somebody ended it. The pipeline is shut down.",
        stage=host.spec.stage,
        item=item,
    )
