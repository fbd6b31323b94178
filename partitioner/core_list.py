"""Lists of core numbers as text, as Linux writes them: ``0-3,6``."""

from __future__ import annotations

import re
from collections.abc import Iterable

from partitioner.errors import DeviceError

__all__ = ["format_cpus", "parse_cpus"]


def parse_cpus(text: str, where: str) -> tuple[int, ...]:
    """Read ``"0-3"``, ``"4,5"`` or a mixture.

    Raises
    ------
    DeviceError
        If the list is malformed.
    """
    cpus: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?", part)
        first = int(match[1]) if match else 0
        last = int(match[2] or first) if match else -1
        if last < first or last - first > 4096:
            raise DeviceError(
                f"device {where!r}: {part.strip()!r} is no core list; write 0-3 or 4,5"
            )
        cpus.extend(range(first, last + 1))
    return tuple(cpus)


def format_cpus(cpus: Iterable[int]) -> str:
    """The shortest list text: ``(0, 1, 2, 5)`` gives ``"0-2,5"``."""
    runs: list[list[int]] = []
    for cpu in cpus:
        if runs and cpu == runs[-1][-1] + 1:
            runs[-1].append(cpu)
        else:
            runs.append([cpu])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
