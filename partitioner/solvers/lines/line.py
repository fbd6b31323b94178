"""What stages cost that are intervals of one order of the units.

A cut is a position in the order: what lies before is done. A stage between two cuts receives a
tensor made before it with a reader within, and sends one made within with a reader after it; each
is a rectangle in the plane of (first cut, last cut), so that sums over rectangles, taken from a
difference array, price all pairs of cuts at once.

A tensor read by several later stages is sent to each of them; how many there are, an interval does
not know. It counts as one unless the caller says otherwise (`Flows.sends`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from partitioner.problem import Floats, Ints, Problem
from partitioner.solvers.bounds import transfer_bounds
from partitioner.solvers.reduce import Units

__all__ = ["Flows", "Line"]


@dataclass(frozen=True, slots=True, eq=False)
class Flows:
    """Tensors between units, as arrays, with what they cost.

    Attributes
    ----------
    producer : array of int, shape (n_flows,)
        Unit that makes each; -1 for the caller.
    last : array of int, shape (n_flows + 1,)
        Where each flow's readers begin in `reader`.
    reader : array of int, shape (n_readings,)
        Units that read, flow by flow.
    own_s : array, shape (n_options, n_units)
        Time of each unit on an option, with what it must send to the caller; inf where it cannot
        run.
    recv_s, send_s : array, shape (n_options, n_flows)
        The least that receiving or sending a flow costs a stage on an option.
    sends : array, shape (n_flows,)
        How many stages each flow is expected to be sent to, if to any.
    """

    producer: Ints
    last: Ints
    reader: Ints
    own_s: Floats
    recv_s: Floats
    send_s: Floats
    sends: Floats

    @staticmethod
    def of(problem: Problem, units: Units, options: list[int]) -> Flows:
        """Look at a problem; only the given options are priced, the others are zero."""
        n, caller = problem.n_options, problem.n_options
        flows = units.flows
        producer = np.array([flow.producer for flow in flows], dtype=np.int64)
        amount = problem.amount[[flow.tensor for flow in flows]]
        outward = np.array([flow.to_caller for flow in flows], dtype=np.bool_)
        counts = np.array([len(flow.readers) for flow in flows], dtype=np.int64)
        reader = np.array([r for flow in flows for r in flow.readers], dtype=np.int64)
        own = np.zeros((n, len(units)))
        recv, send = np.zeros((n, len(flows))), np.zeros((n, len(flows)))
        for option in options:
            sent, received, _ = transfer_bounds(problem, option, amount)
            out = (
                problem.send.base_s[option, caller]
                + amount * (problem.send.per_unit_s[option, caller])
            )
            into = (
                problem.recv.base_s[caller, option]
                + amount * (problem.recv.per_unit_s[caller, option])
            )
            own[option] = units.time_s[:, option]
            np.add.at(own[option], producer[outward], out[outward])
            if problem.send_once:
                sent = np.where(outward, np.maximum(0.0, sent - out), sent)
            recv[option] = np.where(producer >= 0, received, into)
            send[option] = np.where(producer >= 0, sent, 0.0)
        last = np.concatenate([[0], np.cumsum(counts)])
        return Flows(producer, last, reader, own, recv, send, np.ones(len(flows)))


class Line:
    """Intervals of one order.

    Parameters
    ----------
    flows : Flows
        The units and tensors.
    order : array of int, shape (n_units,)
        Units in a topological order.
    """

    def __init__(self, flows: Flows, order: Ints) -> None:
        self.flows, self.order = flows, order
        n = len(order)
        self.place = np.empty(n, dtype=np.int64)
        self.place[order] = np.arange(n)
        counts = np.diff(flows.last)
        self._flow = np.repeat(np.arange(len(counts)), counts)
        at = self.place[flows.reader]
        by_place = np.lexsort((at, self._flow))
        self._read = at[by_place]
        self._made = np.where(flows.producer >= 0, self.place[flows.producer], -1)
        # A stage that holds a reader receives the tensor unless it holds an earlier reader too or
        # the producer: its first cut is after those.
        self._after = np.roll(self._read, 1)
        begins = flows.last[:-1][counts > 0]
        self._after[begins] = -1
        np.maximum(self._after, self._made[self._flow], out=self._after)
        self._end = self._made.copy()
        self._end[counts > 0] = self._read[flows.last[1:][counts > 0] - 1]

    def __len__(self) -> int:
        return len(self.order)

    def crossing(self, weight: Floats) -> Floats:
        """Sum of a weight of flows over those that each cut crosses, shape (n_units + 1,)."""
        moved = (self._made >= 0) & (self._end > self._made)
        change = np.zeros(len(self) + 2)
        np.add.at(change, self._made[moved] + 1, weight[moved])
        np.add.at(change, self._end[moved] + 1, -weight[moved])
        return np.cumsum(change)[:-1]

    def own(self, option: int) -> Floats:
        """Time of the units before each cut, those that run there, shape (n_units + 1,)."""
        times = self.flows.own_s[option][self.order]
        return np.concatenate([[0.0], np.cumsum(np.where(np.isfinite(times), times, 0.0))])

    def refused(self, option: int) -> Ints:
        """Units before each cut that cannot run on an option, shape (n_units + 1,)."""
        refused = ~np.isfinite(self.flows.own_s[option][self.order])
        return np.concatenate([[0], np.cumsum(refused)])

    def transfers(self, option: int, cuts: Ints) -> Floats:
        """Transfer time of a stage on an option between two cuts, shape (n_cuts, n_cuts).

        Rows are first cuts, columns last ones.
        """
        flows = self.flows
        moved = (self._made >= 0) & (self._end > self._made)
        sent = flows.send_s[option] * flows.sends
        top = np.concatenate([self._after + 1, np.zeros(moved.sum(), dtype=np.int64)])
        bottom = np.concatenate([self._read, self._made[moved]])
        left = np.concatenate([self._read + 1, self._made[moved] + 1])
        right = np.concatenate([np.full(len(self._read), len(self)), self._end[moved]])
        weight = np.concatenate([flows.recv_s[option][self._flow], sent[moved]])
        return _rectangles(cuts, (top, bottom), (left, right), weight)


def _rectangles(
    cuts: Ints, rows: tuple[Ints, Ints], columns: tuple[Ints, Ints], weight: Floats
) -> Floats:
    """Sum of the weights of the rectangles (ends included) that hold each pair of cuts."""
    n = len(cuts)
    r0, r1 = np.searchsorted(cuts, rows[0], "left"), np.searchsorted(cuts, rows[1], "right")
    c0, c1 = np.searchsorted(cuts, columns[0], "left"), np.searchsorted(cuts, columns[1], "right")
    some = (r0 < r1) & (c0 < c1)
    r0, r1, c0, c1 = (ends[some] for ends in (r0, r1, c0, c1))
    size, weight = n + 1, weight[some]
    corners = np.concatenate([r0 * size + c0, r1 * size + c1, r0 * size + c1, r1 * size + c0])
    signed = np.concatenate([weight, weight, -weight, -weight])
    change: Floats = np.bincount(corners, signed, minlength=size * size).astype(np.float64)
    change = change.reshape(size, size)
    np.cumsum(change, axis=0, out=change)
    np.cumsum(change, axis=1, out=change)
    return change[:n, :n]
