"""Plans in order, each once however its stages are numbered and equal options are named."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

import networkx as nx
import numpy as np

from partitioner.evaluation import evaluate
from partitioner.problem import Evaluation, Problem, Solution, SolveStats, Status
from partitioner.solvers.limits import RELATIVE
from partitioner.solvers.reduce import Assignment, symmetry
from partitioner.solvers.replicate import Replicated

__all__ = ["Ranking"]

Rank = tuple[int, int]
_Key = tuple[tuple[int, ...], tuple[tuple[Rank, ...], ...]]

# Numberings of one plan's stages that are listed; a plan with more is met again and told apart.
_NUMBERINGS = 200


class Ranking:
    """The best plans so far and up to where nothing is missing.

    Parameters
    ----------
    problem : Problem
        What is solved.
    count : int
        How many plans are wanted.
    within : float
        Plans worse than the best by more than this, relatively, are not wanted.
    replicated : Replicated, optional
        Where the problem is one with replicas: what it was made from. Plans are then compared by
        the devices that options stand for.

    Attributes
    ----------
    covered : float
        Every plan with a lower objective is known.
    """

    def __init__(
        self, problem: Problem, count: int, within: float, replicated: Replicated | None = None
    ) -> None:
        self.covered = 0.0
        self._problem = problem
        self._count = count
        self._within = within
        self._classes = symmetry(problem).classes
        self._members: tuple[tuple[int, ...], ...] = tuple((d,) for d in range(problem.n_options))
        self._equal = self._classes
        if replicated is not None:
            self._members = replicated.members
            self._equal = symmetry(replicated.original).classes
        self._keys: dict[_Key, float] = {}
        self._plans: list[Solution] = []

    def add(self, assignment: Assignment, evaluation: Evaluation | None = None) -> None:
        """Take in an assignment; infeasible ones and those known in another guise are left out."""
        key = self._key(assignment)
        if key in self._keys:
            return
        scored = evaluate(self._problem, *assignment) if evaluation is None else evaluation
        value = scored.value(self._problem.objective)
        if np.isfinite(value):
            stats = SolveStats(Status.FEASIBLE, value, 0.0, 0.0, "k best")
            self._keys[key] = value
            insort(self._plans, Solution(*assignment, scored, stats), key=_objective)

    @property
    def limit(self) -> float:
        """Objectives above it are not wanted."""
        plans = self._plans
        last = _objective(plans[self._count - 1]) if len(plans) >= self._count else float("inf")
        most = _objective(plans[0]) * (1 + self._within) * (1 + 1e-12) if plans else float("inf")
        return min(last, most)

    @property
    def complete(self) -> bool:
        """Whether no better plans than the known ones are missing."""
        return self.limit <= self.covered * (1 + RELATIVE) or self.covered == float("inf")

    def known(self) -> tuple[Solution, ...]:
        """Plans that nothing unknown can come before."""
        return tuple(self._plans[: self._n_known])

    @property
    def candidate(self) -> Solution | None:
        """The best plan that something unknown may come before."""
        return next(iter(self._plans[self._n_known :]), None)

    def is_known(self, assignment: Assignment) -> bool:
        """Whether an assignment is one of the `known` plans in whatever guise."""
        value = self._keys.get(self._key(assignment), float("inf"))
        return value <= self.covered * (1 + RELATIVE)

    @property
    def _n_known(self) -> int:
        return bisect_right(self._plans, self.covered * (1 + RELATIVE), key=_objective)

    def best(self, wall_s: float) -> tuple[Solution, ...]:
        """The plans wanted, best first, each with what is proven of its place.

        A plan's bound is that of all plans not before it.
        """
        found = []
        for plan in self._plans[: self._count]:
            value = plan.stats.objective
            if value > self.limit:
                break
            bound = min(value, self.covered)
            proven = value - bound <= RELATIVE * value
            status = Status.OPTIMAL if proven else Status.FEASIBLE
            stats = replace(plan.stats, status=status, bound=bound, wall_s=wall_s)
            found.append(replace(plan, stats=stats))
        return tuple(found)

    def guises(self, plan: Solution) -> Iterator[Assignment]:
        """A plan under every numbering of its stages, options of a class in order of first use."""
        quotient = nx.DiGraph()
        quotient.add_nodes_from(range(len(plan.placements)))
        stage_of = plan.stage_of
        quotient.add_edges_from(
            (stage_of[u], stage_of[v]) for u, v in self._problem.edges if stage_of[u] != stage_of[v]
        )
        for order in islice(nx.all_topological_sorts(quotient), _NUMBERINGS):
            number = {stage: k for k, stage in enumerate(order)}
            options = [plan.placements[stage][0] for stage in order]
            named = (self._classes[c][rank] for c, rank in _ranks(self._classes, options))
            yield tuple(number[s] for s in stage_of), tuple((option,) for option in named)

    def _key(self, assignment: Assignment) -> _Key:
        stage_of, placements = assignment
        number: dict[int, int] = {}
        for stage in stage_of:
            number.setdefault(stage, len(number))
        options = [placements[stage][0] for stage in number]
        members = [self._members[option] for option in options]
        ranks = iter(_ranks(self._equal, [each for group in members for each in group]))
        named = tuple(tuple(next(ranks) for _ in group) for group in members)
        return tuple(number[stage] for stage in stage_of), named


def _ranks(classes: Sequence[tuple[int, ...]], options: Sequence[int]) -> list[Rank]:
    """Class of each option and which of its class it is, by first use."""
    ranks: dict[int, Rank] = {}
    seen = [0] * len(classes)
    for option in options:
        if option not in ranks:
            c = next(c for c, group in enumerate(classes) if option in group)
            ranks[option] = (c, seen[c])
            seen[c] += 1
    return [ranks[option] for option in options]


def _objective(plan: Solution) -> float:
    return plan.stats.objective
