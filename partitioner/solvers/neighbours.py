"""What small changes to a solution would cost: the material of an explanation."""

from __future__ import annotations

from collections.abc import Iterator

from partitioner.evaluation import evaluate
from partitioner.problem import Evaluation, Problem, Solution
from partitioner.solvers.reduce import reduce_ops, stages_of

__all__ = ["changes", "neighbours"]

Change = tuple[str, tuple[int, ...], tuple[tuple[int, ...], ...]]


def neighbours(problem: Problem, solution: Solution) -> tuple[tuple[str, Evaluation], ...]:
    """Feasible assignments one step from a solution, best first.

    Steps: an op (with what must share its stage) moved over one boundary, two stages joined, two
    stages' placements exchanged, one stage on another option.

    Returns
    -------
    tuple of (str, Evaluation)
        What was changed and its score, ascending by the problem's objective.
    """
    found = []
    seen = {(solution.stage_of, solution.placements)}
    for text, stage_of, placements in changes(problem, solution):
        if (stage_of, placements) in seen:
            continue
        seen.add((stage_of, placements))
        evaluation = evaluate(problem, stage_of, placements)
        if evaluation.feasible:
            found.append((text, evaluation))
    return tuple(sorted(found, key=lambda item: item[1].value(problem.objective)))


def changes(problem: Problem, solution: Solution) -> Iterator[Change]:
    """What `neighbours` tries, feasible or not: what was changed, stages and placements."""
    yield from _moves(problem, solution)
    yield from _joins(solution)
    yield from _exchanges(problem, solution)
    yield from _replacements(problem, solution)


def _moves(problem: Problem, solution: Solution) -> Iterator[Change]:
    units = reduce_ops(problem)
    stage = [solution.stage_of[ops[0]] for ops in units.members]
    after: list[list[int]] = [[] for _ in stage]
    for unit, before in enumerate(units.before):
        for other in before:
            after[other].append(unit)
    last = len(solution.placements) - 1
    for unit, ops in enumerate(units.members):
        here = stage[unit]
        names = ", ".join(problem.op_names[op] for op in ops)
        steps = []
        if here < last and all(stage[v] > here for v in after[unit]):
            steps.append((here + 1, "later"))
        if here > 0 and all(stage[v] < here for v in units.before[unit]):
            steps.append((here - 1, "earlier"))
        for there, way in steps:
            moved = [*stage[:unit], there, *stage[unit + 1 :]]
            # The last op of a stage does not move alone: that is joining two stages.
            if here in moved:
                text = f"move {names} {way}, to stage {there}"
                yield text, stages_of(units, moved), solution.placements


def _joins(solution: Solution) -> Iterator[Change]:
    for stage in range(len(solution.placements) - 1):
        joined = tuple(s - (s > stage) for s in solution.stage_of)
        for kept, dropped in ((stage, stage + 1), (stage + 1, stage)):
            placements = tuple(
                options for s, options in enumerate(solution.placements) if s != dropped
            )
            yield f"join stages {stage} and {stage + 1} where stage {kept} is", joined, placements


def _exchanges(problem: Problem, solution: Solution) -> Iterator[Change]:
    placed = solution.placements
    for a in range(len(placed)):
        for b in range(a + 1, len(placed)):
            if placed[a] != placed[b]:
                swapped = list(placed)
                swapped[a], swapped[b] = placed[b], placed[a]
                yield (
                    f"exchange the placements of stages {a} and {b}",
                    solution.stage_of,
                    tuple(swapped),
                )


def _replacements(problem: Problem, solution: Solution) -> Iterator[Change]:
    placed = solution.placements
    for stage, options in enumerate(placed):
        for option, name in enumerate(problem.option_names):
            if len(options) == 1 and option != options[0]:
                changed = (*placed[:stage], (option,), *placed[stage + 1 :])
                yield f"put stage {stage} on {name}", solution.stage_of, changed
