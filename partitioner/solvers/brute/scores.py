"""Scores of many assignments at once, for exhaustive search.

The rules are `evaluation`'s, written again for whole arrays, an assignment a column; a test holds
the two to the same figures.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from partitioner.problem import (
    Bools,
    Floats,
    Ints,
    LatencyModel,
    Objective,
    Problem,
    TransferCost,
)

__all__ = ["Chunk", "Scores"]

# `evaluation` forgives 1e-9; what lies closer to that than rounding is for it to decide.
_ROUNDING = 1.1e-9


@dataclass(frozen=True, slots=True)
class Chunk:
    """Assignments side by side.

    Attributes
    ----------
    stage : array, shape (n_ops, n_rows)
        Stage of each op, numbered as they come up.
    option : array, shape (most_stages, n_rows)
        Option of each stage; without meaning from `count` on.
    after : array, shape (most_stages, n_rows)
        Stages that come after each stage along the edges, as bits.
    count : array, shape (n_rows,)
        Stages there are.
    """

    stage: Ints
    option: Ints
    after: Ints
    count: Ints


@dataclass(frozen=True, slots=True)
class _Hop:
    """A tensor on its way from one op's stage to another's; -1 is the caller.

    Attributes
    ----------
    moves : array of bool, shape (n_rows,)
        False where both are in one stage, or another reader in the same stage has been counted.
    pair : array of int, shape (n_rows,)
        Endpoints as an index into a flattened cost table.
    """

    tensor: int
    source: int
    target: int
    moves: Bools
    pair: Ints


class Scores:
    """Prices chunks of assignments of one problem.

    Parameters
    ----------
    problem
        The problem; its cost tables are laid out once, a row a tensor, flattened by endpoints.
    """

    def __init__(self, problem: Problem) -> None:
        self._p = problem
        self._send, self._recv, self._link = (
            _table(problem, cost) for cost in (problem.send, problem.recv, problem.link)
        )
        ends = problem.n_options + 1
        bus = problem.bus_of.ravel()
        names = np.where(bus >= 0, bus, bus.max(initial=-1) + 1 + np.arange(ends * ends))
        self._resource = np.unique(names, return_inverse=True)[1]
        self._memory_matters = bool(np.isfinite(problem.pool_bytes).any())

    def objective(self, chunk: Chunk) -> Floats:
        """The problem's objective of every assignment; inf where a limit is broken."""
        problem = self._p
        wanted = {problem.objective}
        if np.isfinite(problem.period_cap_s):
            wanted.add(Objective.PERIOD)
        if np.isfinite(problem.latency_cap_s):
            wanted.add(Objective.LATENCY)
        found = self.values(chunk, wanted)
        value = found[problem.objective].copy()
        caps = {Objective.PERIOD: problem.period_cap_s, Objective.LATENCY: problem.latency_cap_s}
        for name, cap in caps.items():
            if name in found:
                value[found[name] > cap * (1 + _ROUNDING)] = np.inf
        if self._memory_matters:
            over = self.pools(chunk) > problem.pool_bytes[:, None] * (1 + _ROUNDING)
            value[over.any(axis=0)] = np.inf
        return value

    def values(self, chunk: Chunk, wanted: Collection[Objective]) -> dict[Objective, Floats]:
        """Objectives by name, each of shape (n_rows,), whatever limits they break."""
        rows = _Rows(self._p, chunk)
        found: dict[Objective, Floats] = {}
        if Objective.PERIOD in wanted or Objective.LATENCY in wanted:
            busy, caller = self._busy(rows)
            if Objective.PERIOD in wanted:
                found[Objective.PERIOD] = self._period(rows, busy, caller)
            if Objective.LATENCY in wanted:
                found[Objective.LATENCY] = self._latency(rows, busy)
        if Objective.COPIES in wanted:
            found[Objective.COPIES] = np.zeros(rows.size)
            for hop in rows.hops:
                if hop.source >= 0 and hop.target >= 0:
                    found[Objective.COPIES] += hop.moves
        if Objective.MEMORY in wanted:
            found[Objective.MEMORY] = self.pools(chunk).sum(axis=0)
        if Objective.DEVICES in wanted:
            found[Objective.DEVICES] = rows.by_option(self._p.replicas).sum(axis=0)
        return found

    def _busy(self, rows: _Rows) -> tuple[Floats, Floats]:
        """Busy time of each stage, shape (most_stages, n_rows), and of the caller, (n_rows,)."""
        problem = self._p
        busy = rows.by_option(problem.host_s)
        caller = np.zeros(rows.size)
        for op in range(problem.n_ops):
            rows.add(busy, op, problem.time_s[op][rows.option[op]])
        dearest: dict[int, Floats] = {}
        for hop in rows.hops:
            for table, end in ((self._send, hop.source), (self._recv, hop.target)):
                if not table[hop.tensor].any():
                    continue
                cost = table[hop.tensor][hop.pair] * hop.moves
                if table is self._send and problem.send_once:
                    known = dearest.get(hop.tensor, np.zeros(rows.size))
                    dearest[hop.tensor] = np.maximum(known, cost)
                elif end >= 0:
                    rows.add(busy, end, cost)
                else:
                    caller += cost
        for tensor, cost in dearest.items():
            source = int(problem.producer[tensor])
            if source >= 0:
                rows.add(busy, source, cost)
            else:
                caller += cost
        return busy, caller

    def _period(self, rows: _Rows, busy: Floats, caller: Floats) -> Floats:
        problem = self._p
        shared = busy / np.where(rows.used, problem.replicas[rows.chunk.option], 1)
        period: Floats = np.maximum(shared.max(axis=0), caller)
        if self._link.any():
            loads = np.zeros((int(self._resource.max()) + 1, rows.size))
            for hop in rows.hops:
                place = self._resource[hop.pair] * rows.size + rows.columns
                loads.reshape(-1)[place] += self._link[hop.tensor][hop.pair] * hop.moves
            period = np.maximum(period, loads.max(axis=0))
        for core in {int(core) for core in problem.host_core if core >= 0}:
            taken = np.where(problem.host_core == core, problem.host_s, 0.0)
            period = np.maximum(period, rows.by_option(taken).sum(axis=0))
        return period

    def _latency(self, rows: _Rows, busy: Floats) -> Floats:
        problem = self._p
        if problem.latency_model is LatencyModel.LIST:
            return self._listed(rows)
        if problem.latency_model is LatencyModel.SERIAL or not problem.contiguous:
            total: Floats = busy.sum(axis=0)
            for hop in rows.hops if self._link.any() else ():
                total += self._link[hop.tensor][hop.pair] * hop.moves
            return total
        # Delay from a stage to another, -inf where nothing flows; the caller is the last.
        caller = rows.most
        delay = np.full((caller + 1, caller + 1, rows.size), -np.inf)
        for hop in rows.hops:
            source = rows.chunk.stage[hop.source] if hop.source >= 0 else caller
            target = rows.chunk.stage[hop.target] if hop.target >= 0 else caller
            there = (source, target, rows.columns)
            cost = np.where(hop.moves, self._link[hop.tensor][hop.pair], -np.inf)
            delay[there] = np.maximum(delay[there], cost)
        first = np.maximum(delay[caller, :caller], 0.0)
        start = first
        for _ in range(rows.most):
            ready = (start + busy)[:, None] + delay[:caller, :caller]
            later = np.maximum(first, ready.max(axis=0))
            if (later == start).all():
                break
            start = later
        end = start + busy
        last = (end + delay[:caller, caller]).max(axis=0)
        return np.asarray(np.maximum(end.max(axis=0), last))

    def _listed(self, rows: _Rows) -> Floats:
        """One op at a time: clocks of all stages and links, moved on op by op."""
        problem = self._p
        clock = rows.by_option(problem.host_s)
        links = np.zeros((int(self._resource.max()) + 1, rows.size))
        last = np.zeros(rows.size)
        arrived: dict[tuple[int, int], Floats] = {}
        leaving: list[list[_Hop]] = [[] for _ in range(problem.n_ops + 1)]
        entering: list[list[_Hop]] = [[] for _ in range(problem.n_ops)]
        # Of one producer, tensor by tensor and then by reader, the caller last.
        for hop in sorted(rows.hops, key=lambda h: (h.source, h.tensor, h.target % (1 << 30))):
            leaving[hop.source].append(hop)
            if hop.target >= 0:
                entering[hop.target].append(hop)

        def leave(op: int, now: Floats) -> Floats:
            for tensor in dict.fromkeys(hop.tensor for hop in leaving[op]):
                hops = [hop for hop in leaving[op] if hop.tensor == tensor]
                sends = [self._send[tensor][hop.pair] * hop.moves * (op >= 0) for hop in hops]
                if problem.send_once:
                    now = now + np.max(sends, axis=0)
                for hop, send in zip(hops, sends, strict=True):
                    now = now if problem.send_once else now + send
                    cost = self._link[tensor][hop.pair] * hop.moves
                    place = (self._resource[hop.pair], rows.columns)
                    there = np.where(cost > 0, np.maximum(now, links[place]) + cost, now)
                    links[place] = np.where(cost > 0, there, links[place])
                    arrived[tensor, hop.target] = there
                    if hop.target < 0:
                        np.maximum(last, there, out=last)
            return now

        leave(-1, np.zeros(rows.size))
        for op in range(problem.n_ops):
            place = (rows.chunk.stage[op], rows.columns)
            now = clock[place]
            for hop in entering[op]:
                ready = np.maximum(now, arrived[hop.tensor, op])
                ready = ready + self._recv[hop.tensor][hop.pair]
                now = np.where(hop.moves, ready, now)
            now = leave(op, now + problem.time_s[op][rows.option[op]])
            clock[place] = now
        return np.asarray(np.maximum(clock.max(axis=0), last))

    def pools(self, chunk: Chunk) -> Floats:
        """Bytes demanded of each pool, shape (n_pools, n_rows)."""
        problem, rows = self._p, _Rows(self._p, chunk)
        live = np.zeros((rows.most, rows.size))
        for op, value in enumerate(problem.live_bytes):
            place = rows.place[op]
            live.reshape(-1)[place] = np.maximum(live.reshape(-1)[place], value)
        size = live
        for value, readers in zip(problem.constant_bytes, problem.constant_ops, strict=True):
            for i, op in enumerate(readers):
                rows.add(size, op, value * rows.differs(op, readers[:i]))
        for hop in rows.hops if problem.queue_slots else ():
            if hop.target >= 0:
                held = problem.queue_slots * problem.tensor_bytes[hop.tensor]
                rows.add(size, hop.target, held * hop.moves)
        size = size * rows.by_option(problem.replicas)
        pool = np.where(rows.used, problem.pool_of[chunk.option], -1)
        return np.stack(
            [(size * (pool == each)).sum(axis=0) for each in range(len(problem.pool_bytes))]
        )


class _Rows:
    """A chunk made ready: its hops, and where sums by stage are kept."""

    def __init__(self, problem: Problem, chunk: Chunk) -> None:
        self.chunk = chunk
        self.most, self.size = chunk.option.shape
        self.columns = np.arange(self.size)
        self.used: Bools = np.arange(self.most)[:, None] < chunk.count
        # Position of an op's stage in a flattened array of shape (most_stages, n_rows).
        self.place = chunk.stage * self.size + self.columns
        self.option = chunk.option.reshape(-1)[self.place]
        self.hops = [hop for t in range(problem.n_tensors) for hop in self._hops(problem, t)]

    def _hops(self, problem: Problem, tensor: int) -> Iterator[_Hop]:
        ends, caller = problem.n_options + 1, problem.n_options
        source = int(problem.producer[tensor])
        first = ends * (self.option[source] if source >= 0 else np.full(self.size, caller))
        made = () if source < 0 else (source,)
        readers = problem.consumers[tensor]
        for i, target in enumerate(readers):
            moves = self.differs(target, (*made, *readers[:i]))
            yield _Hop(tensor, source, target, moves, first + self.option[target])
        if problem.to_caller[tensor] and made:
            yield _Hop(tensor, source, -1, self.differs(source, ()), first + caller)

    def differs(self, op: int, others: Sequence[int]) -> Bools:
        """Where an op shares its stage with none of the others."""
        apart = np.ones(self.size, dtype=bool)
        for other in others:
            apart &= self.chunk.stage[op] != self.chunk.stage[other]
        return apart

    def add(self, sums: Floats, op: int, values: Floats) -> None:
        """Add to the sum of an op's stage; `sums` is contiguous."""
        sums.reshape(-1)[self.place[op]] += values

    def by_option(self, values: Floats | Ints) -> Floats:
        """Each stage's value by its option; 0 where there is no stage."""
        return np.where(self.used, values[self.chunk.option], 0.0)


def _table(problem: Problem, cost: TransferCost) -> Floats:
    """Seconds by tensor and flattened pair of endpoints."""
    return np.asarray(
        cost.base_s.reshape(1, -1) + problem.amount[:, None] * cost.per_unit_s.reshape(1, -1)
    )
