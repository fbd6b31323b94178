"""Exhaustive search, for small problems and for checking the others.

It lists every assignment, op by op, and scores them all at once by `scores`; it shares no
reasoning with the other solvers, bounds nothing and breaks no symmetry between options. The best
one is scored again by `evaluation`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from partitioner.errors import InfeasibleError, ProblemError
from partitioner.evaluation import evaluate
from partitioner.problem import Bools, Ints, Problem, Solution, SolveStats, Status
from partitioner.solvers.brute.scores import Chunk, Scores
from partitioner.solvers.limits import Clock, Limits

__all__ = ["assignment", "chunks", "exhaustive"]

_MOST_OPS = 12
# About a minute of work.
_MOST_ASSIGNMENTS = 30_000_000
# Assignments that are grown and scored together; their arrays stay in the processor's cache.
_CHUNK = 8192


def exhaustive(problem: Problem, limits: Limits) -> Solution:
    """Best of all assignments; it takes no notice of the time limit.

    Raises
    ------
    ProblemError
        If the problem has more than 12 ops, or more than 30 million assignments.
    InfeasibleError
        If no assignment is feasible.
    """
    if problem.n_ops > _MOST_OPS:
        raise ProblemError(
            f"exhaustive search takes at most {_MOST_OPS} ops, the problem has {problem.n_ops}; "
            "use method 'auto'"
        )
    clock = Clock(limits.time_limit_s)
    scores = Scores(problem)
    best: Solution | None = None
    value = float("inf")
    for chunk in chunks(problem):
        found = scores.objective(chunk)
        # Both ways to add up agree but for rounding: at the edge of a limit `evaluation` decides.
        for row in np.argsort(found, kind="stable"):
            if not found[row] < value:
                break
            candidate = assignment(problem, chunk, int(row))
            if candidate.evaluation.feasible:
                best, value = candidate, float(found[row])
                break
    if best is None:
        raise InfeasibleError(
            "no assignment is possible: exhaustive search tried them all; allow more stages or "
            "devices, raise a memory budget or a cap, or drop a pin or colocation"
        )
    objective = best.evaluation.value(problem.objective)
    stats = SolveStats(Status.OPTIMAL, objective, objective, clock.spent_s, "brute")
    return Solution(best.stage_of, best.placements, best.evaluation, stats)


@dataclass(frozen=True, slots=True)
class _Partial:
    """Assignments of the first ops, side by side; stages are numbered as they come up.

    Attributes
    ----------
    stage : array, shape (n_ops, n_rows)
        Stage of each op so far.
    option : array, shape (most_stages, n_rows)
        Option of each stage.
    after : array, shape (most_stages, n_rows)
        Stages that come after each stage along the edges, as bits.
    count : array, shape (n_rows,)
        Stages so far.
    used : array, shape (n_resources, n_rows)
        Units of each resource taken.
    """

    stage: Ints
    option: Ints
    after: Ints
    count: Ints
    used: Ints

    def part(self, rows: Ints | slice) -> _Partial:
        """Some of the rows."""
        return _Partial(
            self.stage[:, rows],
            self.option[:, rows],
            self.after[:, rows],
            self.count[rows],
            self.used[:, rows],
        )


def chunks(problem: Problem) -> Iterator[Chunk]:
    """Every assignment once, but for the names of its stages, that respects all but the sizes.

    Memory and caps are for the scores to judge; order along the edges, where ops run, resources,
    colocation and the number of stages hold.

    Raises
    ------
    ProblemError
        If there are more than 30 million.
    """
    most = min(problem.max_stages, problem.n_ops)
    before: list[list[int]] = [[] for _ in range(problem.n_ops)]
    for u, v in problem.edges if problem.contiguous else ():
        before[v].append(u)
    start = _Partial(
        np.zeros((problem.n_ops, 1), dtype=np.int64),
        np.zeros((most, 1), dtype=np.int64),
        np.zeros((most, 1), dtype=np.int64),
        np.zeros(1, dtype=np.int64),
        np.zeros((len(problem.capacity), 1), dtype=np.int64),
    )
    waiting = [(0, start)]
    seen = 0
    while waiting:
        op, rows = waiting.pop()
        size = rows.stage.shape[1]
        if op == problem.n_ops:
            seen += size
            if seen > _MOST_ASSIGNMENTS:
                raise ProblemError(
                    f"exhaustive search tries at most {_MOST_ASSIGNMENTS} assignments and this "
                    "problem has more; use method 'auto'"
                )
            yield Chunk(rows.stage, rows.option, rows.after, rows.count)
            continue
        grown = _grow(problem, rows, op, before[op])
        for first in range(0, grown.stage.shape[1], _CHUNK):
            waiting.append((op + 1, grown.part(slice(first, first + _CHUNK))))


def _grow(problem: Problem, rows: _Partial, op: int, before: list[int]) -> _Partial:
    """Every way to add an op to a stage there is, or to a new one."""
    most = len(rows.option)
    feeding = np.zeros_like(rows.count)
    for other in before:
        feeding |= 1 << rows.stage[other]
    choice, parent = np.nonzero(_choices(problem, rows, op, feeding))
    child, feeding = rows.part(parent), feeding[parent]
    new = choice >= most
    label = np.where(new, child.count, choice)
    child.stage[op] = label
    fresh = np.flatnonzero(new)
    child.option[label[fresh], fresh] = choice[fresh] - most
    child.used[:, fresh] += problem.uses[choice[fresh] - most].T
    child.count[fresh] += 1
    if before:
        each = np.arange(most)[:, None]
        feeding &= ~(1 << label)
        columns = np.arange(len(label))
        reached = child.after[label, columns] | (1 << label)
        leads = ((child.after & feeding) | ((1 << each) & feeding)) > 0
        child.after[:] |= np.where(leads, reached, 0)
    return child


def _choices(problem: Problem, rows: _Partial, op: int, feeding: Ints) -> Bools:
    """Which of the stages, then which option for a new stage, an op may go to."""
    most = len(rows.option)
    stage = np.arange(most)[:, None]
    runs = problem.runs()[op]
    join = (stage < rows.count) & runs[rows.option]
    # A stage that leads to one that feeds this op would close a cycle.
    join &= (rows.after & feeding & ~(1 << stage)) == 0
    free = (rows.used + problem.uses[:, :, None] <= problem.capacity[:, None]).all(axis=1)
    free &= runs[:, None] & (rows.count < most)
    for group in problem.colocate:
        for other in group if op in group else ():
            if other < op:
                join &= rows.stage[other] == stage
                free[:] = False
    return np.concatenate([join, free])


def assignment(problem: Problem, chunk: Chunk, row: int) -> Solution:
    """One assignment, its stages numbered along the edges."""
    count = int(chunk.count[row])
    followers = [int(after).bit_count() for after in chunk.after[:count, row]]
    # Whatever comes after a stage comes after all that lead to it: they have more followers.
    order = sorted(range(count), key=lambda stage: -followers[stage])
    number = {stage: i for i, stage in enumerate(order)}
    stage_of = tuple(number[int(stage)] for stage in chunk.stage[:, row])
    placements = tuple((int(chunk.option[stage, row]),) for stage in order)
    return Solution(stage_of, placements, evaluate(problem, stage_of, placements))
