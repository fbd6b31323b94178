"""Workers that slow one another down: an event simulation with rates.

While a worker computes or copies, it does so at a rate that depends on which others are busy just
then; whenever one of them starts or stops, the rates change and what is left takes another time.
That is processor sharing (Kleinrock, "Time-shared systems: a theoretical treatment", JACM 1967)
with a slowdown of each pair of workers instead of one processor's equal shares.
"""

from __future__ import annotations

import math

import numpy as np

from partitioner.errors import InputError
from partitioner.runtime.wiring import CALLER, Wiring
from partitioner.simulation.contention import Contention
from partitioner.simulation.moments import Moments, Orders, Routing

__all__ = ["by_events"]

_WAITING, _RUNNING, _BLOCKED, _SENDING = range(4)


def by_events(wiring: Wiring, orders: Orders, contention: Contention) -> Moments:
    """Simulate a pipeline whose workers slow one another down; some 20 us an item on a stage.

    Parameters
    ----------
    wiring : Wiring
        The pipeline.
    orders : Orders
        What is to be done.
    contention : Contention
        How much they do.

    Raises
    ------
    InputError
        If the contention is of another number of workers.
    """
    count = len(wiring.workers)
    if contention.extra.shape != (count, count):
        raise InputError(
            f"simulation: contention of {len(contention.extra)} workers, the pipeline has {count}; "
            "make it for this plan"
        )
    run = _Run(wiring, orders, contention)
    run.go()
    return run.moments


class _Channels:
    """How many slots of each channel are filled and free, and when each item came."""

    def __init__(self, routing: Routing) -> None:
        self.filled = [0] * len(routing.slots)
        self.free = list(routing.slots)
        self._came: list[list[float]] = [[] for _ in routing.slots]
        self._taken = [0] * len(routing.slots)
        # Whom to tell when a channel is filled or emptied.
        self.producer = [CALLER] * len(routing.slots)
        self.consumer = [CALLER] * len(routing.slots)
        for cycle in routing.stages:
            for worker, into, out in cycle:
                for channel in into:
                    self.consumer[channel] = worker
                for channel in out:
                    self.producer[channel] = worker

    def fill(self, channel: int, now: float) -> None:
        self.filled[channel] += 1
        self._came[channel].append(now)

    def take(self, channels: list[int]) -> float | None:
        """Take an item from all of them, if it lies in all; when its last tensor came."""
        if not all(self.filled[channel] for channel in channels):
            return None
        last = 0.0
        for channel in channels:
            self.filled[channel] -= 1
            last = max(last, self._came[channel][self._taken[channel]])
            self._taken[channel] += 1
        return last

    def reserve(self, channels: list[int]) -> bool:
        """Take a free slot of all of them, if each has one."""
        if not all(self.free[channel] for channel in channels):
            return False
        for channel in channels:
            self.free[channel] -= 1
        return True


class _Run:
    """What every worker and the caller are doing at one moment, and what comes next."""

    def __init__(self, wiring: Wiring, orders: Orders, contention: Contention) -> None:
        self._routing = routing = Routing(wiring, len(orders.run_s))
        self._channels = _Channels(routing)
        self._orders, self._extra = orders, contention.extra
        self._now, self._items = 0.0, len(orders.run_s)
        # Workers: which items are theirs, what they do, how much of it is left.
        self._stage = [worker.stage for worker in wiring.workers]
        self._mine = [_own_items(worker.pattern, worker.replica) for worker in wiring.workers]
        self._served = [0] * len(self._stage)
        self._phase = [_WAITING] * len(self._stage)
        self._left_s = np.full(len(self._stage), math.inf)
        self._busy = np.zeros(len(self._stage))
        self._pace = np.ones(len(self._stage))
        # The caller: what was handed in and taken, and when its next steps are due.
        self._fed = self._collected = 0
        self._feed_due = self._collect_due = math.inf
        self._caller_free = 0.0
        line, table = np.zeros(self._items), np.zeros(orders.run_s.shape)
        self.moments = Moments(
            entered_s=line.copy(),
            there_s=table.copy(),
            ready_s=table.copy(),
            ran_s=table.copy(),
            room_s=table.copy(),
            sent_s=table.copy(),
            made_s=line.copy(),
            done_s=line.copy(),
        )

    def go(self) -> None:
        """Run until the caller has every result."""
        while self._collected < self._items:
            self._feed()
            spans = self._left_s * self._pace
            worker = int(spans.argmin())
            due = self._now + float(spans[worker])
            wake = self._wake()
            first = min(due, wake, self._feed_due, self._collect_due)
            assert first < math.inf, "what waits in a pipeline waits for something that comes"
            passed = (first - self._now) / self._pace
            self._left_s = np.maximum(self._left_s - passed, 0.0)  # infinity stays
            self._now = first
            if first == due:
                self._finish(worker)
            elif first == self._collect_due:
                self._results_taken()
            elif first == self._feed_due:
                self._handed_in()

    # Workers

    def _item(self, worker: int) -> int:
        """Number of the item that the worker is at."""
        period, mine = self._mine[worker]
        cycles, place = divmod(self._served[worker], len(mine))
        return cycles * period + mine[place]

    def _advance(self, worker: int) -> None:
        """Start what the worker waits for, if it is there."""
        phase = self._phase[worker]
        if phase not in (_WAITING, _BLOCKED):
            return
        item, stage = self._item(worker), self._stage[worker]
        if item >= self._items:
            return
        cycle = self._routing.stages[stage]
        _, into, out = cycle[item % len(cycle)]
        if phase == _WAITING:
            there = self._channels.take(into)
            if there is not None:
                self.moments.there_s[item, stage] = there
                self.moments.ready_s[item, stage] = self._now
                self._start(worker, _RUNNING, self._orders.run_s[item, stage])
        elif self._channels.reserve(out):
            self.moments.room_s[item, stage] = self._now
            send_s = self._orders.send_s[item, stage]
            if send_s > 0:
                self._start(worker, _SENDING, send_s)
            else:
                self._sent(worker, item)

    def _start(self, worker: int, phase: int, seconds: float) -> None:
        self._phase[worker] = phase
        self._left_s[worker] = seconds
        self._busy[worker] = 1.0
        self._pace = 1.0 + self._extra @ self._busy

    def _finish(self, worker: int) -> None:
        """End what the worker was doing."""
        self._left_s[worker] = math.inf
        self._busy[worker] = 0.0
        self._pace = 1.0 + self._extra @ self._busy
        item = self._item(worker)
        if self._phase[worker] == _RUNNING:
            self._phase[worker] = _BLOCKED
            self.moments.ran_s[item, self._stage[worker]] = self._now
            self._advance(worker)
        else:
            self._sent(worker, item)

    def _sent(self, worker: int, item: int) -> None:
        """Hand an item's outputs over and turn to the next item."""
        stage = self._stage[worker]
        self._phase[worker] = _WAITING
        self._served[worker] += 1
        self.moments.sent_s[item, stage] = self._now
        cycle = self._routing.stages[stage]
        _, into, out = cycle[item % len(cycle)]
        self._hand_over(into, out)
        self._advance(worker)

    def _hand_over(self, into: list[int], out: list[int]) -> None:
        """Give slots back and fill others, and tell who may wait for them."""
        channels = self._channels
        for channel in into:
            channels.free[channel] += 1
        for channel in out:
            channels.fill(channel, self._now)
        for who in {*(channels.producer[c] for c in into), *(channels.consumer[c] for c in out)}:
            if who == CALLER:
                self._collect()
            else:
                self._advance(who)

    # The caller

    def _wake(self) -> float:
        """When the caller itself lets the next item in; inf while it is handing one in."""
        if self._fed >= self._items or self._feed_due < math.inf:
            return math.inf
        arrivals = self._orders.arrivals_s
        begin = max(self._caller_free, 0.0 if arrivals is None else float(arrivals[self._fed]))
        return begin if begin > self._now else math.inf

    def _feed(self) -> None:
        """Begin to hand the next item in, if it, the caller and room are there."""
        item, window = self._fed, self._orders.window
        if item >= self._items or self._feed_due < math.inf or self._wake() < math.inf:
            return
        full = window is not None and item - self._collected >= window
        feeds = self._routing.feeds
        if not full and self._channels.reserve(feeds[item % len(feeds)]):
            self.moments.entered_s[item] = self._now
            self._feed_due = self._now + self._orders.caller_in_s

    def _handed_in(self) -> None:
        feeds = self._routing.feeds
        channels = feeds[self._fed % len(feeds)]
        self._feed_due = math.inf
        # The caller is one thread: the time in which it takes results is not for handing in.
        self._caller_free = self._now + self._orders.caller_out_s
        self._fed += 1
        self._hand_over([], channels)

    def _collect(self) -> None:
        """Begin to take the next results, if they are there."""
        if self._collect_due < math.inf or self._collected >= self._items:
            return
        sinks = self._routing.sinks
        made = self._channels.take(sinks[self._collected % len(sinks)])
        if made is not None:
            self.moments.made_s[self._collected] = made
            self._collect_due = self._now + self._orders.caller_out_s

    def _results_taken(self) -> None:
        item, sinks = self._collected, self._routing.sinks
        self._collect_due = math.inf
        self.moments.done_s[item] = self._now
        self._collected += 1
        self._hand_over(sinks[item % len(sinks)], [])
        self._collect()


def _own_items(pattern: tuple[int, ...], replica: int) -> tuple[int, list[int]]:
    """The length of a pattern and the places of one replica in it."""
    return len(pattern), [number for number, one in enumerate(pattern) if one == replica]
