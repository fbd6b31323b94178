"""What each worker did when, item by item, recorded at a microsecond an item.

Every worker writes five clock readings an item into a ring in the shared memory: always, since a
pipeline's stage times are part of its report. A `Trace` makes the rings long enough for a run and
writes them as a Chrome trace (the Trace Event Format, read by ui.perfetto.dev).
"""

from __future__ import annotations

import json
import math
import statistics
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from partitioner.files import write_text
from partitioner.runtime.channel import ALIGNMENT, Arena

__all__ = ["Log", "LogLayout", "Records", "StageTimes", "Trace", "stage_times"]

_FIELDS = ("item", "begin", "ready", "ran", "room", "sent")
_RECORD = struct.Struct(f"<{len(_FIELDS)}q")
_PHASES = (("wait", 1, 2), ("run", 2, 3), ("blocked", 3, 4), ("send", 4, 5))
_INT64 = struct.Struct("<q")
_CURRENT_AT = 8  # The header holds the count of records, then the item at work (plus one).


@dataclass(frozen=True, slots=True)
class LogLayout:
    """Where in the arena a worker's records lie, and how many are kept."""

    offset: int
    items: int

    @property
    def nbytes(self) -> int:
        """Bytes of header and ring."""
        return ALIGNMENT + self.items * _RECORD.size


class Log:
    """A worker's ring of records.

    Clock readings are nanoseconds of CLOCK_MONOTONIC, the same in every process of a host:
    ``begin`` waiting for inputs, inputs ``ready``, runner ``ran``, ``room`` in every consumer's
    queue, outputs ``sent``.
    """

    __slots__ = ("_at", "_count", "_items", "_memory")

    def __init__(self, layout: LogLayout, arena: Arena) -> None:
        self._memory = arena.memory
        self._at = layout.offset
        self._items = layout.items
        self._count = 0

    def start(self, item: int) -> None:
        """Say that `item` is being worked on."""
        _INT64.pack_into(self._memory, self._at + _CURRENT_AT, item + 1)

    def finish(self, item: int, begin: int, ready: int, ran: int, room: int, sent: int) -> None:
        """Append the record of `item`, which is no longer worked on."""
        at = self._at + ALIGNMENT + (self._count % self._items) * _RECORD.size
        _RECORD.pack_into(self._memory, at, item, begin, ready, ran, room, sent)
        self._count += 1
        _INT64.pack_into(self._memory, self._at, self._count)
        _INT64.pack_into(self._memory, self._at + _CURRENT_AT, 0)

    def current(self) -> int | None:
        """The item that is being worked on, None between items."""
        value: int = _INT64.unpack_from(self._memory, self._at + _CURRENT_AT)[0]
        return value - 1 if value else None

    def read(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Return a copy of the records, oldest first.

        Returns
        -------
        ndarray of int64, shape (records, 6)
            Item, begin, ready, ran, room, sent.
        """
        ring = np.ndarray(
            (self._items, len(_FIELDS)), np.int64, self._memory, self._at + ALIGNMENT
        ).copy()
        count: int = _INT64.unpack_from(self._memory, self._at)[0]
        if count < self._items:
            return ring[:count]
        # The worker may be overwriting the oldest right now: leave that one out.
        return np.roll(ring, -(count % self._items), axis=0)[1:]


@dataclass(frozen=True, slots=True)
class Records:
    """The records of one worker.

    Attributes
    ----------
    stage, replica : int
        Which worker.
    name : str
        The stage's name.
    rows : ndarray of int64, shape (records, 6)
        As `Log.read` gives them.
    """

    stage: int
    replica: int
    name: str
    rows: np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, slots=True)
class StageTimes:
    """Medians over a stage's recent items; nan before the first.

    Attributes
    ----------
    wait_s : float
        Waiting for inputs.
    run_s : float
        In the runner.
    blocked_s : float
        Waiting for room in a consumer's queue.
    send_s : float
        Copying outputs into the consumers' queues.
    """

    wait_s: float
    run_s: float
    blocked_s: float
    send_s: float

    @property
    def busy_s(self) -> float:
        """Time per item during which the worker cannot take another."""
        return self.run_s + self.send_s


def stage_times(workers: Iterable[Records]) -> StageTimes:
    """Return the medians over the records of all replicas of a stage."""
    rows = np.concatenate([worker.rows for worker in workers])
    if not len(rows):
        return StageTimes(math.nan, math.nan, math.nan, math.nan)
    spans = [statistics.median((rows[:, b] - rows[:, a]).tolist()) / 1e9 for _, a, b in _PHASES]
    return StageTimes(*spans)


class Trace:
    """Keeps a run's records; give it to a `Pipeline`, read it during the run or after.

    Parameters
    ----------
    items : int
        How many items to keep for each worker, the latest; 48 bytes each.
    """

    def __init__(self, items: int = 1 << 16) -> None:
        self.items = items
        self._workers: Sequence[Records] = ()
        self._read: Callable[[], Iterable[Records]] | None = None

    def watch(self, read: Callable[[], Iterable[Records]]) -> None:
        """Take records from `read()` from now on."""
        self._read = read

    def freeze(self) -> None:
        """Copy what there is and let go of the pipeline's memory."""
        self._workers = self.records()
        self._read = None

    def records(self) -> Sequence[Records]:
        """Return the records of every worker, in the order of stages and replicas."""
        return self._workers if self._read is None else tuple(self._read())

    def write_chrome(self, path: str | Path) -> None:
        """Write a Chrome trace: a process a stage, a thread a replica, a span a phase.

        Parameters
        ----------
        path : path-like
            A JSON file; it appears whole or not at all.

        Raises
        ------
        InputError
            If it cannot be written there.
        """
        events: list[dict[str, object]] = []
        for worker in self.records():
            place = {"pid": worker.stage, "tid": worker.replica}
            title = f"stage {worker.stage}: {worker.name}"
            events.append({"ph": "M", "name": "process_name", "args": {"name": title}, **place})
            replica = f"replica {worker.replica}"
            events.append({"ph": "M", "name": "thread_name", "args": {"name": replica}, **place})
            for row in worker.rows.tolist():
                for phase, start, end in _PHASES:
                    events.append(
                        {
                            "ph": "X",
                            "name": phase,
                            "cat": phase,
                            "ts": row[start] / 1e3,
                            "dur": (row[end] - row[start]) / 1e3,
                            "args": {"item": row[0]},
                            **place,
                        }
                    )
        whole = {"traceEvents": events, "displayTimeUnit": "ms"}
        write_text(path, json.dumps(whole, separators=(",", ":")))
