"""Exact reductions: fewer units, and fewer ways to number them, without losing the optimum.

Every reduction only says which units may as well share a stage, so that its inverse is
`reduce.stages_of`: what is assigned are the same ops, and what is scored is the same problem.
`REDUCTIONS` lists them with what each needs to be valid. Ops that a rule or a cycle forces together
are merged before, by `reduce.reduce_ops`; identical branches are put in an order after, which is
valid for every contiguous problem.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from partitioner.problem import Problem
from partitioner.solvers.bounds import Prices, repriced
from partitioner.solvers.limits import Clock
from partitioner.solvers.reduce import Assignment, Units, reduce_ops
from partitioner.solvers.reductions.cuts import uncuttable
from partitioner.solvers.reductions.twins import twins
from partitioner.solvers.reductions.zero import idle

__all__ = ["REDUCTIONS", "Narrowed", "Reduction", "narrowed"]

_ROUNDS = 30
# Larger graphs are not solved exactly, and each round costs as much as reading one.
_MOST_UNITS = 20_000


@dataclass(frozen=True, slots=True)
class Reduction:
    """A family of units that may share a stage.

    Attributes
    ----------
    name : str
        What it is called in tables.
    valid : str
        For which problems.
    groups : callable
        Units that may share a stage, by problem, units, cut-off and load prices. An assignment
        below the cut-off (or at it) stays one, and becomes no worse in any objective, when the
        first unit of each group is moved to the stage of the others.
    """

    name: str
    valid: str
    groups: Callable[[Problem, Units, float, tuple[Prices, ...]], Iterable[tuple[int, ...]]]


REDUCTIONS: tuple[Reduction, ...] = (
    Reduction(
        name="idle ops",
        valid=(
            "every objective and latency model; in chains only where transfers cost the same "
            "wherever the other end is; with constants only where memory does not matter"
        ),
        groups=lambda problem, units, cutoff, prices: idle(problem, units),
    ),
    Reduction(
        name="tensors too dear to move",
        valid="every objective and latency model, as far as there is a cut-off or a cap",
        groups=uncuttable,
    ),
)
"""All of them, cheap ones first."""


@dataclass(frozen=True, slots=True, eq=False)
class Narrowed:
    """Units after reductions.

    Attributes
    ----------
    units : Units
        Fewer of them, identical branches in an order; `reduce.stages_of` brings an assignment back
        to ops.
    moves : tuple of (tuple of int, int)
        In the order in which they apply: ops that go along with another op.
    """

    units: Units
    moves: tuple[tuple[tuple[int, ...], int], ...] = ()

    def carried(self, assignment: Assignment) -> Assignment:
        """An assignment of the ops, no worse, that the units can express."""
        stage_of = list(assignment[0])
        for ops, other in self.moves:
            for op in ops:
                stage_of[op] = stage_of[other]
        used = sorted(set(stage_of))
        number = {stage: index for index, stage in enumerate(used)}
        placements = tuple(assignment[1][stage] for stage in used)
        return tuple(number[stage] for stage in stage_of), placements


def narrowed(
    problem: Problem,
    units: Units,
    cutoff: float,
    prices: tuple[Prices, ...],
    clock: Clock,
    reductions: tuple[Reduction, ...] = REDUCTIONS,
) -> Narrowed:
    """Apply the reductions until none finds anything.

    Parameters
    ----------
    cutoff : float
        Assignments with a higher objective may be lost.
    prices : tuple of Prices
        Load prices of `units`.
    clock : Clock
        Stops early when time is up.
    """
    found = Narrowed(units)
    if len(units) > _MOST_UNITS:
        return found
    for _ in range(_ROUNDS):
        before = len(found.units)
        for reduction in reductions:
            if clock.left_s <= 0:
                return found
            groups = tuple(reduction.groups(problem, found.units, cutoff, prices))
            if groups:
                found = _joined(problem, found, groups)
                prices = repriced(problem, found.units, prices)
        if len(found.units) == before:
            break
    if not problem.contiguous:
        return found
    order = tuple(twins(problem, found.units))
    return replace(found, units=replace(found.units, order=order))


def _joined(problem: Problem, found: Narrowed, groups: tuple[tuple[int, ...], ...]) -> Narrowed:
    """Each group made one unit, and whatever then lies on a cycle."""
    members = found.units.members
    together = tuple(ops for ops in members if len(ops) > 1)
    more = tuple(tuple(members[unit][0] for unit in group) for group in groups)
    units = reduce_ops(replace(problem, colocate=(*problem.colocate, *together, *more)))
    moves = tuple((members[group[0]], members[group[1]][0]) for group in groups)
    return Narrowed(units, (*found.moves, *moves))
