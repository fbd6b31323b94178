"""A pipeline whose times do not depend on one another: each moment from earlier ones.

A bounded queue between workers is a pair of constraints, "not before it is filled" and "not before
the item that held this slot has left", so that all moments follow from a recurrence in maximum and
sum (Baccelli, Cohen, Olsder and Quadrat, "Synchronization and Linearity", 1992, chapter 2). Taken
item by item along the stages, every moment it needs is there already.
"""

from __future__ import annotations

import numpy as np

from partitioner.runtime.wiring import Wiring
from partitioner.simulation.moments import Moments, Orders, Routing

__all__ = ["by_recurrence"]


def by_recurrence(wiring: Wiring, orders: Orders) -> Moments:
    """Simulate a pipeline; a microsecond or two for an item on a stage.

    Parameters
    ----------
    wiring : Wiring
        The pipeline.
    orders : Orders
        What is to be done.
    """
    caller, workers = _Caller(wiring, orders), _Workers(wiring, orders)
    for item in range(len(orders.run_s)):
        caller.feed(item, workers)
        workers.serve(item)
        caller.collect(item, workers)
    stages = np.array(workers.rows).reshape(len(orders.run_s), -1, len(_COLUMNS))
    return Moments(
        entered_s=np.array(caller.entered),
        made_s=np.array(caller.made),
        done_s=np.array(caller.done),
        **{name: stages[:, :, column] for column, name in enumerate(_COLUMNS)},
    )


_COLUMNS = ("there_s", "ready_s", "ran_s", "room_s", "sent_s")


class _Workers:
    """All stages' workers, and when each slot of each channel was filled and emptied."""

    def __init__(self, wiring: Wiring, orders: Orders) -> None:
        self.routing = Routing(wiring, len(orders.run_s))
        self.slots = self.routing.slots
        self.filled: list[list[float]] = [[] for _ in self.slots]
        self.emptied: list[list[float]] = [[] for _ in self.slots]
        self.rows: list[tuple[float, ...]] = []
        self._free = [0.0] * len(wiring.workers)
        self._run, self._send = orders.run_s.tolist(), orders.send_s.tolist()

    def room(self, channels: list[int], since: float) -> float:
        """When every one of `channels` has a free slot, from `since` on."""
        for channel in channels:
            before = len(self.filled[channel]) - self.slots[channel]
            if before >= 0 and self.emptied[channel][before] > since:
                since = self.emptied[channel][before]
        return since

    def there(self, channels: list[int]) -> float:
        """When the item just sent lies in all of `channels`."""
        return max([self.filled[channel][-1] for channel in channels])

    def serve(self, item: int) -> None:
        """Take an item through all stages."""
        filled, emptied, free = self.filled, self.emptied, self._free
        runs, sends = self._run[item], self._send[item]
        for stage, cycle in enumerate(self.routing.stages):
            worker, into, out = cycle[item % len(cycle)]
            there = self.there(into)
            ready = there if there > free[worker] else free[worker]
            ran = ready + runs[stage]
            room = self.room(out, ran)
            sent = room + sends[stage]
            free[worker] = sent
            # An input's slot is given back only when the outputs, which may alias it, have gone.
            for channel in into:
                emptied[channel].append(sent)
            for channel in out:
                filled[channel].append(sent)
            self.rows.append((there, ready, ran, room, sent))


class _Caller:
    """The thread that hands items in and takes results.

    It does both, so that an item keeps it for both times; results are taken as they come, between
    two items that are handed in.
    """

    def __init__(self, wiring: Wiring, orders: Orders) -> None:
        arrivals = orders.arrivals_s
        self._arrivals = None if arrivals is None else arrivals.tolist()
        self._window, self._in_s, self._out_s = (
            orders.window,
            orders.caller_in_s,
            orders.caller_out_s,
        )
        self._free = 0.0
        self.entered: list[float] = []
        self.made: list[float] = []
        self.done: list[float] = []

    def feed(self, item: int, workers: _Workers) -> None:
        """Hand an item in as soon as it, the caller and room are there."""
        begin = self._free
        if self._arrivals is not None:
            begin = max(begin, self._arrivals[item])
        if self._window is not None and item >= self._window:
            begin = max(begin, self.done[item - self._window])
        feeds = workers.routing.feeds
        channels = feeds[item % len(feeds)]
        entered = workers.room(channels, begin)
        fed = entered + self._in_s
        for channel in channels:
            workers.filled[channel].append(fed)
        self._free = fed + self._out_s
        self.entered.append(entered)

    def collect(self, item: int, workers: _Workers) -> None:
        """Take an item's results, after those of the items before."""
        sinks = workers.routing.sinks
        channels = sinks[item % len(sinks)]
        made = workers.there(channels)
        done = max(made, self.done[-1] if self.done else 0.0) + self._out_s
        for channel in channels:
            workers.emptied[channel].append(done)
        self.made.append(made)
        self.done.append(done)
