"""Large neighbourhood search: the units of a few slots divided anew, the best way there is.

Each round frees the slot with the largest load and a few others, and lets CP-SAT divide their units
among them. It lowers the largest load of these slots, whatever the others do, so that slots level
out even while another one still sets the objective.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence

from ortools.sat.python import cp_model

from partitioner.solvers.cpsat.search import too_large
from partitioner.solvers.cpsat.sound import run_sound, sound_solver
from partitioner.solvers.free.cpsat import FreeRows, terms
from partitioner.solvers.free.model import FreeModel
from partitioner.solvers.free.search import State
from partitioner.solvers.limits import Limits

__all__ = ["repartition"]

_BITS = 28
# Seconds of a round; a round that ends without proof makes the next one freer, never longer.
_ROUND_S = 4.0


def repartition(
    model: FreeModel,
    start: Sequence[int],
    limits: Limits,
    left_s: Callable[[], float],
) -> Iterator[tuple[float, list[int]]]:
    """Improve an assignment that keeps all limits until time is up.

    Parameters
    ----------
    start : sequence of int
        Slot of each unit.
    limits : Limits
        Whose workers, seed and interruption hold; time is what `left_s` says.
    left_s : callable
        Seconds left.

    Yields
    ------
    float, list of int
        The objective's largest load and the slots, whenever it is lower than all before.
    """
    rng = random.Random(limits.seed)
    state = State(model, start, float("inf"))
    best = state.value()
    if best <= 0 or too_large(terms(model), left_s()):
        return
    rows = FreeRows(model, best / (1 << _BITS) * (1 + 1e-9), 1 << _BITS, ordered=False)
    tried: set[tuple[int, ...]] = set()
    size = 2
    while left_s() > 0:
        chosen = _choose(state, rng, size, tried)
        if chosen is None:
            size += 1
            if size > model.n_slots:
                return
            continue
        slots, ended = _divide(rows, state, chosen, min(_ROUND_S, left_s()), limits)
        moved = None if slots is None else State(model, slots, float("inf"))
        if moved is not None and moved.excess() <= 0 and _below(moved, state):
            state = moved
            tried.clear()
            if state.value() < best:
                best = state.value()
                yield best, list(state.slot_of)
            size = 2
        if ended or moved is None or rng.random() < 0.5:
            tried.add(chosen)


def _below(moved: State, state: State) -> bool:
    """Whether the objective's loads, from the largest down, are lower by a millionth of it."""
    least = max(state.value(), 1e-300) * 1e-6
    before, after = (
        sorted((round(each.load[i] / least) for i in state.model.aim), reverse=True)
        for each in (state, moved)
    )
    return after < before


def _choose(
    state: State, rng: random.Random, size: int, tried: set[tuple[int, ...]]
) -> tuple[int, ...] | None:
    """The slot with the largest load and others, by chance; None when all are tried."""
    slots = list(range(state.model.n_slots))
    height = {s: sum(state.load[i] for i in state.model.slot_loads(s)) for s in slots}
    slots.sort(key=lambda s: -height[s])
    for first in slots[:2]:
        others = [slot for slot in slots if slot != first]
        for _ in range(3 * len(others)):
            chosen = tuple(sorted([first, *rng.sample(others, min(size - 1, len(others)))]))
            if chosen not in tried:
                return chosen
    return None


def _divide(
    rows: FreeRows,
    state: State,
    chosen: tuple[int, ...],
    time_s: float,
    limits: Limits,
) -> tuple[list[int] | None, bool]:
    """The best division that CP-SAT finds, and whether it is proven the best."""
    part = rows.narrowed(state.slot_of, chosen)
    solver = sound_solver(limits, max(0.05, time_s))
    status = run_sound(solver, part, limits)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return None, status == cp_model.INFEASIBLE
    return rows.read(lambda var: var if isinstance(var, int) else solver.value(var)), (
        status == cp_model.OPTIMAL
    )
