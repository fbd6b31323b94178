"""A free (non-contiguous) problem as loads: what each choice adds to which limited thing.

A *slot* is a stage that may be used: an option, as often as its resources allow. A *load* is
anything that adds up and has a limit: the period of a slot, a link or bus, the caller, a host core,
a memory pool, a resource, the number of stages, the serial latency, the copies. Then every choice
is a list of (load, amount): of a unit in a slot, of a slot that is used at all, of a tensor with
its readers spread over slots. What is minimized is a limit like any other, drawn tighter.

Only the largest working set of a stage does not add up; it is kept apart (`live`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from partitioner.errors import ProblemError
from partitioner.problem import Objective, Problem
from partitioner.solvers.reduce import (
    Assignment,
    Flow,
    Units,
    most_stages,
    stages_of,
    symmetry,
    tight_pools,
    times_used,
)

__all__ = ["Edge", "FreeModel", "Terms", "free_model"]

Terms = tuple[tuple[int, float], ...]

# `evaluation` grants this much to limits.
_ROUNDING = 1e-9
_AIMS = {Objective.PERIOD: ("slot", "link", "host", "caller"), Objective.LATENCY: ("latency",)}


@dataclass(slots=True)
class Edge:
    """A tensor with its ends, or a constant with its readers.

    Attributes
    ----------
    producer : int
        Unit that makes it; -1 for the caller's and for constants.
    readers : tuple of int
        Other units that read it.
    flow : Flow or None
        None for a constant.
    constant_bytes : float
        Size of the constant.
    """

    producer: int
    readers: tuple[int, ...]
    flow: Flow | None
    constant_bytes: float = 0.0
    memo: dict[tuple[int, int], Terms] = field(default_factory=dict)


class FreeModel:
    """Slots, loads and terms of a free problem.

    Parameters
    ----------
    problem, units
        The problem and its units (colocated ops merged).

    Attributes
    ----------
    option_of : tuple of int, length n_slots
        Option of each slot.
    classes : tuple of tuple of int
        Slots that can be exchanged without changing anything.
    slots_of : tuple of tuple of int, length n_units
        Slots that each unit can be in.
    edges : tuple of Edge
        What costs something when its ends are apart.
    limit : list of float, length n_loads
        Limit of each load; inf where only the objective limits it.
    aim : tuple of int
        Loads whose largest is the objective.
    timed : tuple of int
        Loads that are seconds.
    live : list of float, length n_units
        Working set of each unit in bytes, empty when memory does not matter.
    """

    def __init__(self, problem: Problem, units: Units) -> None:
        self.problem, self.units = problem, units
        self.option_of, self.classes = _slots(problem, len(units))
        n, n_slots = len(units), len(self.option_of)
        self.slots_of = tuple(
            tuple(s for s in range(n_slots) if units.runs[u, self.option_of[s]]) for u in range(n)
        )
        self.limit: list[float] = []
        self._index: dict[object, int] = {}
        self._memory = tight_pools(problem)
        stored = bool(self._memory) or problem.objective is Objective.MEMORY
        self.live = units.live_bytes.tolist() if stored and units.live_bytes.any() else []
        self._counts_copies = Objective.COPIES is problem.objective
        self._periodic = problem.objective is Objective.PERIOD or np.isfinite(problem.period_cap_s)
        self._serial = problem.objective is Objective.LATENCY or np.isfinite(problem.latency_cap_s)
        self._add_loads()
        times = units.time_s.tolist()
        self.unit_terms: list[list[Terms]] = [
            [self._unit(u, s, times[u][o]) for s, o in enumerate(self.option_of)] for u in range(n)
        ]
        self.slot_terms: list[Terms] = [self._slot(s) for s in range(n_slots)]
        self.edges = tuple(self._edges())
        self.edges_of: list[list[int]] = [[] for _ in range(n)]
        for number, edge in enumerate(self.edges):
            for unit in {edge.producer, *edge.readers} - {-1}:
                self.edges_of[unit].append(number)
        self.aim = self.loads_of(*_AIMS.get(problem.objective, (problem.objective.value,)))
        self.timed = self.loads_of(*_AIMS[Objective.PERIOD], "latency")

    @property
    def n_slots(self) -> int:
        """Number of slots."""
        return len(self.option_of)

    def key(self, slot_of: Sequence[int], edge: Edge) -> tuple[int, int]:
        """Producer's slot (-1: none) and the readers' slots as bits."""
        bits = 0
        for reader in edge.readers:
            bits |= 1 << slot_of[reader]
        return (slot_of[edge.producer] if edge.producer >= 0 else -1), bits

    def terms(self, edge: Edge, key: tuple[int, int]) -> Terms:
        """What an edge adds, its ends being where `key` says."""
        found = edge.memo.get(key)
        if found is None:
            source, bits = key
            targets = [s for s in range(bits.bit_length()) if bits >> s & 1 and s != source]
            sums: dict[int, float] = {}
            pairs = (
                self._held(edge.constant_bytes, targets)
                if edge.flow is None
                else self._moved(edge.flow, source, targets)
            )
            for load, amount in pairs:
                if load >= 0 and amount:
                    sums[load] = sums.get(load, 0.0) + amount
            found = edge.memo[key] = tuple(sums.items())
        return found

    def assignment(self, slot_of: Sequence[int]) -> Assignment:
        """Stages and placements of a choice of slots."""
        used = sorted(set(slot_of))
        number = {slot: stage for stage, slot in enumerate(used)}
        stages = stages_of(self.units, [number[slot] for slot in slot_of])
        return stages, tuple((self.option_of[slot],) for slot in used)

    def slots(self, assignment: Assignment) -> list[int] | None:
        """Slots of an assignment; None if it has unequal replicas or more stages than slots."""
        stage_of, placements = assignment
        free = {
            o: [s for s, each in enumerate(self.option_of) if each == o]
            for o in set(self.option_of)
        }
        slot_of_stage = []
        for options in placements:
            if len(options) != 1 or not free.get(options[0]):
                return None
            slot_of_stage.append(free[options[0]].pop(0))
        return [slot_of_stage[stage_of[ops[0]]] for ops in self.units.members]

    def live_terms(self, slot: int, size: float) -> Terms:
        """What a working set of that many bytes adds."""
        return tuple((load, demand) for load, demand in self._bytes(slot, size) if load >= 0)

    def slot_loads(self, slot: int) -> tuple[int, ...]:
        """Loads of the objective that a slot alone sets."""
        return tuple(load for load in self.aim if load == self._at(("slot", slot)))

    def pool_load(self, slot: int) -> int:
        """Load of the slot's memory pool, -1 when it cannot overflow."""
        return self._index.get(("pool", int(self.problem.pool_of[self.option_of[slot]])), -1)

    # Loads --------------------------------------------------------------------------------

    def _load(self, name: object, limit: float) -> None:
        self._index[name] = len(self.limit)
        self.limit.append(limit)

    def _add_loads(self) -> None:
        problem = self.problem
        uses = problem.uses[list(self.option_of)]
        if self._periodic:
            cap = problem.period_cap_s * (1 + _ROUNDING)
            names: list[object] = [("slot", s) for s in range(self.n_slots)]
            names.append("caller")
            names += [("host", int(core)) for core in np.unique(problem.host_core) if core >= 0]
            names += _links(problem)
            for name in names:
                self._load(name, cap)
        if self._serial:
            self._load("latency", problem.latency_cap_s * (1 + _ROUNDING))
        for pool in self._memory:
            self._load(("pool", pool), float(problem.pool_bytes[pool]) * (1 + _ROUNDING))
        for resource in np.flatnonzero(uses.sum(axis=0) > problem.capacity):
            self._load(("resource", int(resource)), float(problem.capacity[resource]))
        if self.n_slots > problem.max_stages:
            self._load("stages", float(problem.max_stages))
        if problem.objective in (Objective.COPIES, Objective.MEMORY, Objective.DEVICES):
            self._load(problem.objective.value, float("inf"))

    def loads_of(self, *kinds: str) -> tuple[int, ...]:
        """Loads of some kinds, by the first part of their names."""
        return tuple(
            index
            for name, index in self._index.items()
            if (name[0] if isinstance(name, tuple) else name) in kinds
        )

    def _at(self, name: object) -> int:
        return self._index.get(name, -1)

    def _busy(self, slot: int, seconds: float) -> Iterator[tuple[int, float]]:
        """Seconds of an item's time charged to a stage."""
        yield self._at(("slot", slot)), seconds / int(self.problem.replicas[self.option_of[slot]])
        yield self._at("latency"), seconds

    def _bytes(self, slot: int, size: float) -> Iterator[tuple[int, float]]:
        """Bytes of a stage, in each of its replicas."""
        demand = size * int(self.problem.replicas[self.option_of[slot]])
        yield self.pool_load(slot), demand
        yield self._at("memory"), demand

    # Terms --------------------------------------------------------------------------------

    def _unit(self, unit: int, slot: int, seconds: float) -> Terms:
        if not np.isfinite(seconds):
            return ()
        own = float(self.units.constant_bytes[unit])
        pairs = (*self._busy(slot, seconds), *self._bytes(slot, own))
        return tuple((load, amount) for load, amount in pairs if load >= 0 and amount)

    def _slot(self, slot: int) -> Terms:
        problem, option = self.problem, self.option_of[slot]
        host = float(problem.host_s[option])
        pairs = list(self._busy(slot, host))
        pairs.append((self._at(("host", int(problem.host_core[option]))), host))
        pairs.append((self._at("stages"), 1.0))
        pairs.append((self._at("devices"), float(problem.replicas[option])))
        pairs += [(self._at(("resource", r)), float(u)) for r, u in enumerate(problem.uses[option])]
        return tuple((load, amount) for load, amount in pairs if load >= 0 and amount)

    def _edges(self) -> Iterator[Edge]:
        problem = self.problem
        tables = (problem.send, problem.recv, problem.link)
        base = any(cost.base_s.any() for cost in tables)
        rate = any(cost.per_unit_s.any() for cost in tables)
        timed = self._periodic or self._serial
        stored = bool(self._memory) or problem.objective is Objective.MEMORY
        for flow in self.units.flows:
            costs = timed and (base or (rate and problem.amount[flow.tensor] > 0))
            held = stored and problem.queue_slots * problem.tensor_bytes[flow.tensor] > 0
            if costs or held or (self._counts_copies and flow.producer >= 0 and flow.readers):
                yield Edge(flow.producer, flow.readers, flow)
        for size, readers in self.units.shared if stored else ():
            yield Edge(-1, readers, None, size)

    def _held(self, size: float, targets: Sequence[int]) -> Iterator[tuple[int, float]]:
        for slot in targets:
            yield from self._bytes(slot, size)

    def _moved(
        self, flow: Flow, source: int, targets: Sequence[int]
    ) -> Iterator[tuple[int, float]]:
        """What `evaluation` charges for a tensor from a slot (-1: the caller) to others."""
        ends = [*targets, -1] if flow.to_caller and source >= 0 else targets
        sends = [self.sent_s(flow, source, end) for end in ends]
        yield from self.sending(
            source, max(sends, default=0.0) if self.problem.send_once else sum(sends)
        )
        for end in ends:
            yield from self.hop(flow, source, end)

    def sent_s(self, flow: Flow, source: int, target: int) -> float:
        """Seconds that the sender pays for a hop between slots (-1: the caller)."""
        a, b = self._end(source), self._end(target)
        return self.problem.send.seconds(a, b, float(self.problem.amount[flow.tensor]))

    def sending(self, source: int, seconds: float) -> Terms:
        """What a slot's (-1: the caller's) sends add."""
        pairs = self._busy(source, seconds) if source >= 0 else [(self._at("caller"), seconds)]
        return tuple((load, amount) for load, amount in pairs if load >= 0 and amount)

    def hop(self, flow: Flow, source: int, target: int) -> Terms:
        """What a hop adds besides its send; what hops of a tensor add is the sum of these."""
        problem = self.problem
        a, b = self._end(source), self._end(target)
        amount = float(problem.amount[flow.tensor])
        received, linked = problem.recv.seconds(a, b, amount), problem.link.seconds(a, b, amount)
        pairs = [(self._at(_link(problem, a, b)), linked), (self._at("latency"), linked)]
        if target >= 0:
            pairs += self._busy(target, received)
            entering = problem.queue_slots * float(problem.tensor_bytes[flow.tensor])
            pairs += self._bytes(target, entering)
        else:
            pairs.append((self._at("caller"), received))
        if source >= 0 and target >= 0:
            pairs.append((self._at("copies"), 1.0))
        return tuple((load, amount) for load, amount in pairs if load >= 0 and amount)

    def _end(self, slot: int) -> int:
        return self.option_of[slot] if slot >= 0 else self.problem.n_options


def free_model(problem: Problem, units: Units) -> FreeModel:
    """Model of a free problem.

    Raises
    ------
    ProblemError
        If the problem's stages are contiguous.
    """
    if problem.contiguous:
        raise ProblemError("stages of this problem are contiguous; free methods ignore their order")
    return FreeModel(problem, units)


def _slots(problem: Problem, n_units: int) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
    """Options as often as they can be used, and the classes of exchangeable slots."""
    most = min(most_stages(problem), n_units)
    if problem.objective is not Objective.PERIOD and not np.isfinite(problem.period_cap_s):
        # Only the period gains by a second stage on the same option: merging two of them saves
        # transfers, host time and memory.
        most = min(most, 1)
    option_of: list[int] = []
    of_option: list[list[int]] = []
    for option, times in enumerate(times_used(problem, most).tolist()):
        of_option.append(list(range(len(option_of), len(option_of) + times)))
        option_of += [option] * times
    classes: list[tuple[int, ...]] = []
    for members in symmetry(problem).classes:
        own = [of_option[option] for option in members]
        if all(len(slots) == 1 for slots in own):
            classes.append(tuple(slots[0] for slots in own))
        else:
            classes += [tuple(slots) for slots in own if slots]
    return tuple(option_of), tuple(classes)


def _link(problem: Problem, a: int, b: int) -> object:
    bus = int(problem.bus_of[a, b])
    return ("link", bus) if bus >= 0 else ("link", a, b)


def _links(problem: Problem) -> list[object]:
    costs = (problem.link.base_s > 0) | (problem.link.per_unit_s > 0)
    return list(dict.fromkeys(_link(problem, int(a), int(b)) for a, b in np.argwhere(costs)))
