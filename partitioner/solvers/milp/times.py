"""Times in the mixed-integer program: busy times of slots, period and latency."""

from __future__ import annotations

import numpy as np

from partitioner.problem import LatencyModel, TransferCost
from partitioner.solvers.milp.program import Sum
from partitioner.solvers.milp.rows import Rows

__all__ = ["Times"]

# `evaluation` forgives as much.
_ROUNDING = 1e-9


class Times:
    """Busy times, as sums; a slot's sends may take variables of their own.

    Parameters
    ----------
    rows
        Where ops and tensors go.
    per_second : float
        Units of a second.
    ceiling : float
        Units that no latency of interest exceeds.
    """

    def __init__(self, rows: Rows, per_second: float, ceiling: float) -> None:
        self._rows, self._scale, self._ceiling = rows, per_second, ceiling
        problem = self._problem = rows.problem
        self._caller = Sum()
        self._busy = [Sum() for _ in rows.option]
        for slot, option in enumerate(rows.option):
            self._busy[slot].add(rows.used[slot], per_second * float(problem.host_s[option]))
            for op, places in enumerate(rows.place):
                if places[slot] >= 0:
                    seconds = float(problem.time_s[op, option])
                    self._busy[slot].add(places[slot], per_second * seconds)
        for tensor in range(problem.n_tensors):
            for a, b, moved in rows.ends(tensor):
                self._at(b).add(moved, self._units(problem.recv, tensor, a, b))
            self._add_sends(tensor)

    def _at(self, slot: int) -> Sum:
        return self._busy[slot] if slot >= 0 else self._caller

    def _units(self, cost: TransferCost, tensor: int, a: int, b: int) -> float:
        ends, amount = (*self._rows.option, self._problem.n_options), self._problem.amount[tensor]
        return self._scale * cost.seconds(ends[a], ends[b], float(amount))

    def _add_sends(self, tensor: int) -> None:
        sends: dict[int, Sum] = {}
        for a, b, moved in self._rows.ends(tensor):
            sends.setdefault(a, Sum()).add(moved, self._units(self._problem.send, tensor, a, b))
        for a, cost in sends.items():
            if self._problem.send_once and len(cost) > 1:
                dearest = self._rows.program.variable(np.inf)
                self._at(a).add(dearest, 1.0)
                for moved, units in cost.items():
                    self._rows.program.covers(dearest, {moved: units})
            else:
                self._at(a).add_all(cost)

    def period(self) -> int:
        """A variable that is at least the period, and at most its cap."""
        problem, rows = self._problem, self._rows
        ends = (*rows.option, problem.n_options)
        loads: dict[object, Sum] = {"caller": self._caller}
        for slot, option in enumerate(rows.option):
            loads["slot", slot] = Sum()
            loads["slot", slot].add_all(self._busy[slot], 1.0 / float(problem.replicas[option]))
            if problem.host_core[option] >= 0:
                core = loads.setdefault(("core", int(problem.host_core[option])), Sum())
                core.add(rows.used[slot], self._scale * float(problem.host_s[option]))
        for tensor in range(problem.n_tensors):
            for a, b, moved in rows.ends(tensor):
                bus = int(problem.bus_of[ends[a], ends[b]])
                name = ("bus", bus) if bus >= 0 else ("link", ends[a], ends[b])
                units = self._units(problem.link, tensor, a, b)
                loads.setdefault(name, Sum()).add(moved, units)
        period = rows.program.variable(self._cap(problem.period_cap_s))
        for load in loads.values():
            rows.program.covers(period, load)
        return period

    def latency(self) -> int:
        """A variable that is at least the latency, and at most its cap."""
        problem, rows = self._problem, self._rows
        latency = rows.program.variable(self._cap(problem.latency_cap_s))
        if problem.latency_model is LatencyModel.ATOMIC and problem.contiguous:
            self._add_atomic(latency)
            return latency
        total = Sum()
        for busy in self._busy:
            total.add_all(busy)
        for tensor in range(problem.n_tensors):
            for a, b, moved in rows.ends(tensor):
                total.add(moved, self._units(problem.link, tensor, a, b))
        rows.program.covers(latency, total)
        return latency

    def _add_atomic(self, latency: int) -> None:
        """Each slot runs as a whole after all that it waits for."""
        rows, program = self._rows, self._rows.program
        start = [program.variable(self._ceiling) for _ in rows.option]
        end = [program.variable(self._ceiling) for _ in rows.option]
        for slot, busy in enumerate(self._busy):
            done = Sum(busy)
            done.add(start[slot], 1.0)
            program.covers(end[slot], done)
            program.covers(latency, {end[slot]: 1.0})
        self._add_paths(latency)
        for tensor in range(self._problem.n_tensors):
            for a, b, moved in rows.ends(tensor):
                wait = Sum()
                wait.add(moved, self._units(self._problem.link, tensor, a, b))
                if a >= 0:
                    wait.add(end[a], 1.0)
                if a >= 0 and b >= 0:
                    wait.add(moved, self._ceiling)
                    wait.add(start[b], -1.0)
                    program.at_most(wait, self._ceiling)
                else:
                    program.covers(start[b] if b >= 0 else latency, wait)

    def _add_paths(self, latency: int) -> None:
        """The ops of a path run one after the other: implied, but not while slots are fractions."""
        rows, problem = self._rows, self._problem
        done = [rows.program.variable(self._ceiling) for _ in range(problem.n_ops)]
        for op, places in enumerate(rows.place):
            rows.program.covers(latency, {done[op]: 1.0})
            takes = Sum()
            for option, place in zip(rows.option, places, strict=True):
                if place >= 0:
                    takes.add(place, self._scale * float(problem.time_s[op, option]))
            for before in {None, *(u for u, v in problem.edges if v == op)}:
                path = Sum(takes)
                path.add(-1 if before is None else done[before], 1.0)
                rows.program.covers(done[op], path)

    def _cap(self, cap_s: float) -> float:
        return float(cap_s * (1 + _ROUNDING) * self._scale)
