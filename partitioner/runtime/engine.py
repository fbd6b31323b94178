"""The caller's side of a running pipeline: feeds, collects, keeps promises.

Everything is done by the threads that call: whoever needs a result collects results, in order,
for all, until its own is there. Once awake, a thread takes all there is without waiting and
without giving up the interpreter lock, since in a process with other busy Python threads getting
the lock back costs milliseconds; deep queues at both ends cover the time between two visits.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any

import numpy as np

from partitioner.errors import DeviceError, InputError, PartitionerError
from partitioner.runtime.affinity import allowed_cpus
from partitioner.runtime.channel import Arena, Receiver, Sender, copy
from partitioner.runtime.crew import Crew
from partitioner.runtime.hosts import HOSTS
from partitioner.runtime.spec import PipelineSpec
from partitioner.runtime.wiring import Routes, wire

__all__ = ["Engine", "Ticket"]

Arrays = tuple[np.ndarray[Any, np.dtype[Any]], ...]

_SLICE_S = 0.1  # How long a wait lasts before the workers are looked at: a failure's delay.
_LEAVE_S = 2.0  # How long the collecting thread may take to leave; a callback may hold it.


class _Promise(Future[Any]):
    """A future that knows whether its result is one array."""

    def __init__(self, single: bool) -> None:
        super().__init__()
        self.single = single


class Ticket:
    """An item on its way."""

    __slots__ = ("done", "error", "future", "item", "kept", "value", "wanted")

    def __init__(self, item: int, kept: dict[int, Any], future: _Promise | None) -> None:
        self.item = item
        self.kept = kept
        self.future = future
        self.wanted = True
        self.done = False
        self.value: Arrays = ()
        self.error: PartitionerError | None = None

    def result(self) -> Arrays:
        """Return the outputs of a ticket that is done.

        Raises
        ------
        PartitionerError
            If the pipeline failed or was closed instead.
        """
        if self.error is not None:
            raise self.error
        return self.value


class Engine:
    """A pipeline's workers, memory and items.

    Parameters
    ----------
    spec : PipelineSpec
        The pipeline.
    workers : {"process", "thread"}
        What a worker lives in.
    slots : int or None
        Depth of every queue; chosen when None.
    log_items : int
        How many items' times each worker keeps.
    start_timeout_s : float
        How long workers may take to get ready.

    Raises
    ------
    DeviceError
        If a worker cannot have the CPUs it was promised.
    StageError, BuildError
        If a worker does not get ready; none is left running.
    """

    def __init__(
        self,
        spec: PipelineSpec,
        workers: str,
        slots: int | None,
        log_items: int,
        start_timeout_s: float,
    ) -> None:
        if workers not in HOSTS:
            raise InputError(f"pipeline: unknown workers {workers!r}; known: {sorted(HOSTS)}.")
        if slots is not None and slots < 1:
            raise InputError(f"pipeline: found {slots} slots, at least 1 is needed.")
        if unusable := spec.unusable_cpus():
            raise DeviceError(
                f"pipeline: {', '.join(unusable)}, but this process may use "
                f"{sorted(allowed_cpus())}; plan again for these, or give the process the CPUs "
                "that the plan was made for (taskset, cpuset, container limit)."
            )
        self._wiring = wiring = wire(spec, slots, log_items)
        self.capacity = wiring.capacity
        self._arena = Arena(wiring.nbytes)
        for layout in wiring.channels:
            layout.initialise(self._arena)
        self._feeds = [Routes[Sender](port, Sender, self._arena) for port in wiring.feeds]
        self._sinks = [Routes[Receiver](port, Receiver, self._arena) for port in wiring.sinks]
        # Each output: a tensor that a stage returns, or an input given straight back.
        self._returned = [
            (False, spec.inputs.index(tensor))
            if tensor in spec.inputs
            else (True, wiring.returned.index(tensor))
            for tensor in spec.outputs
        ]
        self._kept = sorted({position for made, position in self._returned if not made})
        self._pid = os.getpid()
        self._next = 0
        self._pending: deque[Ticket] = deque()
        self._sending = threading.Lock()
        self._turn = threading.Condition()
        self._leader: int | None = None
        self._closing = threading.Lock()
        self._looking = threading.Lock()
        self._closed: PartitionerError | None = None
        self._promised: SimpleQueue[Ticket | None] = SimpleQueue()
        self._collector: threading.Thread | None = None
        self.crew = Crew(wiring, self._arena, workers, start_timeout_s)

    @property
    def in_flight(self) -> int:
        """How many items were sent and not yet collected."""
        return len(self._pending)

    # Sending

    def try_send(self, arrays: Arrays, future: _Promise | None = None) -> Ticket | None:
        """Send an item if there is room for it in every queue it goes to; else return None."""
        with self._sending:
            self._ensure_open()
            ends = [(routes.at(self._next), routes.positions) for routes in self._feeds]
            for sender, _ in ends:
                if not sender.try_reserve():
                    return None
            for sender, positions in ends:
                for target, position in zip(sender.slot, positions, strict=True):
                    copy(target, arrays[position])
            kept = {position: _owned(arrays[position]) for position in self._kept}
            ticket = Ticket(self._next, kept, future)
            self._next += 1
            self._pending.append(ticket)
            for sender, _ in ends:
                sender.commit()
            return ticket

    def send(self, arrays: Arrays, future: _Promise | None = None) -> Ticket:
        """Send an item, waiting for room; results are collected meanwhile."""
        while (ticket := self.try_send(arrays, future)) is None:
            self.wait_room()
        return ticket

    def wait_room(self) -> None:
        """Wait a while for room for the next item, or for what has to happen before.

        Below `capacity` the stages make room by themselves; beyond, results must be collected.
        """
        if self.in_flight >= self.capacity:
            self.wait_for(self._pending[0])
            return
        with self._sending:
            self._ensure_open()
            room = all(routes.at(self._next).reserve(_SLICE_S) for routes in self._feeds)
        if not room:
            self._look_at_workers()
            self.drain()

    # Collecting

    def wait_for(self, ticket: Ticket) -> None:
        """Collect results until `ticket` is done."""
        while not ticket.done:
            if self._closed is None:
                self._lead(ticket)
            else:  # Whoever closes tells the tickets.
                with self._turn:
                    self._turn.wait_for(lambda: ticket.done)

    def drain(self) -> None:
        """Collect the results that are there."""
        self._lead(None)

    def _lead(self, ticket: Ticket | None) -> None:
        """Collect as the only one, or wait for whoever does; without a ticket, wait for nothing."""
        with self._turn:
            while self._leader is not None:
                if ticket is None:
                    return
                self._turn.wait()
                if ticket.done:
                    return
            self._leader = threading.get_ident()
        done: list[Ticket] = []
        try:
            if ticket is not None and not ticket.done:
                self._collect(done, wait=True)
            while self._pending and self._collect(done, wait=False):
                pass
        finally:
            with self._turn:
                self._leader = None
                self._turn.notify_all()
            _keep_promises(done)

    def _collect(self, done: list[Ticket], *, wait: bool) -> bool:
        """Complete the oldest item; whether it was there."""
        ticket = self._pending[0]
        ends = [(routes.at(ticket.item), routes.positions) for routes in self._sinks]
        for receiver, _ in ends:
            while not receiver.try_take():
                if not wait:
                    return False
                if not receiver.take(_SLICE_S):
                    self._look_at_workers()
                if self._closed is not None:
                    return False
        if self._closed is not None:  # Stopping adds units that are no items.
            return False
        if ticket.wanted:
            made: dict[int, Any] = {}
            for receiver, positions in ends:
                for array, position in zip(receiver.slot, positions, strict=True):
                    made[position] = _owned(array)
            ticket.value = tuple(
                made[position] if from_stage else ticket.kept[position]
                for from_stage, position in self._returned
            )
        for receiver, _ in ends:
            receiver.release()
        ticket.done = True
        self._pending.popleft()
        done.append(ticket)
        return True

    def promise(self, arrays: Arrays, *, single: bool) -> Future[Any]:
        """Send an item, waiting for room, and return a future of its outputs.

        Parameters
        ----------
        arrays : tuple of ndarray
            The inputs.
        single : bool
            Whether the future's result is the one output rather than a tuple.
        """
        promise = _Promise(single)
        promise.set_running_or_notify_cancel()
        self._promised.put(self.send(arrays, promise))
        with self._closing:
            if self._collector is None and self._closed is None:
                self._collector = threading.Thread(
                    target=self._collect_promised, name="pipeline-collector", daemon=True
                )
                self._collector.start()
        return promise

    def _collect_promised(self) -> None:
        while (ticket := self._promised.get()) is not None:
            self.wait_for(ticket)

    # Failing and stopping

    def _ensure_open(self) -> None:
        if self._closed is not None:
            raise self._closed

    def _look_at_workers(self) -> None:
        """Close with an error if a worker failed or is gone."""
        with self._looking:
            failure = None if self._closed is not None else self.crew.failure()
            found = failure is not None and self._mark_closed(failure)
        if found:
            self._stop()

    def close(self) -> None:
        """Stop all workers and give up the items on their way; again is harmless."""
        if os.getpid() != self._pid:
            return  # A fork of the caller ends; the pipeline is not its own.
        message = "pipeline: it is closed; open a new one to run more items."
        if self._mark_closed(PartitionerError(message)):
            self._stop()

    def _mark_closed(self, reason: PartitionerError) -> bool:
        """Let nothing in any more; whether this call was the first to say so."""
        with self._closing:
            if self._closed is not None:
                return False
            self._closed = reason
            return True

    def _stop(self) -> None:
        try:
            self.crew.stop()
        finally:
            self._give_up()

    def _give_up(self) -> None:
        """Tell whoever waits that nothing will come."""
        me = threading.get_ident()
        with self._turn:  # Whoever collects sees that we are closed, and leaves.
            self._turn.wait_for(lambda: self._leader in (None, me))
        with self._sending:
            left = list(self._pending)
        for ticket in left:
            if not ticket.done:
                ticket.error = self._closed
                ticket.done = True
        with self._turn:
            self._turn.notify_all()
        _keep_promises(left)
        self._promised.put(None)
        if self._collector is not None and self._collector is not threading.current_thread():
            self._collector.join(_LEAVE_S)


def _owned(array: np.ndarray[Any, np.dtype[Any]]) -> np.ndarray[Any, np.dtype[Any]]:
    own = np.empty(array.shape, array.dtype)
    copy(own, array)
    return own


def _keep_promises(tickets: list[Ticket]) -> None:
    """Complete the futures of done tickets; outside all locks, since callbacks may call us."""
    for ticket in tickets:
        if ticket.future is None:
            continue
        if ticket.error is not None:
            ticket.future.set_exception(ticket.error)
        else:
            ticket.future.set_result(ticket.value[0] if ticket.future.single else ticket.value)
