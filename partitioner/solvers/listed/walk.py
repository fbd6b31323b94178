"""Local search for the latency ``list``: simulated annealing over units and small parts of them.

Source: S. Kirkpatrick, C. D. Gelatt, M. P. Vecchi, "Optimization by simulated annealing" (Science,
1983). A move takes a unit, or it and some that it is connected with in its slot, to another slot:
of two ops with a dear tensor between them neither goes alone.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from partitioner.evaluation import evaluate
from partitioner.list_schedule import ListSchedule
from partitioner.problem import Problem
from partitioner.solvers.free.model import FreeModel
from partitioner.solvers.reduce import tight_pools

__all__ = ["scorer", "walked"]

# Temperatures, in parts of the latency, of the first and the last step.
_HOT, _COLD = 0.02, 0.0002
_LARGEST_PART = 8
_ALONE = 0.4
# A walk that has found nothing better in so many steps a unit is at an end.
_PATIENCE = 400


def scorer(problem: Problem, model: FreeModel) -> Callable[[Sequence[int]], float]:
    """The latency of slots of all units; dearer the more limits it breaks and the further."""
    schedule = ListSchedule(problem)
    placements = tuple((option,) for option in model.option_of)
    counts = problem.replicas[list(model.option_of)]
    members = model.units.members
    used = problem.uses[list(model.option_of)].sum(axis=0)
    unlimited = (
        not tight_pools(problem)
        and not np.isfinite(problem.period_cap_s)
        and bool((used <= problem.capacity).all())
        and len(placements) <= problem.max_stages
        and bool((counts == 1).all())
    )

    def quick(slot_of: Sequence[int]) -> float:
        used = sorted(set(slot_of))
        number = {slot: stage for stage, slot in enumerate(used)}
        stage_of = [0] * problem.n_ops
        for ops, slot in zip(members, slot_of, strict=True):
            for op in ops:
                stage_of[op] = number[slot]
        return schedule.latency(stage_of, [placements[slot] for slot in used])

    def careful(slot_of: Sequence[int]) -> float:
        found = evaluate(problem, *model.assignment(slot_of))
        over = sum(
            max(0.0, demand / budget - 1.0) if budget > 0 else float(demand > 0)
            for demand, budget in zip(found.pool_bytes, problem.pool_bytes.tolist(), strict=True)
        )
        broken = [text for text in found.violations if not text.startswith("the latency")]
        return found.latency_s * (1.0 + len(broken) + over)

    return quick if unlimited else careful


def walked(
    model: FreeModel,
    score: Callable[[Sequence[int]], float],
    start: Sequence[int],
    seed: int,
    left_s: Callable[[], float],
    steps: int,
) -> Iterator[list[int]]:
    """Slots of the units, each better than the ones before.

    Parameters
    ----------
    score : callable
        What is minimized.
    left_s : callable
        Seconds left; it ends at none.
    steps : int
        Moves that it tries.
    """
    chance = random.Random(seed)
    near = _neighbours(model)
    movable = [unit for unit, slots in enumerate(model.slots_of) if len(slots) > 1]
    if not movable:
        return
    here = list(start)
    value = best = score(here)
    last = 0
    for step in range(steps):
        if step % 64 == 0 and left_s() <= 0:
            return
        if step - last > _PATIENCE * len(movable):
            return
        unit = chance.choice(movable)
        target = chance.choice([slot for slot in model.slots_of[unit] if slot != here[unit]])
        part = _part(model, near, here, unit, target, chance)
        there = list(here)
        for each in part:
            there[each] = target
        found = score(there)
        heat = value * _HOT * (_COLD / _HOT) ** (step / steps)
        worse = found - value
        if worse > 0 and not (heat > 0 and chance.random() < math.exp(-worse / heat)):
            continue
        here, value = there, found
        if value < best * (1 - 1e-12):
            best, last = value, step
            yield list(here)


def _neighbours(model: FreeModel) -> list[list[int]]:
    near: list[set[int]] = [set() for _ in model.slots_of]
    for flow in model.units.flows:
        for reader in flow.readers if flow.producer >= 0 else ():
            near[flow.producer].add(reader)
            near[reader].add(flow.producer)
    return [sorted(each) for each in near]


def _part(
    model: FreeModel,
    near: list[list[int]],
    slot_of: Sequence[int],
    unit: int,
    target: int,
    chance: random.Random,
) -> list[int]:
    """A unit, or it and connected ones in its slot that can be in the target."""
    part = [unit]
    if chance.random() < _ALONE:
        return part
    size = chance.randint(2, _LARGEST_PART)
    edge = [unit]
    while edge and len(part) < size:
        middle = edge.pop(chance.randrange(len(edge)))
        for other in near[middle]:
            fits = slot_of[other] == slot_of[unit] and target in model.slots_of[other]
            if fits and other not in part and len(part) < size:
                part.append(other)
                edge.append(other)
    return part
