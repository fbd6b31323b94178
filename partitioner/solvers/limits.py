"""What every solver is told besides the problem, and how it keeps time."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from partitioner.problem import Solution

__all__ = ["RELATIVE", "Clock", "Limits", "Progress"]

RELATIVE = 1e-6
"""A solution whose objective is within this of a proven bound, relatively, is optimal."""

Progress = Callable[[float, float, float], None]
"""Called with the best objective, the proven bound and the seconds spent, all in seconds."""


def _default_workers() -> int:
    return max(1, min(8, os.cpu_count() or 1))


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits and aids of one solve.

    Attributes
    ----------
    time_limit_s : float
        Wall time to spend; 0 asks for the quick incumbent only.
    hint : Solution or None
        A known assignment to start from.
    progress : Progress or None
        Called whenever objective or bound improve.
    workers : int
        Threads of CP-SAT.
    seed : int
        Seed of everything random.
    max_ideals : int
        Downsets that dynamic programming may enumerate before it gives way.
    max_pairs : int
        Pairs of downsets that it may price at once, about ten million a second, or keep for the
        states that are reached, before it gives way.
    interrupted : threading.Event
        Set by Ctrl-C. Limits made by `dataclasses.replace` share it, so that it ends a solve
        with everything that is solved on the way.
    """

    time_limit_s: float = 10.0
    hint: Solution | None = None
    progress: Progress | None = None
    workers: int = field(default_factory=_default_workers)
    seed: int = 0
    max_ideals: int = 60_000
    max_pairs: int = 30_000_000
    interrupted: threading.Event = field(default_factory=threading.Event)


class Clock:
    """Wall time since the solve began."""

    def __init__(self, limit_s: float) -> None:
        self._start = time.perf_counter()
        self._limit_s = limit_s

    @property
    def spent_s(self) -> float:
        """Seconds since the start."""
        return time.perf_counter() - self._start

    @property
    def left_s(self) -> float:
        """Seconds until the limit, at least 0."""
        return max(0.0, self._limit_s - self.spent_s)
