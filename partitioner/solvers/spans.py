"""What a stage costs, for every pair of downsets that can be its beginning and its end.

For downsets I within J the stage holds J without I. A tensor enters it when its producer is in I
and J holds more of its readers than I; it leaves when its producer is in the stage and a reader is
outside J. Both are sums over tensors of products of one factor of I and one of J, so that one
matrix product prices all pairs.
"""

from __future__ import annotations

import numpy as np

from partitioner.problem import Bools, Floats, Problem
from partitioner.solvers.bounds import transfer_bounds
from partitioner.solvers.reduce import Flow, Units

__all__ = ["SpanCosts"]

_ROUNDING = 1e-9


class SpanCosts:
    """Prices stages between downsets.

    Parameters
    ----------
    problem, units
        The problem and its units.
    members : array of bool, shape (n_ideals, n_units)
        Units of each downset, downsets by growing size.
    """

    def __init__(self, problem: Problem, units: Units, members: Bools) -> None:
        self._problem = problem
        self._units = units
        self._members = members
        inside = members.astype(np.float32)
        self._nested = inside @ (1 - inside).T == 0
        np.fill_diagonal(self._nested, False)
        self._inputs = [flow for flow in units.flows if flow.producer < 0]
        self._moved = [flow for flow in units.flows if flow.producer >= 0 and flow.readers]
        self._bytes: Floats | None = None
        if self._memory_may_bind():
            self._bytes = self._stage_bytes()

    def cost(self, option: int, cutoff: float) -> Floats:
        """Least busy time of a stage on `option`, shape (n_ideals, n_ideals).

        Parameters
        ----------
        cutoff : float
            Times from it on become inf.

        Returns
        -------
        array
            From row (what is done before) to column (what is done after); inf where the stage is
            none, cannot run or needs too much memory.
        """
        problem, units, members = self._problem, self._units, self._members
        busy = self._own_s(option)
        runs = units.runs[:, option] & (busy < cutoff)
        busy[~runs] = 0.0
        done = members @ busy
        refused = (members & ~runs).sum(axis=1)
        times = done[None, :] - done[:, None] + problem.host_s[option]
        times += self._entering(self._inputs, self._input_s(option))
        amount = self._amounts(self._moved)
        send_s, recv_s = transfer_bounds(problem, option, amount)
        if problem.send_once:
            caller = self._caller_s(option)
            paid = np.array([caller[f.tensor] if f.to_caller else 0.0 for f in self._moved])
            send_s = np.maximum(0.0, send_s - paid)
        times += self._entering(self._moved, recv_s)
        times += self._leaving(send_s)
        # Differences of sums are off by their rounding; a bound must not be above the truth.
        times -= 1e-14 * len(units) * float(done[-1])
        possible = self._nested & (refused[None, :] == refused[:, None])
        if self._bytes is not None:
            budget = float(problem.pool_bytes[problem.pool_of[option]])
            possible &= self._bytes <= budget * (1 + _ROUNDING)
        possible &= times < cutoff
        return np.where(possible, np.maximum(times, 0.0), np.inf)

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

    def _entering(self, flows: list[Flow], weight: Floats) -> Floats:
        """Sum of `weight` over tensors that enter each stage."""
        return self._met([(flow.readers, flow.producer) for flow in flows], weight)

    def _met(self, groups: list[tuple[tuple[int, ...], int]], weight: Floats) -> Floats:
        """Sum of `weight` over groups (units, producer) that the stage holds a unit of.

        A group with a producer counts only where the producer came before the stage.
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
        if not rows:
            return np.zeros((len(members), len(members)))
        return np.asarray(np.array(rows).T @ np.array(columns, dtype=np.float64))

    def _leaving(self, weight: Floats) -> Floats:
        """Sum of `weight` over tensors made in the stage and read after it."""
        members = self._members
        rows, columns = [], []
        for flow, each in zip(self._moved, weight, strict=True):
            if each:
                made = members[:, flow.producer]
                rows.append(np.where(made, 0.0, each))
                columns.append(made & ~members[:, list(flow.readers)].all(axis=1))
        if not rows:
            return np.zeros((len(members), len(members)))
        return np.asarray(np.array(rows).T @ np.array(columns, dtype=np.float64))

    def _memory_may_bind(self) -> bool:
        problem, units = self._problem, self._units
        largest = (
            float(problem.constant_bytes.sum())
            + float(units.live_bytes.max())
            + problem.queue_slots * float(problem.tensor_bytes.sum())
        )
        return bool((problem.pool_bytes < largest).any())

    def _stage_bytes(self) -> Floats:
        problem, units, members = self._problem, self._units, self._members
        own = members @ units.constant_bytes
        size = own[None, :] - own[:, None]
        size += self._met(
            [(readers, -1) for _, readers in units.shared],
            np.array([bytes_ for bytes_, _ in units.shared]),
        )
        if problem.queue_slots:
            for flows in (self._inputs, self._moved):
                entering = problem.tensor_bytes[[flow.tensor for flow in flows]]
                size += self._entering(flows, problem.queue_slots * entering)
        live = np.zeros_like(size)
        for unit in np.argsort(units.live_bytes, kind="stable"):
            held = members[None, :, unit] & ~members[:, None, unit]
            live[held] = units.live_bytes[unit]
        return np.asarray(size + live)
