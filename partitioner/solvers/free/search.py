"""Local search over free assignments: moves and swaps under simulated annealing.

What is minimized is the excess of loads over their limits, the objective's own limit being a target
below the best known value. That leaves more of the landscape to walk on than the objective itself,
a maximum that most moves do not change.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator, Sequence

from partitioner.solvers.free.model import FreeModel

__all__ = ["State", "anneal", "greedy"]

# Least relative improvement.
_STEP = 1e-6
# Ways to walk, in turn: where the target lies between bound and best value, and the temperature to
# begin with as a part of the objective. A target near the best leaves most slots free to change, a
# low one presses on all of them.
_WAYS = ((0.9998, 0.03), (0.0, 0.1), (0.9998, 0.1), (0.5, 0.1))
_COLD = 1e-4
# Share of moves that take several units along, and how many at most.
_SEVERAL = 0.15
_MOST = 30


class State:
    """An assignment with its loads, changed unit by unit.

    Parameters
    ----------
    model : FreeModel
        Loads and terms.
    slot_of : sequence of int
        Slot of each unit.
    target : float
        Limit of the objective's loads.
    """

    def __init__(self, model: FreeModel, slot_of: Sequence[int], target: float) -> None:
        self.model, self.slot_of = model, list(slot_of)
        self.load = [0.0] * len(model.limit)
        self.count = [0] * model.n_slots
        self.keys = [model.key(self.slot_of, edge) for edge in model.edges]
        for unit, slot in enumerate(self.slot_of):
            self.count[slot] += 1
            self._add(model.unit_terms[unit][slot])
        for slot, count in enumerate(self.count):
            if count:
                self._add(model.slot_terms[slot])
        for edge, key in zip(model.edges, self.keys, strict=True):
            self._add(model.terms(edge, key))
        self.live = [self._live(slot) for slot in range(model.n_slots)] if model.live else []
        for slot, size in enumerate(self.live):
            self._add(model.live_terms(slot, size))
        self.aim_at(target)

    def aim_at(self, target: float) -> None:
        """Draw the objective's limit."""
        model = self.model
        self.limit = list(model.limit)
        for load in model.aim:
            self.limit[load] = min(self.limit[load], target)
        # Everything in the unit of the target, so that one excess is worth as much as another.
        self.weight = [target / limit if 0 < limit < math.inf else 1.0 for limit in self.limit]

    def value(self) -> float:
        """Largest load of the objective."""
        return max((self.load[index] for index in self.model.aim), default=0.0)

    def excess(self) -> float:
        """Sum of weighted excesses; 0 when every limit is kept."""
        return sum(
            w * (load - limit)
            for load, limit, w in zip(self.load, self.limit, self.weight, strict=True)
            if load > limit
        )

    def keeps_limits(self) -> bool:
        """Whether the assignment is feasible, whatever the target."""
        return all(load <= limit for load, limit in zip(self.load, self.model.limit, strict=True))

    def change(self, unit: int, slot: int) -> dict[int, float]:
        """What loads change by when a unit moves to a slot."""
        model, old = self.model, self.slot_of[unit]
        delta: dict[int, float] = {}
        get = delta.get
        for load, amount in model.unit_terms[unit][old]:
            delta[load] = get(load, 0.0) - amount
        for load, amount in model.unit_terms[unit][slot]:
            delta[load] = get(load, 0.0) + amount
        if self.count[old] == 1:
            for load, amount in model.slot_terms[old]:
                delta[load] = get(load, 0.0) - amount
        if not self.count[slot]:
            for load, amount in model.slot_terms[slot]:
                delta[load] = get(load, 0.0) + amount
        self.slot_of[unit] = slot
        for number in model.edges_of[unit]:
            edge = model.edges[number]
            key, before = model.key(self.slot_of, edge), self.keys[number]
            if key != before:
                for load, amount in model.terms(edge, before):
                    delta[load] = get(load, 0.0) - amount
                for load, amount in model.terms(edge, key):
                    delta[load] = get(load, 0.0) + amount
        if self.live:
            for each in (old, slot):
                for load, amount in model.live_terms(each, self._live(each) - self.live[each]):
                    delta[load] = get(load, 0.0) + amount
        self.slot_of[unit] = old
        return delta

    def cost(self, delta: dict[int, float]) -> float:
        """Change of the excess."""
        total = 0.0
        for index, amount in delta.items():
            load, limit = self.load[index], self.limit[index]
            before = load - limit
            after = before + amount
            if after > 0:
                total += self.weight[index] * (after - (before if before > 0 else 0.0))
            elif before > 0:
                total -= self.weight[index] * before
        return total

    def move(self, unit: int, slot: int, delta: dict[int, float]) -> None:
        """Move a unit, with the change that `change` gave."""
        model, old = self.model, self.slot_of[unit]
        for index, amount in delta.items():
            self.load[index] += amount
        self.count[old] -= 1
        self.count[slot] += 1
        self.slot_of[unit] = slot
        for number in model.edges_of[unit]:
            self.keys[number] = model.key(self.slot_of, model.edges[number])
        if self.live:
            self.live[old], self.live[slot] = self._live(old), self._live(slot)

    def _add(self, terms: Sequence[tuple[int, float]]) -> None:
        for load, amount in terms:
            self.load[load] += amount

    def _live(self, slot: int) -> float:
        live = self.model.live
        return max((live[u] for u, s in enumerate(self.slot_of) if s == slot), default=0.0)


def greedy(model: FreeModel, order: Sequence[int]) -> list[int] | None:
    """Units in order, each to the slot whose loads grow least; None when one has no slot.

    Edges count once all their ends are placed, which is crude; local search does the rest.
    """
    if any(not slots for slots in model.slots_of):
        return None
    load = [0.0] * len(model.limit)
    slot_of = [-1] * len(model.slots_of)
    for unit in order:

        def height(slot: int, unit: int = unit) -> tuple[bool, float]:
            after = [(index, load[index] + a) for index, a in model.unit_terms[unit][slot]]
            over = any(value > model.limit[index] for index, value in after)
            return over, max((value for index, value in after if index in model.aim), default=0.0)

        best = min(model.slots_of[unit], key=height)
        slot_of[unit] = best
        for index, amount in model.unit_terms[unit][best]:
            load[index] += amount
    return slot_of


def anneal(
    model: FreeModel,
    start: Sequence[int],
    seed: int,
    left_s: Callable[[], float],
    steps: int,
    bound: float = 0.0,
) -> Iterator[tuple[float, list[int]]]:
    """Search from a start; yields (value, slots) whenever it is better than all before.

    Parameters
    ----------
    left_s : callable
        Seconds left; asked now and then.
    steps : int
        Moves tried while the temperature falls once; then it starts anew, another way.
    bound : float
        Proven lower bound of the objective: targets lie between it and the best known value.
    """
    rng = random.Random(seed)
    state = State(model, start, math.inf)
    best = math.inf
    if state.excess() <= 0:
        best = state.value()
        yield best, list(state.slot_of)
    reference = state.value() or 1.0
    movable = [unit for unit, slots in enumerate(model.slots_of) if len(slots) > 1]
    ways = itertools.cycle(_WAYS)
    while movable and left_s() > 0:
        share, warm = next(ways)
        state.aim_at(_target(bound, best if best < math.inf else reference, share))
        for step in range(steps):
            if step % 256 == 0 and left_s() <= 0:
                return
            heat = warm * reference * (_COLD / warm) ** (step / steps)
            changed = _try(state, rng, movable, heat)
            if changed and state.value() < best * (1 - _STEP) and state.keeps_limits():
                best = state.value()
                yield best, list(state.slot_of)
                state.aim_at(_target(bound, best, share))


def _target(bound: float, best: float, share: float) -> float:
    return max(0.0, min(bound, best)) * (1 - share) + best * share


def _try(state: State, rng: random.Random, movable: list[int], heat: float) -> float:
    """One random move, swap or move of several, taken or not by its cost; the excess's change."""
    model = state.model
    unit = movable[int(rng.random() * len(movable))]
    old = state.slot_of[unit]
    slot = _somewhere(state, rng, unit)
    if slot == old:
        return 0.0
    if rng.random() < _SEVERAL:
        return _several(state, rng, unit, slot, heat)
    delta = state.change(unit, slot)
    cost = state.cost(delta)
    if cost <= 0 or rng.random() < math.exp(-cost / heat):
        state.move(unit, slot, delta)
        return cost
    other = movable[int(rng.random() * len(movable))]
    if state.slot_of[other] != slot or old not in model.slots_of[other]:
        return 0.0
    state.move(unit, slot, delta)
    second = state.change(other, old)
    both = cost + state.cost(second)
    if both <= 0 or rng.random() < math.exp(-both / heat):
        state.move(other, old, second)
        return both
    state.move(unit, old, {index: -amount for index, amount in delta.items()})
    return 0.0


def _several(state: State, rng: random.Random, unit: int, slot: int, heat: float) -> float:
    """Move a unit with neighbours of its slot, so that few transfers arise on the way."""
    model, old = state.model, state.slot_of[unit]
    size = 2 + int(_MOST * rng.random() ** 3)
    chosen = [unit]
    seen = {unit}
    for each in chosen:
        if len(chosen) >= size:
            break
        for number in model.edges_of[each]:
            edge = model.edges[number]
            for other in (edge.producer, *edge.readers):
                inside = other >= 0 and other not in seen and state.slot_of[other] == old
                if inside and slot in model.slots_of[other]:
                    seen.add(other)
                    chosen.append(other)
    chosen = chosen[:size]
    cost = 0.0
    done: list[tuple[int, dict[int, float]]] = []
    for each in chosen:
        delta = state.change(each, slot)
        cost += state.cost(delta)
        state.move(each, slot, delta)
        done.append((each, delta))
    if cost <= 0 or rng.random() < math.exp(-cost / heat):
        return cost
    for each, delta in reversed(done):
        state.move(each, old, {index: -amount for index, amount in delta.items()})
    return 0.0


def _somewhere(state: State, rng: random.Random, unit: int) -> int:
    """A slot for a unit: mostly where a neighbour is, for that saves transfers."""
    model = state.model
    edges = model.edges_of[unit]
    if edges and rng.random() < 0.7:
        edge = model.edges[edges[int(rng.random() * len(edges))]]
        ends = edge.readers
        pick = int(rng.random() * (len(ends) + (edge.producer >= 0)))
        other = ends[pick] if pick < len(ends) else edge.producer
        slot = state.slot_of[other]
        if slot in model.slots_of[unit]:
            return slot
    slots = model.slots_of[unit]
    return slots[int(rng.random() * len(slots))]
