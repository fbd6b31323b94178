"""The CP-SAT model of a free problem: a Boolean for each unit and slot.

Integers are loads over a quantum, rounded down, so that the model's bound is a bound of the
problem; what it finds is scored by `evaluation`. Exchangeable slots are told apart by the first of
their units, heaviest first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from ortools.sat.python import cp_model

from partitioner.solvers.cpsat.linear import Linear
from partitioner.solvers.cpsat.search import too_large
from partitioner.solvers.cpsat.sound import run_sound, sound_solver
from partitioner.solvers.cpsat.transfer_rows import tells_pairs_apart
from partitioner.solvers.free.model import Edge, FreeModel, Terms
from partitioner.solvers.limits import Clock, Limits

__all__ = ["FreeRows", "Outcome", "canonical", "prove", "terms"]

# Units whose order tells exchangeable slots apart, for each slot of a class.
_LEADERS = 4
# Loads that the objective does not measure have units of their own: bytes, slots.
_LARGEST = 1 << 40


class Outcome:
    """Result of a CP-SAT search.

    Attributes
    ----------
    bound : float
        Proven lower bound of the objective; inf when nothing at or below the ceiling exists.
    finished : bool
        Whether the search ended by itself.
    """

    def __init__(self, bound: float, *, finished: bool) -> None:
        self.bound, self.finished = bound, finished


def terms(model: FreeModel) -> int:
    """About how many terms the rows have: what it takes to build them."""
    problem, slots = model.problem, model.n_slots
    apart = tells_pairs_apart(problem)
    sums = len(model.slots_of) + sum(len(edge.readers) + 2 for edge in model.edges)
    hops = sum(
        edge.producer >= 0 and (apart or (len(edge.readers) > 1 and not problem.send_once))
        for edge in model.edges
    )
    return slots * sums + slots * slots * hops


class FreeRows:
    """Variables and rows.

    Parameters
    ----------
    model : FreeModel
        Slots, loads and terms.
    quantum : float
        Objective's unit of one integer step.
    cap : int
        Steps above which nothing is of interest.
    ordered : bool
        Whether exchangeable slots are told apart.
    """

    def __init__(self, model: FreeModel, quantum: float, cap: int, *, ordered: bool = True) -> None:
        self.model, self.cap = model, cap
        self.cp: Any = cp_model.CpModel()
        self._fractions = _fractions(model)
        self.scale = [self._scale(load, quantum) for load in range(len(model.limit))]
        self.sums = [Linear() for _ in model.limit]
        self._add_slots()
        if ordered:
            self._break_symmetry()
        for edge in model.edges:
            if edge.flow is None:
                self._add_constant(edge)
            else:
                self._add_flow(edge)
        if model.live:
            self._add_live()
        self._add_limits()

    def _scale(self, load: int, quantum: float) -> float:
        """Steps of one unit of a load."""
        model, limit = self.model, self.model.limit[load]
        if load in model.aim:
            return 1.0 / quantum
        if not np.isfinite(limit) or limit <= 0:
            return 1.0
        if load in model.timed:
            # The objective may be far larger, or no time at all.
            return self.cap / limit
        # Counts, and bytes that are whole numbers, are best left as they are.
        return _LARGEST / limit if load in self._fractions else min(1.0, _LARGEST / limit)

    def charge(self, terms: Terms, when: Any) -> None:
        """Add terms, rounded down, where a 0/1 item is 1."""
        for load, amount in terms:
            steps = int(min(amount * self.scale[load], 4.0 * max(self.cap, _LARGEST)))
            if steps:
                self.sums[load].add(steps, when)

    def _add_slots(self) -> None:
        cp, model = self.cp, self.model
        n, slots = len(model.slots_of), range(model.n_slots)
        self.at: list[list[Any]] = [[0] * model.n_slots for _ in range(n)]
        for unit in range(n):
            for slot in model.slots_of[unit]:
                self.at[unit][slot] = cp.new_bool_var(f"at_{unit}_{slot}")
                self.charge(model.unit_terms[unit][slot], self.at[unit][slot])
            cp.add_exactly_one(self.at[unit][slot] for slot in model.slots_of[unit])
        self.used: list[Any] = [1] * model.n_slots
        for slot in slots:
            if not model.slot_terms[slot]:
                continue
            self.used[slot] = cp.new_bool_var(f"used_{slot}")
            members = [self.at[unit][slot] for unit in range(n) if slot in model.slots_of[unit]]
            for member in members:
                cp.add_implication(member, self.used[slot])
            cp.add_bool_or([*members, self.used[slot].negated()])
            self.charge(model.slot_terms[slot], self.used[slot])

    def _break_symmetry(self) -> None:
        """A unit is in a class's next slot only if an earlier unit is in the one before."""
        cp = self.cp
        for group in self.model.classes:
            leaders = leading(self.model, group)[: _LEADERS * len(group)]
            for before, slot in pairwise(group):
                opened: list[Any] = []
                for unit in leaders:
                    here = self.at[unit][slot]
                    cp.add_bool_or([here.negated(), *opened])
                    opened.append(self.at[unit][before])

    # Edges --------------------------------------------------------------------------------

    def _differs(self, edge: Edge, slot: int) -> Any:
        """Whether an edge enters a slot: a reader there, and the producer not."""
        readers = [self.at[r][slot] for r in edge.readers if slot in self.model.slots_of[r]]
        made = self.at[edge.producer][slot] if edge.producer >= 0 else 0
        if not readers:
            return 0
        enters = self.cp.new_bool_var("enters")
        for reader in readers:
            self.cp.add_bool_or([reader.negated(), enters, *_literals(made)])
        return enters

    def _leaves(self, edge: Edge, slot: int) -> Any:
        """Whether the producer is in a slot and a reader is not."""
        made = self.at[edge.producer][slot]
        leaves = self.cp.new_bool_var("leaves")
        for reader in edge.readers:
            self.cp.add_bool_or([made.negated(), leaves, *_literals(self.at[reader][slot])])
        return leaves

    def _both(self, a: Any, b: Any) -> Any:
        both = self.cp.new_bool_var("both")
        self.cp.add_bool_or([a.negated(), b.negated(), both])
        return both

    def _add_constant(self, edge: Edge) -> None:
        for slot in range(self.model.n_slots):
            self.charge(self.model.terms(edge, (-1, 1 << slot)), self._differs(edge, slot))

    def _add_flow(self, edge: Edge) -> None:
        model, flow = self.model, edge.flow
        assert flow is not None
        enters = {slot: self._differs(edge, slot) for slot in range(model.n_slots)}
        enters = {slot: literal for slot, literal in enters.items() if not isinstance(literal, int)}
        if edge.producer < 0:
            sends = [(model.sent_s(flow, -1, slot), enters[slot]) for slot in enters]
            self._send(-1, sends, 0.0)
            for slot, literal in enters.items():
                self.charge(model.hop(flow, -1, slot), literal)
            return
        sources = model.slots_of[edge.producer]
        common = {slot: self._common(edge, slot) for slot in enters}
        for slot, literal in enters.items():
            self.charge(tuple(common[slot].items()), literal)
        for source in sources:
            made = self.at[edge.producer][source]
            pairs: dict[int, Any] = {}

            def pair(target: int, made: Any = made, pairs: dict[int, Any] = pairs) -> Any:
                if target not in pairs:
                    pairs[target] = self._both(made, enters[target])
                return pairs[target]

            if flow.to_caller:
                self.charge(model.hop(flow, source, -1), made)
            targets = [slot for slot in enters if slot != source]
            for target in targets:
                rest = _less(model.hop(flow, source, target), common[target])
                if rest:
                    self.charge(rest, pair(target))
            paid = model.sent_s(flow, source, -1) if flow.to_caller else 0.0
            if paid:
                self.charge(model.sending(source, paid), made)
            costs = {target: model.sent_s(flow, source, target) for target in targets}
            single = model.problem.send_once or len(edge.readers) == 1
            if single and len(set(costs.values())) == 1:
                cost = next(iter(costs.values())) - (paid if model.problem.send_once else 0.0)
                if cost > 0:
                    self.charge(model.sending(source, cost), self._leaves(edge, source))
                continue
            sends = [(cost, pair(target)) for target, cost in costs.items() if cost]
            self._send(source, sends, paid)

    def _common(self, edge: Edge, target: int) -> dict[int, float]:
        """Terms that a hop into a slot adds wherever it comes from."""
        flow = edge.flow
        assert flow is not None
        sources = [s for s in self.model.slots_of[edge.producer] if s != target]
        found = [_summed(self.model.hop(flow, source, target)) for source in sources]
        shared = set.intersection(*(set(each) for each in found)) if found else set()
        return {load: min(each[load] for each in found) for load in sorted(shared)}

    def _send(self, source: int, sends: Sequence[tuple[float, Any]], paid: float) -> None:
        """Sends of one tensor from one slot, the dearest or all of them."""
        model = self.model
        if not model.problem.send_once or len(sends) == 1:
            for cost, literal in sends:
                more = cost - paid if model.problem.send_once else cost
                if more > 0:
                    self.charge(model.sending(source, more), literal)
            return
        # From cheap to dear: each level adds what it costs more than the one below.
        level = paid
        for cost in sorted({cost for cost, _ in sends if cost > paid}):
            reached = self.cp.new_bool_var("dearest")
            for each, literal in sends:
                if each >= cost:
                    self.cp.add_implication(literal, reached)
            self.charge(model.sending(source, cost - level), reached)
            level = cost

    def _add_live(self) -> None:
        """Each slot's largest working set, level by level."""
        model = self.model
        for slot in range(model.n_slots):
            members = [u for u in range(len(model.slots_of)) if slot in model.slots_of[u]]
            level = 0.0
            for size in sorted({model.live[u] for u in members if model.live[u] > 0}):
                reached = self.cp.new_bool_var("live")
                for unit in members:
                    if model.live[unit] >= size:
                        self.cp.add_implication(self.at[unit][slot], reached)
                self.charge(model.live_terms(slot, size - level), reached)
                level = size

    # Limits -------------------------------------------------------------------------------

    def _add_limits(self) -> None:
        cp, model = self.cp, self.model
        self.goal = cp.new_int_var(0, self.cap, "goal")
        self.height: dict[int, Any] = {}
        for load, total in enumerate(self.sums):
            if not total:
                continue
            if load in model.aim:
                self.height[load] = cp.new_int_var(0, self.cap, f"height_{load}")
                cp.add(total.expression() <= self.height[load])
                cp.add(self.height[load] <= self.goal)
            limit = model.limit[load] * self.scale[load]
            if np.isfinite(limit) and limit < (1 << 60):
                cp.add(total.expression() <= int(np.floor(limit)))
        cp.minimize(self.goal)

    def narrowed(self, slot_of: Sequence[int], slots: Sequence[int]) -> Any:
        """A copy of the model in which only units in some slots can change, and only among these.

        It minimizes the largest of what these slots set, others staying below the ceiling.
        """
        part = self.cp.clone()
        part.clear_hints()

        def same(var: Any) -> Any:
            return part.get_bool_var_from_proto_index(var.index)

        for unit, allowed in enumerate(self.model.slots_of):
            for slot in allowed:
                here = slot_of[unit] == slot
                if slot_of[unit] not in slots:
                    part.add(same(self.at[unit][slot]) == int(here))
                elif slot not in slots:
                    part.add(same(self.at[unit][slot]) == 0)
                else:
                    part.add_hint(same(self.at[unit][slot]), int(here))
        own = {load for slot in slots for load in self.model.slot_loads(slot)}
        goal = part.new_int_var(0, self.cap, "own goal")
        for load, height in self.height.items():
            if load in own or len(self.height) == 1:
                part.add(part.get_int_var_from_proto_index(height.index) <= goal)
        part.minimize(goal)
        return part

    def hint(self, slot_of: Sequence[int]) -> None:
        """Offer a known assignment as a start."""
        for unit, slots in enumerate(self.model.slots_of):
            for slot in slots:
                self.cp.add_hint(self.at[unit][slot], int(slot_of[unit] == slot))

    def forbid(self, slot_of: Sequence[int]) -> None:
        """Take an assignment out of the model."""
        self.cp.add_bool_or(self.at[unit][slot].negated() for unit, slot in enumerate(slot_of))

    def read(self, value: Callable[[Any], int]) -> list[int]:
        """Slots of a CP-SAT solution."""
        return [
            next(slot for slot in slots if value(self.at[unit][slot]))
            for unit, slots in enumerate(self.model.slots_of)
        ]


def leading(model: FreeModel, group: Sequence[int]) -> list[int]:
    """Units that can be in a class of slots, those that take most of it first."""
    slot = group[0]
    members = [unit for unit, slots in enumerate(model.slots_of) if slot in slots]
    return sorted(members, key=lambda u: -sum(a for _, a in model.unit_terms[u][slot][:1]))


def canonical(model: FreeModel, slot_of: Sequence[int]) -> list[int]:
    """The same assignment with exchangeable slots in the order of their leading units."""
    new = list(range(model.n_slots))
    for group in model.classes:
        first: dict[int, int] = {}
        for rank, unit in enumerate(leading(model, group)):
            first.setdefault(slot_of[unit], rank)
        ranked = sorted(group, key=lambda slot: (first.get(slot, len(slot_of)), slot))
        for old, slot in zip(ranked, group, strict=True):
            new[old] = slot
    return [new[slot] for slot in slot_of]


def prove(
    model: FreeModel,
    *,
    ceiling: float,
    floor: float,
    start: Sequence[int] | None,
    without: Sequence[Sequence[int]],
    bits: int,
    time_s: float,
    limits: Limits,
    found: Callable[[list[int], float], None],
    rows_of: type[FreeRows] = FreeRows,
) -> Outcome:
    """Run CP-SAT until proof or the end of time; not at all where its model would be too large.

    Parameters
    ----------
    ceiling : float
        No assignment above it is of interest.
    floor : float
        A bound already proven.
    start : sequence of int or None
        Slots of a known assignment.
    without : sequence of sequences of int
        Slots of assignments that are left out.
    bits : int
        Bits that the ceiling takes as an integer.
    limits : Limits
        Whose workers, seed and interruption hold; time is `time_s`.
    found : callable
        Told every assignment found and the bound at that time.
    rows_of : type
        What makes the rows.
    """
    if too_large(terms(model), time_s):
        return Outcome(floor, finished=False)
    clock = Clock(time_s)
    cap = 1 << bits
    quantum = ceiling / cap * (1 + 1e-9) if ceiling > 0 else 1.0
    rows = rows_of(model, quantum, cap)
    if floor > 0:
        rows.cp.add(rows.goal >= min(cap, int(floor / quantum * (1 - 1e-12))))
    for slots in without:
        rows.forbid(slots)
    if start is not None:
        rows.hint(canonical(model, start))
    solver = sound_solver(limits, max(0.05, clock.left_s))
    solver.parameters.symmetry_level = 1
    status = run_sound(solver, rows.cp, limits, _Watch(rows, quantum, found))
    if status == cp_model.INFEASIBLE:
        return Outcome(float("inf"), finished=True)
    if status == cp_model.UNKNOWN:
        return Outcome(floor, finished=False)
    bound = max(floor, np.floor(solver.best_objective_bound) * quantum * (1 - 1e-12))
    return Outcome(float(bound), finished=status == cp_model.OPTIMAL)


class _Watch(cp_model.CpSolverSolutionCallback):  # type: ignore[misc]  # ortools is untyped
    """Hands on every assignment that CP-SAT finds."""

    def __init__(
        self, rows: FreeRows, quantum: float, found: Callable[[list[int], float], None]
    ) -> None:
        super().__init__()
        self._rows, self._quantum, self._found = rows, quantum, found

    def on_solution_callback(self) -> None:
        slots = self._rows.read(lambda var: var if isinstance(var, int) else self.value(var))
        self._found(slots, self.best_objective_bound * self._quantum)


def _fractions(model: FreeModel) -> set[int]:
    """Loads of the memory pools where sizes are no whole numbers."""
    problem = model.problem
    sizes = np.concatenate([problem.constant_bytes, problem.live_bytes, problem.tensor_bytes])
    if (sizes == np.floor(sizes)).all():
        return set()
    return {model.pool_load(slot) for slot in range(model.n_slots)} - {-1}


def _literals(item: Any) -> Iterator[Any]:
    if not isinstance(item, int):
        yield item


def _summed(terms: Terms) -> dict[int, float]:
    sums: dict[int, float] = {}
    for load, amount in terms:
        sums[load] = sums.get(load, 0.0) + amount
    return sums


def _less(terms: Terms, taken: dict[int, float]) -> Terms:
    """Terms that are left when some are counted already."""
    rest = {load: amount - taken.get(load, 0.0) for load, amount in _summed(terms).items()}
    return tuple((load, amount) for load, amount in rest.items() if amount > 0)
