"""The CP-SAT model: exact for every problem, whatever its transfers and memory.

Variables: ``reach[v, k]`` (unit v is in stage k or later, monotone along edges), ``on[k, d]``
(stage k runs on option d). A transfer's Booleans are only bounded from below by the placement, for
every cost pushes them down. Integers are costs over a quantum, rounded down, so that the model's
bound is a bound of the problem; what it finds is scored by `evaluation`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from ortools.sat.python import cp_model

from partitioner.errors import ProblemError
from partitioner.evaluation import evaluate
from partitioner.problem import Evaluation, LatencyModel, Objective, Problem
from partitioner.solvers.limits import RELATIVE, Clock, Limits
from partitioner.solvers.linear import Linear
from partitioner.solvers.memory_rows import add_memory
from partitioner.solvers.reduce import Units, most_stages, stages_of, symmetry
from partitioner.solvers.transfer_rows import Transfers

__all__ = ["Found", "Model", "search"]

Assignment = tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]


@dataclass(frozen=True, slots=True)
class Found:
    """Result of a CP-SAT search.

    Attributes
    ----------
    assignment, evaluation
        Best found that is feasible by `evaluation`, None when none is.
    bound : float
        Proven lower bound, seconds; inf when proven infeasible.
    finished : bool
        Whether the search ended by itself: what gap remains is the rounding's.
    """

    assignment: Assignment | None
    evaluation: Evaluation | None
    bound: float
    finished: bool


class Model:
    """The model, its integers in quanta of `quantum_s` seconds.

    Parameters
    ----------
    problem, units
        The problem and its units.
    quantum_s : float
        Seconds of one integer step.
    cap : int
        Steps above which nothing is of interest; keeps integers small.
    """

    def __init__(self, problem: Problem, units: Units, quantum_s: float, cap: int) -> None:
        self.problem, self.units = problem, units
        self.quantum_s, self.cap = quantum_s, cap
        self.cp: Any = cp_model.CpModel()
        self.stages = min(most_stages(problem), len(units))
        self._add_order()
        self._add_options()
        self.transfers = Transfers(self)
        self._add_objective()
        add_memory(self)

    def steps(self, seconds: float) -> int:
        """Seconds as integer steps, rounded down and capped just above `cap`."""
        return int(min(seconds / self.quantum_s, self.cap + 1))

    def member(self, unit: int, stage: int) -> Linear:
        """0/1 sum: unit is in stage."""
        inside = Linear()
        inside.add(1, self.reach[unit][stage])
        inside.add(-1, self.reach[unit][stage + 1])
        return inside

    def imply(self, inside: list[tuple[int, int]], then: list[Any]) -> None:
        """Clause: when all (unit, stage) memberships hold, one of the literals does."""
        clause = list(then)
        for unit, stage in inside:
            here, later = self.reach[unit][stage], self.reach[unit][stage + 1]
            if not isinstance(here, int):
                clause.append(here.negated())
            if not isinstance(later, int):
                clause.append(later)
        self.cp.add_bool_or(clause)

    def _add_order(self) -> None:
        cp, n, stages = self.cp, len(self.units), self.stages
        self.reach: list[list[Any]] = []
        for unit in range(n):
            inner = [cp.new_bool_var(f"reach_{unit}_{k}") for k in range(1, stages)]
            self.reach.append([1, *inner, 0])
            for a, b in pairwise(inner):
                cp.add_implication(b, a)
        for unit, before in enumerate(self.units.before):
            for other in before:
                for k in range(1, stages):
                    cp.add_implication(self.reach[other][k], self.reach[unit][k])

    def _add_options(self) -> None:
        cp, problem = self.cp, self.problem
        options, stages = range(problem.n_options), range(self.stages)
        self.on: list[list[Any]] = [
            [cp.new_bool_var(f"on_{k}_{d}") for d in options] for k in stages
        ]
        self.used: list[Any] = [cp.new_bool_var(f"used_{k}") for k in stages]
        for k in stages:
            cp.add(sum(self.on[k]) == self.used[k])
            members = Linear()
            for unit in range(len(self.units)):
                members.add(1, self.member(unit, k))
                self.imply([(unit, k)], [self.used[k]])
            cp.add(members.expression() >= self.used[k])
            if k:
                cp.add_implication(self.used[k], self.used[k - 1])
        for r, capacity in enumerate(problem.capacity):
            uses = [(int(problem.uses[d, r]), d) for d in options if problem.uses[d, r]]
            if uses:
                cp.add(sum(u * self.on[k][d] for k in stages for u, d in uses) <= int(capacity))
        for group in symmetry(problem).classes:
            for first, second in pairwise(group):
                for k in stages:
                    earlier = [self.on[j][first] for j in range(k)]
                    cp.add_bool_or([self.on[k][second].negated(), *earlier])
        for unit in range(len(self.units)):
            for d in options:
                if not self.units.runs[unit, d] or self._over(unit, d):
                    for k in stages:
                        self.imply([(unit, k)], [self.on[k][d].negated()])

    def _over(self, unit: int, option: int) -> bool:
        return self.steps(float(self.units.time_s[unit, option])) > self.cap

    def compute(self, stage: int, option: int) -> Linear:
        """Steps of op time and host time of a stage on an option."""
        total = Linear(self.steps(float(self.problem.host_s[option])))
        for unit in range(len(self.units)):
            seconds = self.units.time_s[unit, option]
            if np.isfinite(seconds) and not self._over(unit, option):
                total.add(self.steps(float(seconds)), self.member(unit, stage))
        return total

    def _add_objective(self) -> None:
        cp, problem = self.cp, self.problem
        self.goal = cp.new_int_var(0, self.cap, "goal")
        period = problem.objective is Objective.PERIOD
        self.busy: list[Any] = (
            [self.goal] * self.stages
            if period
            else [cp.new_int_var(0, self.cap, f"busy_{k}") for k in range(self.stages)]
        )
        for k in range(self.stages):
            for d in range(problem.n_options):
                busy = self.compute(k, d)
                busy.add(1, self.transfers.charged(k, d))
                cp.add(busy.expression() <= self.busy[k]).only_enforce_if(self.on[k][d])
        if period:
            for load in self.transfers.shared_loads():
                cp.add(load.expression() <= self.goal)
        elif problem.latency_model is LatencyModel.SERIAL:
            delays = self.transfers.link_delays()
            for busy in self.busy:
                delays.add(1, busy)
            cp.add(delays.expression() <= self.goal)
        else:
            self._add_atomic()
        cp.minimize(self.goal)

    def _add_atomic(self) -> None:
        """Start times: a stage starts when all its inputs are there and runs as a whole."""
        cp = self.cp
        start = [cp.new_int_var(0, self.cap, f"start_{k}") for k in range(self.stages)]
        for k in range(self.stages):
            cp.add(start[k] + self.busy[k] <= self.goal)
        for source, target, delay, when in self.transfers.dependencies():
            ready = delay if source is None else start[source] + self.busy[source] + delay
            end = self.goal if target is None else start[target]
            cp.add(ready <= end).only_enforce_if(when)

    def read(self, value: Callable[[Any], int]) -> Assignment:
        """The assignment of a CP-SAT solution."""
        stage_of_unit = [
            sum(value(reach) for reach in self.reach[v][1 : self.stages])
            for v in range(len(self.units))
        ]
        used = range(max(stage_of_unit) + 1)
        placements = tuple(
            (next(d for d in range(self.problem.n_options) if value(self.on[k][d])),) for k in used
        )
        return stages_of(self.units, stage_of_unit), placements

    def hint(self, assignment: Assignment) -> None:
        """Offer a known assignment as a start."""
        stage_of, placements = assignment
        for unit, ops in enumerate(self.units.members):
            for k in range(1, self.stages):
                self.cp.add_hint(self.reach[unit][k], int(stage_of[ops[0]] >= k))
        for k in range(self.stages):
            self.cp.add_hint(self.used[k], int(k < len(placements)))
            for d in range(self.problem.n_options):
                chosen = k < len(placements) and placements[k][0] == d
                self.cp.add_hint(self.on[k][d], int(chosen))


class _Watch(cp_model.CpSolverSolutionCallback):  # type: ignore[misc]  # ortools is untyped
    """Scores every solution that CP-SAT finds and keeps the best feasible one."""

    def __init__(self, model: Model, limits: Limits, clock: Clock) -> None:
        super().__init__()
        self._model, self._limits, self._clock = model, limits, clock
        self.best: tuple[Assignment, Evaluation] | None = None

    def on_solution_callback(self) -> None:
        problem = self._model.problem
        assignment = self._model.read(lambda var: var if isinstance(var, int) else self.value(var))
        evaluation = evaluate(problem, *assignment)
        value = evaluation.value(problem.objective)
        if np.isfinite(value) and (
            self.best is None or value < self.best[1].value(problem.objective)
        ):
            self.best = (assignment, evaluation)
            if self._limits.progress is not None:
                bound = self.best_objective_bound * self._model.quantum_s
                self._limits.progress(value, bound, self._clock.spent_s)


def search(
    problem: Problem,
    units: Units,
    limits: Limits,
    clock: Clock,
    *,
    ceiling_s: float,
    floor_s: float,
    start: Assignment | None,
    bits: int,
) -> Found:
    """Run CP-SAT until proof or the end of time.

    Parameters
    ----------
    ceiling_s : float
        No solution above it is of interest (a known objective, or one that every solution meets).
    floor_s : float
        A bound already proven.
    start : tuple or None
        A known assignment.
    bits : int
        Bits that the ceiling takes as an integer. A load adds up hundreds of rounded costs, so
        that 28 bits leave less than 1e-6 in most problems and more bits in all.
    """
    cap = 1 << bits
    quantum_s = ceiling_s * (1 + RELATIVE) / cap
    model = Model(problem, units, quantum_s, cap)
    model.cp.add(model.goal >= min(cap, int(floor_s / quantum_s)))
    if start is not None:
        model.hint(start)
    found = _run(model, limits, clock, floor_s, careful=False)
    if found.bound == float("inf") and start is not None:
        # A known solution refutes the claim; see `_run`.
        found = _run(model, limits, clock, floor_s, careful=True)
        if found.bound == float("inf"):
            return Found(None, None, floor_s, False)
    return found


def _run(model: Model, limits: Limits, clock: Clock, floor_s: float, *, careful: bool) -> Found:
    solver: Any = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = clock.left_s
    # Probing has been seen to declare feasible models of this kind infeasible (OR-Tools 9.15).
    solver.parameters.cp_model_probing_level = 0
    solver.parameters.cp_model_presolve = not careful
    solver.parameters.num_workers = limits.workers
    solver.parameters.random_seed = limits.seed
    solver.parameters.relative_gap_limit = RELATIVE / 4
    watch = _Watch(model, limits, clock)
    status = solver.solve(model.cp, watch)
    if status == cp_model.INFEASIBLE:
        return Found(None, None, float("inf"), True)
    if status == cp_model.MODEL_INVALID:
        raise ProblemError(f"CP-SAT refuses the model: {model.cp.validate()}")
    bound = max(solver.best_objective_bound * model.quantum_s, floor_s)
    finished = status == cp_model.OPTIMAL
    assignment, evaluation = watch.best or (None, None)
    return Found(assignment, evaluation, bound, finished)
