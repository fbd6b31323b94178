"""CP-SAT at work: runs a model and keeps what `evaluation` says of its solutions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from ortools.sat.python import cp_model

from partitioner.errors import ProblemError
from partitioner.evaluation import evaluate
from partitioner.problem import Evaluation, Problem
from partitioner.solvers.cpsat.model import Model, terms
from partitioner.solvers.cpsat.sound import run_sound, sound_solver
from partitioner.solvers.limits import RELATIVE, Clock, Limits
from partitioner.solvers.reduce import Assignment, Units

__all__ = ["Found", "Keep", "search", "too_large"]

Keep = Callable[[Assignment, Evaluation], None]

# CP-SAT's presolve has been seen to lose solutions with larger integers (OR-Tools 9.15).
_TRUSTED = 28
# A larger model is no use: building it takes the time, or the memory, that there is.
_MOST_TERMS = 2_000_000
_TERMS_A_SECOND = 25_000


@dataclass(frozen=True, slots=True)
class Found:
    """Result of a CP-SAT search.

    Attributes
    ----------
    assignment, evaluation
        Best found that is feasible by `evaluation`, None when none is.
    bound : float
        Proven lower bound of the objective; inf when proven infeasible.
    finished : bool
        Whether the search ended by itself: what gap remains is the rounding's.
    refused : tuple of assignments
        Found within the rounded limits, but not feasible by `evaluation`.
    interrupted : bool
        Whether Ctrl-C ended it.
    """

    assignment: Assignment | None
    evaluation: Evaluation | None
    bound: float
    finished: bool
    refused: tuple[Assignment, ...] = ()
    interrupted: bool = False


def too_large(work: int, left_s: float) -> bool:
    """Whether a model of so many terms takes more time to build, or memory, than there is."""
    return work > min(_MOST_TERMS, left_s * _TERMS_A_SECOND)


class _Watch(cp_model.CpSolverSolutionCallback):  # type: ignore[misc]  # ortools is untyped
    """Scores every solution that CP-SAT finds and keeps the best feasible one."""

    def __init__(self, model: Model, limits: Limits, clock: Clock, keep: Keep | None) -> None:
        super().__init__()
        self._model, self.limits, self.clock, self._keep = model, limits, clock, keep
        self.best: tuple[Assignment, Evaluation] | None = None
        self.refused: list[Assignment] = []

    def on_solution_callback(self) -> None:
        problem = self._model.problem
        assignment = self._model.read(lambda var: var if isinstance(var, int) else self.value(var))
        evaluation = evaluate(problem, *assignment)
        value = evaluation.value(problem.objective)
        if self._keep is not None:
            self._keep(assignment, evaluation)
        if not np.isfinite(value):
            self.refused.append(assignment)
        elif self.best is None or value < self.best[1].value(problem.objective):
            self.best = (assignment, evaluation)
            if self.limits.progress is not None:
                bound = self._model.scale.value(self.best_objective_bound)
                self.limits.progress(value, min(bound, value), self.clock.spent_s)


def search(
    problem: Problem,
    units: Units,
    limits: Limits,
    clock: Clock,
    *,
    ceiling: float,
    floor: float,
    start: Assignment | None,
    bits: int,
    without: Sequence[Assignment] = (),
    keep: Keep | None = None,
) -> Found:
    """Run CP-SAT until proof or the end of time; not at all where the model would be too large.

    Parameters
    ----------
    ceiling : float
        No objective above it is of interest (a known one, or one that every solution meets).
    floor : float
        A bound already proven.
    start : tuple or None
        A known assignment.
    bits : int
        Bits that the limits take as integers. A load adds up hundreds of rounded costs, so that
        28 bits leave less than 1e-6 in most problems and more bits in all.
    without : sequence of assignments
        Left out of the search.
    keep : callable, optional
        Told of every assignment met and its score, feasible or not.
    """
    if too_large(terms(problem, units), clock.left_s):
        return Found(None, None, floor, False)
    model = Model(problem, units, ceiling, bits)
    model.cp.add(model.goal >= model.scale.steps(floor))
    for assignment in without:
        model.forbid(assignment)
    if start is not None:
        model.hint(start)
    watch = _Watch(model, limits, clock, keep)
    found = _run(model, watch, floor, careful=False)
    if found.bound == float("inf") and (start is not None or bits > _TRUSTED):
        # A known solution refutes the claim, large integers make it doubtful.
        found = _run(model, watch, floor, careful=True)
        if found.bound == float("inf") and start is not None:
            return Found(None, None, floor, False)
    return found


def _run(model: Model, watch: _Watch, floor: float, *, careful: bool) -> Found:
    solver = sound_solver(watch.limits, watch.clock.left_s)
    solver.parameters.cp_model_presolve = not careful
    solver.parameters.relative_gap_limit = RELATIVE / 4
    try:
        status = run_sound(solver, model.cp, watch.limits, watch)
    except KeyboardInterrupt:
        assignment, evaluation = watch.best or (None, None)
        return Found(assignment, evaluation, floor, finished=False, interrupted=True)
    if status == cp_model.INFEASIBLE:
        return Found(None, None, float("inf"), True)
    if status == cp_model.MODEL_INVALID:
        raise ProblemError(f"CP-SAT refuses the model: {model.cp.validate()}")
    bound = max(model.scale.value(solver.best_objective_bound), floor)
    assignment, evaluation = watch.best or (None, None)
    finished = status == cp_model.OPTIMAL
    return Found(assignment, evaluation, bound, finished, tuple(watch.refused))
