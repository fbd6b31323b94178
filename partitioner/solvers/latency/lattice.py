"""Downsets as arrays, and from each the stages that can come next with their busy times."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from partitioner.problem import Bools, Floats, Ints
from partitioner.solvers.dp.ideals import ancestors, membership
from partitioner.solvers.latency.rules import Rules
from partitioner.solvers.reduce import Units

__all__ = ["Lattice", "Moves", "bits"]

# Sums of bytes taken in another order than `evaluation` takes them, and its own tolerance.
_BYTES_SLACK = 1 + 2e-9


@dataclass(frozen=True, slots=True, eq=False)
class Moves:
    """Stages of one kind that can follow one downset.

    Attributes
    ----------
    kind : int
        Index in the rules.
    targets : array, shape (n_moves,)
        The downset after each.
    busy_s : array, shape (n_moves,)
        Busy time of the stage.
    taken : array of bool, shape (n_open, n_moves)
        Which of the wires open before it the stage reads.
    place : array of int, shape (n_open, n_moves)
        Where these wires are among those open after it; -1 when they are open no more.
    fresh : array of bool, shape (n_moves, n_slots)
        Which of the wires open after it are the stage's own.
    """

    kind: int
    targets: Ints
    busy_s: Floats
    taken: Bools
    place: Ints
    fresh: Bools


class Lattice:
    """Some downsets of the units, or all of them, and what is between any two.

    A wire is *open* at a downset when it is there but not all of its readers are. A larger
    downset is *far* when it has all readers of the wires open here, else *near*: a stage from here
    to a far one costs a part that depends on this end plus one that depends on the other.

    Parameters
    ----------
    units, rules
        The units and what stages of them cost.
    masks : sequence of int
        Distinct downsets as bit masks, with the empty one and the full one.
    most_s : float
        Units that take longer than that on an option are not put there.

    Attributes
    ----------
    masks : list of int
        Downsets so that each comes after all it contains.
    slots : array of int, shape (n_downsets, n_slots)
        Wires open at each, filled up with the number of wires.
    load_s : array, shape (n_kinds, n_downsets)
        The far end's part of the busy time of a stage of each kind.
    needs : list of int
        Each unit with all that it waits for, as bit masks.
    """

    def __init__(
        self, units: Units, rules: Rules, masks: Sequence[int], most_s: float = float("inf")
    ) -> None:
        self.units, self.rules = units, rules
        given = list(masks)
        grains = self._grains(units)
        weight = membership(given, len(units)) @ grains
        order = sorted(range(len(given)), key=lambda i: (weight[i], given[i].bit_count(), given[i]))
        self.masks = [given[i] for i in order]
        self._weight: Ints = weight[order]
        inside = membership(self.masks, len(units))
        self._bytes: Floats = inside @ units.constant_bytes
        # Rows are units, so that a unit's membership is contiguous.
        self._inside: npt.NDArray[np.uint8] = np.ascontiguousarray(inside.T).view(np.uint8)
        # Units that feed nobody inside; a downset contains another if it contains these.
        covered = np.zeros_like(self._inside)
        for v, before in enumerate(units.before):
            covered[list(before)] |= self._inside[v]
        self._maximal: npt.NDArray[np.uint8] = np.ascontiguousarray((self._inside & ~covered).T)
        self.needs = [mask | 1 << v for v, mask in enumerate(ancestors(units))]
        self._before = [sum(1 << b for b in before) for before in units.before]
        self._add_wires()
        self._add_costs(most_s)
        # Memory that does not add up along the chain of downsets is beyond "far".
        self._additive = not (units.shared or units.live_bytes.any())

    def __len__(self) -> int:
        return len(self.masks)

    def _grains(self, units: Units) -> Ints:
        """Bytes as integers, rounded down: their sums are exact, so that they order downsets."""
        self._grain = (float(units.constant_bytes.sum()) or 1.0) / 2.0**50
        return np.floor(units.constant_bytes / self._grain).astype(np.int64)

    def _add_wires(self) -> None:
        wires = self.rules.wires
        n, count = len(self), len(wires)
        most = max((len(wire.readers) for wire in wires), default=0)
        self._read: Ints = np.zeros((count, n), dtype=np.min_scalar_type(most))
        is_open = np.zeros((count, n), dtype=np.bool_)
        for w, wire in enumerate(wires):
            for reader in wire.readers:
                self._read[w] += self._inside[reader]
            there = self._inside[wire.producer].view(np.bool_) if wire.producer >= 0 else True
            is_open[w] = there & (self._read[w] < len(wire.readers))
        self._open_count: Ints = is_open.sum(axis=0)
        self.n_slots = max(1, int(self._open_count.max(initial=0)))
        self.slots: Ints = np.full((n, self.n_slots), count, dtype=np.int64)
        # As narrow as all numbers of open wires allow: this is the largest array for many downsets.
        narrow = np.min_scalar_type(-self.n_slots - 1)
        self._place: Ints = np.full((count, n), -1, dtype=narrow)
        rank = np.cumsum(is_open, axis=0) - 1
        wire_of, downset = np.nonzero(is_open)
        self.slots[downset, rank[wire_of, downset]] = wire_of
        self._place[wire_of, downset] = rank[wire_of, downset]
        self._is_open = is_open

    def _add_costs(self, most_s: float) -> None:
        kinds, shape = self.rules.kinds, (len(self.rules.kinds), len(self))
        self._done_s: Floats = np.zeros(shape)
        self._blocked: Ints = np.zeros(shape, dtype=np.int64)
        self.load_s: Floats = np.zeros(shape)
        producers = [max(0, wire.producer) for wire in self.rules.wires]
        for k, kind in enumerate(kinds):
            # One huge time would drown all others in the sums, so it is counted apart.
            fits = np.isfinite(kind.time_s) & (kind.time_s <= min(most_s, kind.most_s))
            self._blocked[k] = (~fits).astype(np.int64) @ self._inside
            self._done_s[k] = np.where(fits, kind.time_s, 0.0) @ self._inside
            self._done_s[k] += kind.closed_s @ self._inside[producers]
            opened = (kind.open_s - kind.closed_s) @ self._is_open
            self.load_s[k] = self._done_s[k] + opened + kind.host_s

    def open_at(self, downset: int) -> Ints:
        """Wires open at a downset."""
        return self.slots[downset, : self._open_count[downset]]

    def unread(self, downset: int) -> list[int]:
        """For each wire open at a downset, the readers that are not there, as a bit mask."""
        mask = self.masks[downset]
        wires = self.rules.wires
        return [
            sum(1 << r for r in wires[w].readers if not mask >> r & 1)
            for w in self.open_at(downset)
        ]

    def above(self, downset: int) -> tuple[Ints, Ints]:
        """Near and far downsets that contain this one properly, as far as memory can reach."""
        most = max((k.most_bytes for k in self.rules.kinds if not k.single), default=0.0)
        first, end = downset + 1, len(self)
        if np.isfinite(most):
            reach = self._weight[downset] + np.ceil(most * _BYTES_SLACK / self._grain)
            end = int(np.searchsorted(self._weight, reach, side="right"))
        kept = np.ones(max(0, end - first), dtype=np.bool_)
        for last in np.flatnonzero(self._maximal[downset]):
            kept &= self._inside[last, first:end].view(np.bool_)
        near = kept if not self._additive else kept.copy()
        far = np.zeros_like(kept)
        if self._additive:
            far |= kept
            for mask in self.unread(downset):
                for v in bits(mask):
                    far &= self._inside[v, first:end].view(np.bool_)
            near &= ~far
        return np.flatnonzero(near) + first, np.flatnonzero(far) + first

    def fitting(self, downset: int, k: int, targets: Ints) -> Ints:
        """Those targets that a stage of kind `k` can reach by op times and plain bytes."""
        room = self.rules.kinds[k].most_bytes * _BYTES_SLACK + self._bytes[downset]
        fits = self._blocked[k][targets] == self._blocked[k][downset]
        return np.asarray(targets[fits & (self._bytes[targets] <= room)])

    def singles(self, downset: int) -> Ints:
        """Downsets with one unit more."""
        mask, index = self.masks[downset], self._index
        found = {
            index.get(mask | 1 << v, -1)
            for readers in self.unread(downset)
            for v in bits(readers)
            if not self._before[v] & ~mask
        }
        return np.array(sorted(found - {-1}), dtype=np.int64)

    @cached_property
    def _index(self) -> dict[int, int]:
        return {mask: i for i, mask in enumerate(self.masks)}

    def far_s(self, downset: int, k: int) -> float:
        """This end's part of the busy time of a stage of kind `k` to a far downset."""
        wires = self.open_at(downset)
        return float(self.rules.kinds[k].recv_s[wires].sum() - self._done_s[k][downset])

    def priced(self, downset: int, k: int, targets: Ints) -> Moves:
        """Stages of kind `k` to the targets, less those that break a limit."""
        kind = self.rules.kinds[k]
        wires = self.open_at(downset)
        pairs = np.ix_(wires, targets)
        taken = self._read[pairs] > self._read[wires, downset][:, None]
        place = self._place[pairs]
        stays = kind.open_s[wires] - kind.closed_s[wires]
        busy = (self.load_s[k][targets] - self._done_s[k][downset]) + (
            kind.recv_s[wires] @ taken - stays @ (place >= 0)
        )
        busy = np.maximum(busy, 0.0)
        keep = busy <= kind.most_s * _BYTES_SLACK
        if not kind.single and np.isfinite(kind.most_bytes):
            keep &= self._memory(downset, targets, wires, taken) <= kind.most_bytes * _BYTES_SLACK
        if not keep.all():
            targets, busy, taken, place = targets[keep], busy[keep], taken[:, keep], place[:, keep]
        known = np.append(self._is_open[:, downset], True)
        return Moves(k, targets, busy, taken, place, ~known[self.slots[targets]])

    def _memory(self, downset: int, targets: Ints, wires: Ints, taken: Bools) -> Floats:
        """Bytes of the stage between a downset and each target."""
        units = self.units
        size = self._bytes[targets] - self._bytes[downset]
        if self.rules.wire_bytes.any():
            size = size + self.rules.wire_bytes[wires] @ taken
        if not self._additive:
            stage = (self._inside[:, targets] > self._inside[:, [downset]]).T
            for shared, readers in units.shared:
                size = size + shared * stage[:, list(readers)].any(axis=1)
            size = size + (stage * units.live_bytes).max(axis=1, initial=0.0)
        return np.asarray(size)


def bits(mask: int) -> Iterator[int]:
    """Numbers of the bits set."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low
