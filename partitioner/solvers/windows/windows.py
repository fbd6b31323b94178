"""Where the cuts of a short pipeline can be, and what they must cost.

In a pipeline of period T the stages before a cut hold at most what so many stages can do within T,
and those after it likewise. An op with too much work at or above it lies after the cut, one with
too much at or below it before; the rest is the cut's window. A minimum cut within the window (a
closure: maximum flow, Picard 1976) is the least that the cut costs in transfers, and these costs
add to the load that the stages share. That makes windows narrower, and so on.

All of it supposes a period below T, so that it proves the lesser of T and the load bound found.
Work and transfers are priced (see `bounds.Prices`), each op and tensor at its cheapest option.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from ortools.graph.python import max_flow

from partitioner.problem import Bools, Floats, Problem
from partitioner.solvers.bounds import Prices
from partitioner.solvers.lines.line import Flows
from partitioner.solvers.reduce import Units, most_stages, times_used

__all__ = ["Supposed", "Windows"]

_ROUNDS = 4
_SAFE = 1e-9
_QUANTA = float(1 << 40)
_BLOCK = 1000
# Windows in which a unit lies on average: with more, cuts are too close to tell them apart.
_OVERLAP = 2.0
_GONE = -1


@dataclass(frozen=True, slots=True, eq=False)
class Supposed:
    """What follows from a period below some value, for one number of stages.

    Attributes
    ----------
    bound_s : float
        No such pipeline has a shorter period; inf when there is none.
    before, after : array of bool, shape (n_stages - 1, n_units)
        Units that lie before (after) each cut for certain.
    most, rest : array, shape (n_stages - 1,)
        Priced work and transfers that can lie before (after) each cut at most, those of tensors
        that cross it included.
    weight : array, shape (n_stages - 1, n_flows)
        Priced transfers of each tensor charged to each cut that it crosses; what its cuts are
        charged together it costs at least.
    cost : array, shape (n_stages - 1,)
        The least that is charged to each cut.
    slack : float
        Priced work that all cuts together can cost more than that; inf where windows overlap too
        much to say anything about cuts.
    """

    bound_s: float
    before: Bools
    after: Bools
    most: Floats
    rest: Floats
    weight: Floats
    cost: Floats
    slack: float

    @property
    def free(self) -> Bools:
        """Units in the window of each cut, shape (n_stages - 1, n_units)."""
        return ~self.before & ~self.after


class Windows:
    """Windows of the cuts of one problem.

    Parameters
    ----------
    problem, units, flows
        The problem, its units, and the tensors between them.
    price : Prices
        Prices of the load bound.
    heads : list of int
        Options, one of each kind.

    Attributes
    ----------
    work : array, shape (n_units,)
        Priced work of each unit.
    recv, send : array, shape (n_flows,)
        Priced transfers of each tensor.
    host : float
        Priced host time of a stage.
    """

    def __init__(
        self, problem: Problem, units: Units, flows: Flows, price: Prices, heads: list[int]
    ) -> None:
        self.units, self.flows = units, flows
        each = problem.uses @ price.resource + price.slot
        rate = (each / problem.replicas)[heads]
        with np.errstate(invalid="ignore"):
            work = flows.own_s[heads] * rate[:, None]
        self.work = np.where(np.isnan(work), np.inf, work).min(axis=0)
        self.recv = (flows.recv_s[heads] * rate[:, None]).min(axis=0)
        self.send = (flows.send_s[heads] * rate[:, None]).min(axis=0)
        self.send_once = problem.send_once
        self.host = float((problem.host_s[heads] * rate).min())
        inputs = flows.producer < 0
        self._inputs = float(self.recv[inputs].sum())
        self._total = float(self.work.sum())
        self._capacity = _capacity(problem, each, price.total)
        self._above, self._below = _closures(units, self.work)
        both = self.send + self.recv
        moved = ~inputs & (both > 0)
        # Of what a tensor costs, at least this share is the sender's, or the receiver's.
        self._sent = float((self.send[moved] / both[moved]).min()) if moved.any() else 0.0
        self._received = float((self.recv[moved] / both[moved]).min()) if moved.any() else 0.0
        counts = np.diff(flows.last)
        self._moved = moved & (counts > 0)

    def suppose(self, period_s: float) -> list[Supposed]:
        """What a period below `period_s` implies, for each number of stages that allows it."""
        found = []
        for stages in range(1, len(self._capacity)):
            if self._loads(stages, 0.0) < period_s:
                supposed = self._suppose(stages, period_s)
                if supposed.bound_s < period_s:
                    found.append(supposed)
        return found

    def bound(self, period_s: float) -> float:
        """A proven bound on the period, seconds, at most `period_s`."""
        return min([period_s, *(each.bound_s for each in self.suppose(period_s))])

    def _loads(self, stages: int, copies: float) -> float:
        priced = self._total + self._inputs + stages * self.host + copies
        return float(priced / self._capacity[stages] * (1 - _SAFE))

    def _suppose(self, stages: int, period_s: float) -> Supposed:
        n, cuts = len(self.units), stages - 1
        before = np.zeros((cuts, n), dtype=np.bool_)
        after = np.zeros((cuts, n), dtype=np.bool_)
        weight = np.zeros((cuts, len(self.send)))
        cost, alone = np.zeros(cuts), np.zeros(cuts)
        room = period_s * (1 + _SAFE) * self._capacity + _SAFE * self._total
        first = np.arange(1, stages)
        both = self.send + self.recv
        for _ in range(_ROUNDS):
            known = before.sum() + after.sum()
            done = np.cumsum(alone)
            most = room[first] - first * self.host - (done - alone)
            rest = room[stages - first] - (stages - first) * self.host
            rest -= done[-1:].sum() - done
            before = self._below > (rest - self._received * alone)[:, None]
            after = self._above > (most - self._sent * alone)[:, None]
            if (~before & ~after).sum() > _OVERLAP * n:
                nothing = np.zeros(cuts)
                bound_s = self._loads(stages, 0.0)
                return Supposed(bound_s, before, after, most, rest, weight, nothing, np.inf)
            if (before & after).any():
                return Supposed(np.inf, before, after, most, rest, weight, cost, 0.0)
            if before.sum() + after.sum() == known:
                break
            crosses = self._crosses(before, after)
            number = crosses.sum(axis=0)
            weight = crosses * (both / np.maximum(number, 1))
            for cut in range(cuts):
                cost[cut] = self.cheapest(weight[cut], before[cut], after[cut])
                only = np.where(number == 1, weight[cut], 0.0)
                alone[cut] = (
                    cost[cut]
                    if np.array_equal(only, weight[cut])
                    else self.cheapest(only, before[cut], after[cut])
                )
        total = float(cost.sum())
        slack = room[stages] - self._loads(stages, total) * self._capacity[stages]
        bound_s = self._loads(stages, total)
        return Supposed(bound_s, before, after, most, rest, weight, cost, slack)

    def _crosses(self, before: Bools, after: Bools) -> Bools:
        """Which tensors each cut can cross, shape (n_cuts, n_flows)."""
        flows = self.flows
        found = np.zeros((len(before), len(flows.producer)), dtype=np.bool_)
        begins, ends = flows.last[:-1], flows.last[1:]
        for cut in range(len(before)):
            done = np.concatenate([[0], np.cumsum(before[cut][flows.reader])])
            read = done[ends] - done[begins] == ends - begins
            found[cut] = self._moved & ~after[cut][flows.producer] & ~read
        return found

    def cheapest(
        self, weight: Floats, before: Bools, after: Bools, skip: Bools | None = None
    ) -> float:
        """Least weight of tensors that a cut within its window crosses.

        Parameters
        ----------
        weight : array, shape (n_flows,)
            Weight of each tensor.
        before, after : array of bool, shape (n_units,)
            Units on either side for certain.
        skip : array of bool, shape (n_units,), optional
            Units left out, with the tensors that they make.
        """
        skipped = np.zeros(len(before), dtype=np.bool_) if skip is None else skip
        flows = np.flatnonzero(weight)
        flows = flows[~skipped[self.flows.producer[flows]]]
        scale = _QUANTA / max(float(weight.sum()), 1e-300)
        model = max_flow.SimpleMaxFlow()
        n = len(self.units)
        source, sink, far = n, n + 1, int(_QUANTA) << 4
        end = np.where(before, source, np.where(after, sink, np.arange(n)))
        end[skipped] = _GONE
        arcs: list[tuple[int, int, int]] = []
        fixed = 0
        for number, (flow, steps) in enumerate(
            zip(flows.tolist(), np.floor(weight[flows] * scale).astype(int).tolist(), strict=True)
        ):
            tail = int(end[self.flows.producer[flow]])
            part = slice(int(self.flows.last[flow]), int(self.flows.last[flow + 1]))
            heads = set(end[self.flows.reader[part]].tolist()) - {source, _GONE}
            if sink in heads:
                if tail == source:
                    fixed += steps
                else:
                    arcs.append((tail, sink, steps))
            else:
                middle = n + 2 + number
                arcs.append((tail, middle, steps))
                arcs += [(middle, head, far) for head in heads]
        free = np.flatnonzero(end == np.arange(n))
        for unit in free.tolist():
            arcs += [(unit, other, far) for other in self.units.before[unit] if end[other] == other]
        if not arcs:
            return fixed / scale
        tails, heads_, steps_ = np.array(arcs).T
        # Nodes without arcs cost time: number those that are there.
        _, numbered = np.unique(
            np.concatenate([tails, heads_, [source, sink]]), return_inverse=True
        )
        k = len(tails)
        model.add_arcs_with_capacity(numbered[:k], numbered[k : 2 * k], steps_)
        status = model.solve(int(numbered[-2]), int(numbered[-1]))
        if status != model.OPTIMAL:
            return fixed / scale
        return float((fixed + model.optimal_flow()) / scale)


def _capacity(problem: Problem, each: Floats, total: float) -> Floats:
    """Most priced work that a number of stages can do in a second, shape (most stages + 1,)."""
    slots = most_stages(problem)
    found = np.sort(np.repeat(each, times_used(problem, slots)))[::-1][:slots]
    return np.asarray(np.minimum(np.concatenate([[0.0], np.cumsum(found)]), total))


def _closures(units: Units, work: Floats) -> tuple[Floats, Floats]:
    """Work of each unit with all before it, and with all after it, each shape (n_units,)."""
    n = len(units)
    held = np.zeros((n, (n + 7) // 8), dtype=np.uint8)
    for unit, before in enumerate(units.before):
        for other in before:
            held[unit] |= held[other]
        held[unit, unit >> 3] |= 1 << (unit & 7)
    above, below = np.zeros(n), np.zeros(n)
    for low in range(0, n, _BLOCK):
        part = np.unpackbits(held[low : low + _BLOCK], axis=1, bitorder="little")[:, :n]
        above[low : low + _BLOCK] = part @ work
        below += work[low : low + _BLOCK] @ part
    return above, below
