"""What a stage costs, for pairs of downsets that can be its beginning and its end.

For downsets I within J the stage holds J without I. A tensor enters it when its producer is in I
and J holds more of its readers than I; it leaves when its producer is in the stage and a reader is
outside J. Both are sums over tensors of products of one factor of I and one of J, so that matrix
products price many pairs at once. Only pairs cheaper than the cut-off are kept.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from partitioner.problem import Bools, Floats, Ints, Problem
from partitioner.solvers.bounds import transfer_bounds
from partitioner.solvers.limits import Clock
from partitioner.solvers.reduce import Flow, Units

__all__ = ["SpanCosts", "Spans"]

_ROUNDING = 1e-9
_CHUNK = 256

Factors = tuple[Floats, Floats]


@dataclass(frozen=True, slots=True, eq=False)
class Spans:
    """Stages on one option, by the downset that they complete.

    Attributes
    ----------
    first : array of int, shape (n_ideals + 1,)
        Where each final downset's stages begin in the arrays below.
    start : array of int, shape (n_spans,)
        Downset that is done before the stage.
    busy_s : array, shape (n_spans,)
        Least busy time of the stage.
    """

    first: Ints
    start: Ints
    busy_s: Floats


class SpanCosts:
    """Prices stages between downsets.

    Parameters
    ----------
    problem, units
        The problem and its units.
    members : array of bool, shape (n_ideals, n_units)
        Units of each downset, every downset after those within it.
    work : array of int, shape (n_ideals,)
        Priced work (see `bounds.Prices`) of each downset in some small unit, ascending.
    """

    def __init__(self, problem: Problem, units: Units, members: Bools, work: Ints) -> None:
        self._problem = problem
        self._units = units
        self._members = members
        self._work = work
        self._inside = members.astype(np.float32)
        self._inputs = [flow for flow in units.flows if flow.producer < 0]
        self._moved = [flow for flow in units.flows if flow.producer >= 0 and flow.readers]
        self._memory = self._memory_factors() if self._memory_may_bind() else None

    def pairs(self, rate: float, cutoff: float) -> int:
        """How many pairs `spans` would price."""
        last = np.searchsorted(self._work, self._work + rate * cutoff * (1 + _ROUNDING), "right")
        return int((last - np.arange(len(last)) - 1).sum())

    def spans(self, option: int, rate: float, cutoff: float, clock: Clock) -> Spans | None:
        """All stages on `option` that cost less than `cutoff`.

        Parameters
        ----------
        rate : float
            Price of the option: a stage of period T holds at most ``rate * T`` of `work`.
        clock : Clock
            When to give up.

        Returns
        -------
        Spans or None
            None when time ran out.
        """
        busy = self._own_s(option)
        runs = self._units.runs[:, option] & (busy < cutoff)
        busy[~runs] = 0.0
        done = self._members @ busy
        refused = (self._members & ~runs).sum(axis=1)
        factors = self._transfer_factors(option)
        # Differences of sums are off by their rounding; a bound must not be above the truth.
        slack = float(self._problem.host_s[option]) - 1e-14 * len(busy) * float(done[-1])
        reach = rate * cutoff * (1 + _ROUNDING)
        rows: list[Ints] = []
        columns: list[Ints] = []
        values: list[Floats] = []
        for low in range(0, len(done) - 1, _CHUNK):
            high = min(low + _CHUNK, len(done) - 1)
            span = slice(
                low + 1, int(np.searchsorted(self._work, self._work[high - 1] + reach, "right"))
            )
            row = slice(low, high)
            times = done[None, span] - done[row, None] + slack
            possible = (times < cutoff) & (refused[None, span] == refused[row, None])
            possible &= self._nested(row, span)
            times += factors[0][row] @ factors[1][span].T
            possible &= times < cutoff
            if self._memory is not None:
                possible &= self._fits(option, row, span, self._memory)
            r, c = np.nonzero(possible)
            if clock.left_s <= 0:
                return None
            rows.append(r + low)
            columns.append(c + low + 1)
            values.append(np.maximum(times[r, c], 0.0))
        return _by_column(len(done), rows, columns, values)

    def _nested(self, row: slice, span: slice) -> Bools:
        """Which pairs are a downset strictly within another."""
        outside = self._inside[row] @ (1 - self._inside[span]).T == 0
        first = np.arange(row.start, row.stop)[:, None]
        return np.asarray(outside & (np.arange(span.start, span.stop)[None, :] > first))

    def _transfer_factors(self, option: int) -> Factors:
        problem = self._problem
        amount = self._amounts(self._moved)
        send_s, recv_s = transfer_bounds(problem, option, amount)
        if problem.send_once:
            caller = self._caller_s(option)
            paid = np.array([caller[f.tensor] if f.to_caller else 0.0 for f in self._moved])
            send_s = np.maximum(0.0, send_s - paid)
        return _joined(
            self._entering(self._inputs, self._input_s(option)),
            self._entering(self._moved, recv_s),
            self._leaving(send_s),
        )

    def _own_s(self, option: int) -> Floats:
        """Time of each unit with what it must send to the caller."""
        units = self._units
        busy = np.where(units.runs[:, option], units.time_s[:, option], 0.0)
        caller = self._caller_s(option)
        for flow in units.flows:
            if flow.to_caller:
                busy[flow.producer] += caller[flow.tensor]
        return busy

    def _caller_s(self, option: int) -> Floats:
        send = self._problem.send
        caller = self._problem.n_options
        return np.asarray(
            send.base_s[option, caller] + self._problem.amount * send.per_unit_s[option, caller]
        )

    def _input_s(self, option: int) -> Floats:
        recv = self._problem.recv
        caller = self._problem.n_options
        amount = self._amounts(self._inputs)
        return np.asarray(recv.base_s[caller, option] + amount * recv.per_unit_s[caller, option])

    def _amounts(self, flows: list[Flow]) -> Floats:
        return self._problem.amount[[flow.tensor for flow in flows]]

    def _entering(self, flows: list[Flow], weight: Floats) -> Factors:
        """Factors of the sum of `weight` over tensors that enter a stage."""
        return self._met([(flow.readers, flow.producer) for flow in flows], weight)

    def _met(self, groups: list[tuple[tuple[int, ...], int]], weight: Floats) -> Factors:
        """Factors of the sum of `weight` over groups that the stage holds a unit of.

        A group is (units, producer); with a producer it counts only where that came before.
        """
        members = self._members
        rows, columns = [], []
        for (readers, producer), each in zip(groups, weight, strict=True):
            if each == 0:
                continue
            count = members[:, list(readers)].sum(axis=1)
            made = members[:, producer] if producer >= 0 else np.True_
            for have in range(len(readers)):
                rows.append(np.where(made & (count == have), each, 0.0))
                columns.append(count > have)
        return self._stacked(rows, columns)

    def _leaving(self, weight: Floats) -> Factors:
        """Factors of the sum of `weight` over tensors made in a stage and read after it."""
        members = self._members
        rows, columns = [], []
        for flow, each in zip(self._moved, weight, strict=True):
            if each:
                made = members[:, flow.producer]
                rows.append(np.where(made, 0.0, each))
                columns.append(made & ~members[:, list(flow.readers)].all(axis=1))
        return self._stacked(rows, columns)

    def _stacked(self, rows: list[Floats], columns: list[Bools]) -> Factors:
        if not rows:
            return np.zeros((len(self._members), 0)), np.zeros((len(self._members), 0))
        return np.array(rows).T, np.array(columns, dtype=np.float64).T

    def _memory_may_bind(self) -> bool:
        problem, units = self._problem, self._units
        largest = (
            float(problem.constant_bytes.sum())
            + float(units.live_bytes.max())
            + problem.queue_slots * float(problem.tensor_bytes.sum())
        )
        return bool((problem.pool_bytes < largest).any())

    def _memory_factors(self) -> Factors:
        problem, shared = self._problem, self._units.shared
        parts = [
            self._met([(readers, -1) for _, readers in shared], np.array([b for b, _ in shared]))
        ]
        if problem.queue_slots:
            for flows in (self._inputs, self._moved):
                size = problem.tensor_bytes[[flow.tensor for flow in flows]]
                parts.append(self._entering(flows, problem.queue_slots * size))
        return _joined(*parts)

    def _fits(self, option: int, row: slice, span: slice, factors: Factors) -> Bools:
        """Which stages fit the option's pool by themselves."""
        units = self._units
        own = self._members @ units.constant_bytes
        size = own[None, span] - own[row, None] + factors[0][row] @ factors[1][span].T
        live = np.zeros_like(size)
        for unit in np.argsort(units.live_bytes, kind="stable"):
            held = self._members[None, span, unit] & ~self._members[row, None, unit]
            live[held] = units.live_bytes[unit]
        budget = float(self._problem.pool_bytes[self._problem.pool_of[option]])
        return np.asarray(size + live <= budget * (1 + _ROUNDING))


def _joined(*parts: Factors) -> Factors:
    return np.hstack([part[0] for part in parts]), np.hstack([part[1] for part in parts])


def _by_column(n: int, rows: list[Ints], columns: list[Ints], values: list[Floats]) -> Spans:
    row, column = np.concatenate(rows), np.concatenate(columns)
    value: Floats = np.concatenate(values)
    order = np.argsort(column, kind="stable")
    first = np.concatenate([[0], np.cumsum(np.bincount(column, minlength=n))])
    return Spans(first, row[order].astype(np.int32), value[order])
