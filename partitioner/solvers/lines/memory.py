"""Memory of stages that are intervals of one order."""

from __future__ import annotations

import numpy as np

from partitioner.problem import Floats, Ints, Problem
from partitioner.solvers.lines.line import Flows, Line
from partitioner.solvers.reduce import Units

__all__ = ["LineMemory"]


class LineMemory:
    """Bytes of one replica of a stage between two cuts.

    Parameters
    ----------
    problem, units
        The problem and its units.
    flows : Flows
        The tensors between the units.
    """

    def __init__(self, problem: Problem, units: Units, flows: Flows) -> None:
        self._units = units
        slots = problem.queue_slots * problem.tensor_bytes
        self._queues = _single(
            flows.producer, flows.last, flows.reader, slots[[f.tensor for f in units.flows]]
        )
        # A constant is held by each stage with a reader, as an input that enters it.
        counts = np.array([len(readers) for _, readers in units.shared], dtype=np.int64)
        self._constants = _single(
            np.full(len(counts), -1),
            np.concatenate([[0], np.cumsum(counts)]),
            np.array([unit for _, readers in units.shared for unit in readers], dtype=np.int64),
            np.array([size for size, _ in units.shared]),
        )

    def between(self, order: Ints, cuts: Ints) -> Floats:
        """Bytes, rows first cuts and columns last ones, shape (n_cuts, n_cuts)."""
        own = np.concatenate([[0.0], np.cumsum(self._units.constant_bytes[order])])[cuts]
        live = np.maximum.reduceat(self._units.live_bytes[order], cuts[:-1])
        within = np.triu(np.broadcast_to(np.concatenate([[0.0], live]), (len(cuts), len(cuts))), 1)
        largest = np.maximum.accumulate(within, axis=1)
        total = own[None, :] - own[:, None] + largest
        for held in (self._queues, self._constants):
            if held.recv_s.any():
                total += Line(held, order).transfers(0, cuts)
        return np.asarray(total)


def _single(producer: Ints, last: Ints, reader: Ints, size: Floats) -> Flows:
    nothing = np.zeros((1, len(size)))
    return Flows(producer, last, reader, np.zeros((1, 0)), size[None, :], nothing, nothing[0])
