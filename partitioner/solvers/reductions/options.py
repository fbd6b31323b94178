"""Options that another can always stand in for.

An option that takes no more of any resource, is no slower at anything, and costs no stage beside
it more can replace the other in every assignment: two replicas of one core each, as a rule, a stage
on two cores, whose kernels never run twice as fast. Without the ones replaced a table over core
counts and replicas is several times smaller, and an optimum is left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from partitioner.problem import Floats, Objective, Problem, Solution, TransferCost
from partitioner.solvers.reduce import tight_pools

__all__ = ["Trimmed", "trimmed"]


@dataclass(frozen=True, slots=True)
class Trimmed:
    """A problem with the options that are needed, and the way back.

    Attributes
    ----------
    problem : Problem
        The original with the options `kept`.
    kept : tuple of int
        Those options' numbers in the original.
    instead : tuple of int
        For each option of the original the one of `problem` that replaces it.
    """

    problem: Problem
    kept: tuple[int, ...]
    instead: tuple[int, ...]

    def carried(self, solution: Solution) -> Solution:
        """A solution of the original as an assignment of `problem` that is no worse."""
        return self._moved(solution, self.instead)

    def restore(self, solution: Solution) -> Solution:
        """The same assignment in the original, where its score is the same."""
        return self._moved(solution, self.kept)

    @staticmethod
    def _moved(solution: Solution, number: Sequence[int]) -> Solution:
        moved = tuple(tuple(number[option] for option in each) for each in solution.placements)
        return replace(solution, placements=moved)


def trimmed(problem: Problem) -> Trimmed | None:
    """Leave out the options that others replace, one after the other; None if there are none."""
    less = np.asarray((problem.uses[:, None, :] <= problem.uses[None, :, :]).all(axis=2))
    np.fill_diagonal(less, val=False)
    # What a link carries adds up over all stages on an option.
    linked = problem.link.base_s.any() or problem.link.per_unit_s.any()
    if not less.any() or linked or problem.same_option:
        return None
    replaces = partial(_replaces, problem, _aims(problem), frozenset(tight_pools(problem)))
    kept = list(range(problem.n_options))
    instead = list(kept)
    for worse in reversed(range(problem.n_options)):
        better = next((o for o in kept if less[o, worse] and replaces(o, worse, kept)), None)
        if better is not None:
            kept.remove(worse)
            instead = [better if option == worse else option for option in instead]
    if len(kept) == problem.n_options:
        return None
    return Trimmed(_only(problem, kept), tuple(kept), tuple(map(kept.index, instead)))


def _aims(problem: Problem) -> frozenset[Objective]:
    """What an assignment is judged by."""
    aims = {problem.objective, problem.second}
    caps = ((problem.period_cap_s, Objective.PERIOD), (problem.latency_cap_s, Objective.LATENCY))
    aims |= {objective for cap, objective in caps if np.isfinite(cap)}
    return frozenset(aim for aim in aims if aim is not None)


def _replaces(
    problem: Problem,
    aims: frozenset[Objective],
    tight: frozenset[int],
    one: int,
    other: int,
    beside: Sequence[int],
) -> bool:
    """Whether `one` can take the place of `other` in all assignments to the options `beside`."""
    if not _occupies_no_more(problem, aims, tight, one, other):
        return False
    ends = [*(option for option in beside if option not in (one, other)), problem.n_options]
    costs = [
        matrix
        for cost in (problem.send, _turned(problem.recv))
        for matrix in (cost.base_s, cost.per_unit_s)
    ]
    if not all((matrix[ends, one] <= matrix[ends, other]).all() for matrix in costs):
        return False
    # A period shares a stage's time among its replicas, a latency does not.
    shares = [problem.replicas[[one, other]]] if Objective.PERIOD in aims else []
    shares += [np.ones(2, dtype=np.int64)] if Objective.LATENCY in aims else []
    here = problem.runs()[:, other]
    return bool(
        problem.runs()[here, one].all()
        and all(
            (problem.time_s[here, one] / mine <= problem.time_s[here, other] / its).all()
            and problem.host_s[one] / mine <= problem.host_s[other] / its
            and all(_cheaper(matrix, one, other, mine, its, ends) for matrix in costs)
            for mine, its in shares
        )
    )


def _occupies_no_more(
    problem: Problem, aims: frozenset[Objective], tight: frozenset[int], one: int, other: int
) -> bool:
    """Whether `one` asks no more of memory, devices and host cores than `other`."""
    as_many = bool(problem.replicas[one] <= problem.replicas[other])
    same_pool = bool(problem.pool_of[one] == problem.pool_of[other])
    same_core = bool(problem.host_core[one] == problem.host_core[other])
    counted = bool(aims & {Objective.MEMORY, Objective.DEVICES})
    if problem.host_core[one] >= 0 and not (
        same_core and problem.host_s[one] <= problem.host_s[other]
    ):
        return False
    in_pool = int(problem.pool_of[one]) not in tight or (same_pool and as_many)
    return in_pool and (as_many or not counted)


def _cheaper(
    matrix: Floats, one: int, other: int, mine: int, its: int, ends: Sequence[int]
) -> bool:
    """Whether a stage on `one` pays no more than on `other`, whoever is at the other end.

    Parameters
    ----------
    matrix : array, shape (n_options + 1, n_options + 1)
        What the option of the row pays for a transfer with that of the column.
    mine, its : int
        Replicas that share it.
    ends : sequence of int
        Third options, and the caller.
    """
    pays = matrix[one, ends] / mine <= matrix[other, ends] / its
    # Stages on the other may also be at both ends; all of them are replaced.
    least = min(matrix[other, other], matrix[other, one])
    both = matrix[one, one] / mine <= least / its and matrix[one, one] <= matrix[one, other]
    return bool(pays.all() and both)


def _turned(cost: TransferCost) -> TransferCost:
    return TransferCost(cost.base_s.T, cost.per_unit_s.T)


def _only(problem: Problem, kept: Sequence[int]) -> Problem:
    """The problem with some of its options."""
    ends = np.ix_([*kept, problem.n_options], [*kept, problem.n_options])

    def between(cost: TransferCost) -> TransferCost:
        return TransferCost(cost.base_s[ends], cost.per_unit_s[ends])

    return replace(
        problem,
        option_names=tuple(problem.option_names[option] for option in kept),
        time_s=problem.time_s[:, kept],
        allowed=problem.allowed[:, kept],
        host_s=problem.host_s[kept],
        uses=problem.uses[kept],
        pool_of=problem.pool_of[kept],
        send=between(problem.send),
        recv=between(problem.recv),
        link=between(problem.link),
        bus_of=problem.bus_of[ends],
        replicas=problem.replicas[kept],
        host_core=problem.host_core[kept],
    )
