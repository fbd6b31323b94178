"""What lies between two downsets, whatever it costs: the part of a stage's price that can be kept.

For downsets I within J the stage holds J without I. A tensor enters it when its producer is in I
and J holds more of its readers than I; it leaves when its producer is in the stage and a reader is
outside J. Both are sums over *terms*, each a product of one 0/1 factor of I and one of J, so that
a matrix product prices many pairs at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from partitioner.problem import Bools, Floats, Ints
from partitioner.solvers.reduce import Flow, Units

__all__ = ["Cuts", "Terms"]


@dataclass(frozen=True, slots=True, eq=False)
class Terms:
    """Groups that count between two downsets.

    Attributes
    ----------
    first, last : array of bool, shape (n_ideals, n_terms)
        Factor of the downset before a stage, and of the one after it.
    group : array of int, shape (n_terms,)
        Which weight a term has; the factors of a group's terms are never 1 together.
    """

    first: Bools
    last: Bools
    group: Ints

    @staticmethod
    def of(factors: Sequence[tuple[Bools, Bools, int]], n_ideals: int) -> Terms:
        """Stack (first, last, group) factors."""
        if not factors:
            nothing = np.zeros((n_ideals, 0), dtype=np.bool_)
            return Terms(nothing, nothing, np.zeros(0, dtype=np.int64))
        first, last, group = zip(*factors, strict=True)
        return Terms(np.stack(first, axis=1), np.stack(last, axis=1), np.array(group))

    def take(self, rows: Ints) -> Terms:
        """The terms of some downsets."""
        return Terms(self.first[rows], self.last[rows], self.group)

    def sums(self, before: slice, after: slice, weight: Floats) -> Floats:
        """Weights added up for every pair, shape (len(after), len(before))."""
        each = weight[self.group]
        used = np.flatnonzero(
            self.first[before].any(axis=0) & self.last[after].any(axis=0) & (each != 0)
        )
        last = self.last[after][:, used] * each[used]
        return np.asarray(last @ self.first[before][:, used].T.astype(np.float64))


@dataclass(frozen=True, slots=True, eq=False)
class Cuts:
    """Downsets and the terms between them.

    Attributes
    ----------
    members : array of bool, shape (n_ideals, n_units)
        Units of each downset.
    words : array of uint64, shape (n_ideals, n_words)
        The same as bits.
    inputs, moved : tuple of Flow
        Model inputs, and tensors from one unit to others.
    transfers : Terms
        Groups: inputs that enter, moved tensors that enter, moved tensors that leave.
    constants : Terms
        Groups: constants that several units share, held by the stage.
    """

    members: Bools
    words: np.ndarray[tuple[int, ...], np.dtype[np.uint64]]
    inputs: tuple[Flow, ...]
    moved: tuple[Flow, ...]
    transfers: Terms
    constants: Terms

    @staticmethod
    def of(units: Units, members: Bools) -> Cuts:
        """Look at the given downsets."""
        n = len(members)
        inputs = tuple(flow for flow in units.flows if flow.producer < 0)
        moved = tuple(flow for flow in units.flows if flow.producer >= 0 and flow.readers)
        factors = []
        for group, flow in enumerate((*inputs, *moved)):
            made = members[:, flow.producer] if flow.producer >= 0 else None
            factors += _met(members, flow.readers, made, group)
        for group, flow in enumerate(moved, start=len(inputs) + len(moved)):
            made = members[:, flow.producer]
            over = made & ~members[:, list(flow.readers)].all(axis=1)
            factors.append((~made, over, group))
        constants = []
        for group, (_, readers) in enumerate(units.shared):
            constants += _met(members, readers, None, group)
        return Cuts(
            members, _words(members), inputs, moved, Terms.of(factors, n), Terms.of(constants, n)
        )

    def take(self, rows: Ints) -> Cuts:
        """Some of the downsets, in the order given."""
        return Cuts(
            self.members[rows],
            self.words[rows],
            self.inputs,
            self.moved,
            self.transfers.take(rows),
            self.constants.take(rows),
        )

    def nested(self, before: slice, after: slice) -> Bools:
        """Where the first downset lies within the second, shape (len(after), len(before))."""
        inside = np.ones((after.stop - after.start, before.stop - before.start), dtype=np.bool_)
        for word in range(self.words.shape[1]):
            some, lacking = self.words[before, word], ~self.words[after, word]
            if np.bitwise_or.reduce(some) & np.bitwise_or.reduce(lacking):
                inside &= (lacking[:, None] & some[None, :]) == 0
        return inside


def _met(
    members: Bools, units: Sequence[int], made: Bools | None, group: int
) -> list[tuple[Bools, Bools, int]]:
    """Terms of a group that counts when the stage holds some of `units` and I what is `made`."""
    count = members[:, list(units)].sum(axis=1)
    terms = []
    for have in range(len(units)):
        first = count == have
        terms.append((first if made is None else made & first, count > have, group))
    return terms


def _words(members: Bools) -> np.ndarray[tuple[int, ...], np.dtype[np.uint64]]:
    packed = np.packbits(members, axis=1, bitorder="little")
    size = -(-packed.shape[1] // 8) * 8
    padded = np.zeros((len(packed), size), dtype=np.uint8)
    padded[:, : packed.shape[1]] = packed
    return padded.view(np.uint64)
