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

__all__ = ["Cuts", "Rows", "Terms"]

Column = tuple[Bools, int, int]
Rows = slice | Ints
"""Some of the downsets."""


@dataclass(frozen=True, slots=True, eq=False)
class Terms:
    """Groups that count between two downsets.

    Attributes
    ----------
    open : sparse matrix of 0 and 1, shape (n_ideals, n_terms)
        Terms that hold at each downset.
    turned : sparse matrix, shape (n_terms, n_ideals)
        The same, by term.
    last : sparse matrix, shape (n_ideals, n_terms)
        How often each term counts for the downset after a stage: like `open`, or more often.
    entering, leaving : array of int, shape (n_terms,)
        Which weight a term has before a stage, where it counts unless it holds after it too, and
        which after it, where it counts unless it holds before it too; -1 for none.
    """

    open: Any  # scipy's sparse matrices have no types
    turned: Any
    last: Any
    entering: Ints
    leaving: Ints

    @staticmethod
    def of(columns: Sequence[Column], n_ideals: int) -> Terms:
        """Stack columns of (open, entering, leaving)."""
        stacked = np.zeros((n_ideals, len(columns)), dtype=np.bool_)
        for index, (column, _, _) in enumerate(columns):
            stacked[:, index] = column
        matrix = csr_matrix(stacked, dtype=np.float64)
        return Terms(
            matrix,
            matrix.T.tocsr(),
            matrix,
            np.array([entering for _, entering, _ in columns], dtype=np.int64),
            np.array([leaving for _, _, leaving in columns], dtype=np.int64),
        )

    def take(self, rows: Ints) -> Terms:
        """The terms of some downsets."""
        first = self.open[rows]
        last = first if self.last is self.open else self.last[rows]
        return Terms(first, first.T.tocsr(), last, self.entering, self.leaving)

    def counted(self, counts: dict[int, Ints]) -> Terms:
        """The terms, some leaving groups counted several times, a number for each downset."""
        last = self.open.tocsc(copy=True)
        for column, group in enumerate(self.leaving):
            if int(group) in counts:
                part = slice(last.indptr[column], last.indptr[column + 1])
                last.data[part] *= counts[int(group)][last.indices[part]]
        return replace(self, last=last.tocsr())

    def most(self, weight: Floats) -> float:
        """What the rounding of `sums` is relative to: the largest sum, times the terms in it."""
        entering, leaving = self._weights(weight)
        sums: Floats = self.last @ (entering + leaving)
        return float(sums.max(initial=0.0)) * len(self.entering)

    def sums(self, before: Rows, after: Rows, weight: Floats) -> Floats:
        """Weights added up for every pair, shape (len(after), len(before)).

        Where the one downset does not hold the other, the number means nothing.
        """
        entering, leaving = self._weights(weight)
        last = self.last[after]
        count = np.add.outer(last @ leaving, self.open[before] @ entering)
        held, column = np.unique(last.indices, return_inverse=True)
        data = last.data * (entering + leaving)[last.indices]
        left = csr_matrix((data, column, last.indptr), shape=(last.shape[0], len(held)))
        count -= left @ self.turned[held][:, before].toarray()
        return np.asarray(count)

    def before(self, weight: Floats) -> Floats:
        """What enters the stages after each downset at least, one of them at most."""
        return np.asarray(self.open @ self._weights(weight)[0])

    def leaving_before(self, weight: Floats) -> Floats:
        """What leaves the stages before each downset at least, shape (n_ideals,)."""
        return np.asarray(self.last @ self._weights(weight)[1])

    def _weights(self, weight: Floats) -> tuple[Floats, Floats]:
        """Weight of each term before and after a stage."""
        padded = np.append(weight, 0.0)
        return padded[self.entering], padded[self.leaving]


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
        columns: list[Column] = []
        for group, flow in enumerate(inputs):
            columns += _met(members, flow.readers, None, group)
        for entering, flow in enumerate(moved, start=len(inputs)):
            made = members[:, flow.producer]
            open_ = made & ~members[:, list(flow.readers)].all(axis=1)
            leaving = entering + len(moved)
            if len(flow.readers) == 1:
                columns.append((open_, entering, leaving))
            else:
                columns += _met(members, flow.readers, made, entering)
                columns.append((open_, -1, leaving))
        constants: list[Column] = []
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

    def nested(self, before: Rows, after: Rows) -> Bools:
        """Where the first downset lies within the second, shape (len(after), len(before))."""
        shape = (len(self.words[after]), len(self.words[before]))
        inside = np.ones(shape, dtype=np.bool_)
        for word in range(self.words.shape[1]):
            some, lacking = self.words[before, word], ~self.words[after, word]
            if np.bitwise_or.reduce(some) & np.bitwise_or.reduce(lacking):
                inside &= (lacking[:, None] & some[None, :]) == 0
        return inside


def _met(members: Bools, units: Sequence[int], made: Bools | None, group: int) -> list[Column]:
    """Terms of a group that enters when the stage holds some of `units` and I what is `made`."""
    count = members[:, list(units)].sum(axis=1)
    terms = []
    for have in range(len(units)):
        open_ = count == have
        terms.append((open_ if made is None else made & open_, group, -1))
    return terms


def _words(members: Bools) -> np.ndarray[tuple[int, ...], np.dtype[np.uint64]]:
    packed = np.packbits(members, axis=1, bitorder="little")
    size = -(-packed.shape[1] // 8) * 8
    padded = np.zeros((len(packed), size), dtype=np.uint8)
    padded[:, : packed.shape[1]] = packed
    return padded.view(np.uint64)
