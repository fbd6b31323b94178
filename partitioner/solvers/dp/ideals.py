"""Downsets (ideals) of the units' order: the possible prefixes of a pipeline."""

from __future__ import annotations

import random
from collections.abc import Iterable

import numpy as np

from partitioner.problem import Bools, Floats
from partitioner.solvers.lines.orders import depth_first, readers_of
from partitioner.solvers.reduce import Units

__all__ = ["all_ideals", "ancestors", "membership", "prefix_ideals"]


def all_ideals(
    units: Units, limit: int, work: Floats | None = None, most: float = np.inf
) -> list[int] | None:
    """Every downset that can be a cut, as bit masks by growing size.

    Of downsets that differ by an exchange of identical branches only one is given (`Units.order`).

    Parameters
    ----------
    limit : int
        Largest number of downsets.
    work : array, shape (n_units,), optional
        Priced work of each unit.
    most : float
        Priced work that everything before a cut may hold at most.

    Returns
    -------
    list of int or None
        None when there are more than `limit`.
    """
    n = len(units)
    first: list[set[int]] = [set(before) for before in units.before]
    for a, b in units.order:
        first[b].add(a)
    before = [sum(1 << b for b in first[v]) for v in range(n)]
    after: list[list[int]] = [[] for _ in range(n)]
    for v in range(n):
        for b in first[v]:
            after[b].append(v)
    full = (1 << n) - 1
    cost = [0.0] * n if work is None else [float(value) for value in work]
    level: dict[int, tuple[tuple[int, ...], float]] = {
        0: (tuple(v for v in range(n) if not before[v]), 0.0)
    }
    kept = [0]
    for _ in range(n):
        grown: dict[int, tuple[tuple[int, ...], float]] = {}
        for ideal, (ready, done) in level.items():
            for v in ready:
                larger = ideal | 1 << v
                total = done + cost[v]
                if larger in grown or (total > most and larger != full):
                    continue
                fresh = [w for w in after[v] if before[w] & ~larger == 0]
                grown[larger] = (tuple(w for w in ready if w != v) + tuple(fresh), total)
        kept += grown
        if len(kept) > limit:
            return None
        level = grown
    if kept[-1] != full:
        kept.append(full)
    return kept


def prefix_ideals(units: Units, orders: int, seed: int) -> list[int]:
    """Prefixes of the given order and of `orders` - 1 random depth-first ones, by growing size."""
    found: set[int] = {0}
    for order in _orders(units, orders, seed):
        mask = 0
        for v in order:
            mask |= 1 << v
            found.add(mask)
    return sorted(found, key=lambda mask: (mask.bit_count(), mask))


def membership(ideals: Iterable[int], n: int) -> Bools:
    """Which units each downset holds, shape (n_ideals, n)."""
    size = (n + 7) // 8
    raw = b"".join(ideal.to_bytes(size, "little") for ideal in ideals)
    rows = np.frombuffer(raw, dtype=np.uint8).reshape(-1, size)
    return np.unpackbits(rows, axis=1, bitorder="little")[:, :n].astype(np.bool_)


def ancestors(units: Units) -> list[int]:
    """Units before each unit, as bit masks."""
    above: list[int] = []
    for before in units.before:
        mask = 0
        for b in before:
            mask |= above[b] | 1 << b
        above.append(mask)
    return above


def _orders(units: Units, count: int, seed: int) -> Iterable[list[int]]:
    yield list(range(len(units)))
    after = readers_of(units)
    chance = random.Random(seed)
    for _ in range(count - 1):
        yield depth_first(units, after, chance).tolist()
