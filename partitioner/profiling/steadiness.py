"""Whether cores kept their speed while they were measured, and by how much they did not.

A governor that moves the frequency makes two placements look different that are alike. Clocks are
read while a visit runs, from another core; before and after it, and where the system shows no
clock, a fixed loop on each core tells its speed.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from partitioner.core_list import format_cpus
from partitioner.runtime.affinity import allowed_cpus, pin, preserved_affinity
from partitioner.sysfs import ROOT, cpu_folder, read_fact

__all__ = ["Steadiness", "spin_rate"]

# Below these a profile's own noise is larger. The loop also feels other work on the core.
_CLOCK_MOVES = 0.03
_LOOP_MOVES = 0.05

_LOOK_EVERY_S = 0.1
_SPIN_S = 0.02
_BLOCK = bytes(1 << 16)


class Steadiness:
    """Watches the speed of cores over the visits of a profile.

    Parameters
    ----------
    root : path
        Where ``sys`` is.
    rate : callable
        Speed of a core by running something on it, in any unit.

    Examples
    --------
    >>> watch = Steadiness()  # doctest: +SKIP
    >>> with watch.visit(device.cpus):
    ...     measure()
    >>> watch.notes()
    ("core 4 ran between 1.20 and 2.30 GHz (governor schedutil) ...",)
    """

    def __init__(self, *, root: Path = ROOT, rate: Callable[[int], float] | None = None) -> None:
        self._root = root
        self._rate = rate or spin_rate
        self._clocks: dict[int, list[int]] = defaultdict(list)
        self._rates: dict[int, list[float]] = defaultdict(list)
        self._governors: dict[int, set[str]] = defaultdict(set)

    @contextmanager
    def visit(self, cpus: Sequence[int]) -> Iterator[None]:
        """Sample the cores that a block measures before and after it, and look during it."""
        self.sample(cpus)
        with self.during(cpus):
            yield
        self.sample(cpus)

    def sample(self, cpus: Sequence[int]) -> None:
        """Run a short loop on each core, then read its clock: an idle core's says nothing."""
        for cpu in cpus:
            self._rates[cpu].append(self._rate(cpu))
            self.look([cpu])

    def look(self, cpus: Sequence[int]) -> None:
        """Read the clocks alone, while something else keeps the cores busy."""
        for cpu in cpus:
            if (clock_hz := self._clock(cpu)) is not None:
                self._clocks[cpu].append(clock_hz)
            governor = read_fact(cpu_folder(cpu, self._root) / "cpufreq/scaling_governor")
            if governor is not None:
                self._governors[cpu].add(governor)

    @contextmanager
    def during(self, cpus: Sequence[int], every_s: float = _LOOK_EVERY_S) -> Iterator[None]:
        """Look from time to time while the block runs, from a core that is not measured.

        Does nothing where the system shows no clock, or there is no other core.
        """
        spare = allowed_cpus() - set(cpus)
        if not spare or all(self._clock(cpu) is None for cpu in cpus):
            yield
            return
        over = threading.Event()

        def watch() -> None:
            os.sched_setaffinity(0, spare)  # of this thread alone
            while not over.wait(every_s):
                self.look(cpus)

        thread = threading.Thread(target=watch, name="steadiness", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def notes(self) -> tuple[str, ...]:
        """Which cores' speed moved, by how much, and what to do; empty if all kept theirs."""
        cpus_of: dict[str, list[int]] = defaultdict(list)
        for cpu in sorted({*self._rates, *self._clocks}):
            if text := self._moved(cpu):
                cpus_of[text].append(cpu)
        return tuple(
            f"{'core' if len(cpus) == 1 else 'cores'} {format_cpus(cpus)} {text}"
            for text, cpus in cpus_of.items()
        )

    def _clock(self, cpu: int) -> int | None:
        text = read_fact(cpu_folder(cpu, self._root) / "cpufreq/scaling_cur_freq")
        return int(text) * 1000 if text is not None and text.isdigit() else None

    def _moved(self, cpu: int) -> str | None:
        """How one core's speed moved, in words; None if it did not."""
        if clocks := self._clocks.get(cpu):
            low, high = _most(clocks)
            if high <= low * (1 + _CLOCK_MOVES):
                return None
            governors = ", ".join(sorted(self._governors.get(cpu, ()))) or "unknown"
            return (
                f"ran between {low / 1e9:.2f} and {high / 1e9:.2f} GHz (governor {governors}) "
                f"while profiled: fix the governor, or expect {_spread(low, high)}"
            )
        low, high = _most(self._rates[cpu])
        if high <= low * (1 + _LOOP_MOVES):
            return None
        return (
            f"ran a fixed loop at {low / high:.0%} to 100% of its best speed while profiled (its "
            f"clock cannot be read): keep other work off it, or expect {_spread(low, high)}"
        )


def spin_rate(cpu: int) -> float:
    """Blocks a second of a loop that stays in a core's first cache: the best of a short time.

    Parameters
    ----------
    cpu : int
        Where to run it; the calling thread goes there and comes back.

    Raises
    ------
    DeviceError
        If this process may not use it.
    """
    with preserved_affinity():
        pin([cpu])
        best_s = float("inf")
        until = time.perf_counter() + _SPIN_S
        while (start := time.perf_counter()) < until:
            hashlib.sha256(_BLOCK).digest()
            best_s = min(best_s, time.perf_counter() - start)
    return 1 / best_s


def _most(values: Sequence[float]) -> tuple[float, float]:
    """Smallest and largest, a tenth left out at each end: a core starts and ends a visit idle."""
    ordered = sorted(values)
    spare = len(ordered) // 10
    return ordered[spare], ordered[-1 - spare]


def _spread(low: float, high: float) -> str:
    return f"times to differ by ±{(high - low) / (high + low):.0%}"
