"""When each item was where: what every way of simulating a pipeline returns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from partitioner.runtime.wiring import Port, Wiring

__all__ = ["Floats", "Moments", "Orders", "Routing"]

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Orders:
    """What the workers and the caller are to do.

    Attributes
    ----------
    run_s, send_s : array, shape (items, stages)
        Seconds of each item on each stage, on the replica it goes to.
    arrivals_s : array, shape (items,), or None
        When each item is there to be handed in; None: as soon as there is room.
    window : int or None
        Most items on their way at once, besides what the queues allow.
    caller_in_s, caller_out_s : float
        Seconds an item that the caller copies in and out.
    """

    run_s: Floats
    send_s: Floats
    arrivals_s: Floats | None
    window: int | None
    caller_in_s: float
    caller_out_s: float


@dataclass(frozen=True, slots=True)
class Moments:
    """Clock readings, seconds from the start; the stages' are those of a trace.

    Attributes
    ----------
    entered_s : array, shape (items,)
        The caller begins to copy the item in.
    there_s : array, shape (items, stages)
        All of its inputs lie in the stage's queues.
    ready_s, ran_s, room_s, sent_s : array, shape (items, stages)
        The worker took them; made its outputs; found room for them; handed them over.
    made_s : array, shape (items,)
        All of its outputs lie in the caller's queues.
    done_s : array, shape (items,)
        The caller has them.
    """

    entered_s: Floats
    there_s: Floats
    ready_s: Floats
    ran_s: Floats
    room_s: Floats
    sent_s: Floats
    made_s: Floats
    done_s: Floats


class Routing:
    """Which worker and which channels an item meets at each stage.

    Parameters
    ----------
    wiring : Wiring
        As the runtime lays the pipeline out.
    items : int
        How many items there are: no cycle needs to be longer.
    """

    def __init__(self, wiring: Wiring, items: int) -> None:
        self._wiring = wiring
        self._items = items
        self._number = {channel.offset: k for k, channel in enumerate(wiring.channels)}
        self.slots = [channel.slots for channel in wiring.channels]

    @cached_property
    def stages(self) -> list[list[tuple[int, list[int], list[int]]]]:
        """For each stage a cycle of (worker, channels in, channels out); item i is at i mod it."""
        count = 1 + max(worker.stage for worker in self._wiring.workers)
        return [self._cycle(stage) for stage in range(count)]

    @cached_property
    def feeds(self) -> list[list[int]]:
        """A cycle of the channels that the caller fills."""
        return self._ends(self._wiring.feeds)

    @cached_property
    def sinks(self) -> list[list[int]]:
        """A cycle of the channels that the caller empties."""
        return self._ends(self._wiring.sinks)

    def _cycle(self, stage: int) -> list[tuple[int, list[int], list[int]]]:
        mine = {
            worker.replica: (number, worker)
            for number, worker in enumerate(self._wiring.workers)
            if worker.stage == stage
        }
        _, first = mine[0]
        ports = (*first.receives, *first.sends)
        length = self._length(first.pattern, *(port.pattern for port in ports))
        cycle = []
        for item in range(length):
            number, worker = mine[first.pattern[item % len(first.pattern)]]
            cycle.append((number, self._at(worker.receives, item), self._at(worker.sends, item)))
        return cycle

    def _ends(self, ports: Sequence[Port]) -> list[list[int]]:
        length = self._length(*(port.pattern for port in ports))
        return [self._at(ports, item) for item in range(length)]

    def _at(self, ports: Sequence[Port], item: int) -> list[int]:
        found = []
        for port in ports:
            channel = port.channels[port.pattern[item % len(port.pattern)]]
            assert channel is not None, "wiring makes a channel for every pair that meets"
            found.append(self._number[channel.offset])
        return found

    def _length(self, *patterns: Sequence[int]) -> int:
        return min(self._items, math.lcm(*map(len, patterns)))
