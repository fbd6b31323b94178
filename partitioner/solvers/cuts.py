"""What lies between two downsets, whatever it costs: the part of a stage's price that can be kept.

For downsets I within J the stage holds J without I. A tensor is *open* at a downset that holds its
producer but not all its readers. It enters the stage when it is open at I, unless it is open at J
with as many of its readers done; it leaves when it is open at J, unless it was open at I. Few
tensors are open at once, so that a sparse product counts the exceptions of many pairs quickly
(and, unlike a dense one, takes no second thread from others).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

from partitioner.problem import Bools, Floats, Ints
from partitioner.solvers.reduce import Flow, Units

__all__ = ["Cuts", "Terms"]


@dataclass(frozen=True, slots=True, eq=False)
class Terms:
    """Groups that count between two downsets.

    Attributes
    ----------
    open : sparse matrix of 0 and 1, shape (n_ideals, n_terms)
        Terms that hold at each downset.
    group : array of int, shape (n_terms,)
        Which weight a term has.
    leaving : array of bool, shape (n_terms,)
        Terms that count at the downset after a stage unless they hold before it too; the others
        count before it unless they hold after it too.
    last : sparse matrix, shape (n_ideals, n_terms)
        How often each term counts for the downset after a stage: like `open`, or more often.
    """

    open: Any  # scipy's sparse matrices have no types
    last: Any
    group: Ints
    leaving: Bools

    @staticmethod
    def of(columns: Sequence[tuple[Bools, int, bool]], n_ideals: int) -> Terms:
        """Stack columns of (open, group, leaving)."""
        stacked = np.zeros((n_ideals, len(columns)), dtype=np.bool_)
        for index, (column, _, _) in enumerate(columns):
            stacked[:, index] = column
        matrix = csr_matrix(stacked, dtype=np.float64)
        return Terms(
            matrix,
            matrix,
            np.array([group for _, group, _ in columns], dtype=np.int64),
            np.array([leaving for _, _, leaving in columns], dtype=np.bool_),
        )

    def take(self, rows: Ints) -> Terms:
        """The terms of some downsets."""
        first = self.open[rows]
        last = first if self.last is self.open else self.last[rows]
        return Terms(first, last, self.group, self.leaving)

    def counted(self, counts: dict[int, Ints]) -> Terms:
        """The terms, some leaving groups counted several times, a number for each downset."""
        last = self.open.tocsc(copy=True)
        for column in np.flatnonzero(self.leaving):
            if self.group[column] in counts:
                part = slice(last.indptr[column], last.indptr[column + 1])
                last.data[part] *= counts[int(self.group[column])][last.indices[part]]
        return Terms(self.open, last.tocsr(), self.group, self.leaving)

    def most(self, weight: Floats) -> float:
        """What the rounding of `sums` is relative to: the largest sum, times the terms in it."""
        sums: Floats = self.last @ weight[self.group]
        return float(sums.max(initial=0.0)) * len(self.group)

    def sums(self, before: slice, after: slice, weight: Floats) -> Floats:
        """Weights added up for every pair, shape (len(after), len(before)).

        Where the one downset does not hold the other, the number means nothing.
        """
        each = weight[self.group]
        first, last = self.open[before], self.last[after]
        count = np.add.outer(last @ (each * self.leaving), first @ (each * ~self.leaving))
        last.data = last.data * each[last.indices]
        return np.asarray(count - last @ first.T.toarray(order="C"))


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
        columns = []
        for group, flow in enumerate((*inputs, *moved)):
            made = members[:, flow.producer] if flow.producer >= 0 else None
            columns += _met(members, flow.readers, made, group)
        for group, flow in enumerate(moved, start=len(inputs) + len(moved)):
            done = members[:, list(flow.readers)].all(axis=1)
            columns.append((members[:, flow.producer] & ~done, group, True))
        constants = []
        for group, (_, readers) in enumerate(units.shared):
            constants += _met(members, readers, None, group)
        return Cuts(
            members, _words(members), inputs, moved, Terms.of(columns, n), Terms.of(constants, n)
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

    def counted(self, counts: dict[int, Ints]) -> Cuts:
        """The same with some groups of `transfers` counted several times."""
        return replace(self, transfers=self.transfers.counted(counts))

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
) -> list[tuple[Bools, int, bool]]:
    """Terms of a group that enters when the stage holds some of `units` and I what is `made`."""
    count = members[:, list(units)].sum(axis=1)
    terms = []
    for have in range(len(units)):
        open_ = count == have
        terms.append((open_ if made is None else made & open_, group, False))
    return terms


def _words(members: Bools) -> np.ndarray[tuple[int, ...], np.dtype[np.uint64]]:
    packed = np.packbits(members, axis=1, bitorder="little")
    size = -(-packed.shape[1] // 8) * 8
    padded = np.zeros((len(packed), size), dtype=np.uint8)
    padded[:, : packed.shape[1]] = packed
    return padded.view(np.uint64)
