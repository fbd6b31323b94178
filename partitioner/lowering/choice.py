"""How an op's kernel is made where tuning has found something better than the rules' own choice."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Choice", "Tile"]

Tile = tuple[int, ...]
"""A tile in plain numbers, as records of tuning keep it; each rule has its own meaning for them."""


@dataclass(frozen=True, slots=True)
class Choice:
    """One of two: a tile for a rule, or a schedule for the kernel that TVM itself makes of the op.

    Attributes
    ----------
    tile : tuple of int or None
        One of those that `partitioner.lowering.tiles_of` lists.
    trace : str or None
        A MetaSchedule trace as JSON, for the kernel that `partitioner.lowering.workload` gives.
    """

    tile: Tile | None = None
    trace: str | None = None
