"""The CP-SAT model: exact for every problem, whatever its transfers and memory.

Variables: ``reach[v, k]`` (unit v is in stage k or later, monotone along edges), ``on[k, d]``
(stage k runs on option d). A transfer's Booleans are only bounded from below by the placement, for
every cost pushes them down. Integers are costs over a quantum, rounded down, so that the model's
bound is a bound of the problem; what it finds is scored by `evaluation`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from ortools.sat.python import cp_model

from partitioner.evaluation import evaluate
from partitioner.problem import Evaluation, LatencyModel, Objective, Problem
from partitioner.solvers.bounds import load_prices
from partitioner.solvers.limits import RELATIVE, Clock, Limits
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
        Proven lower bound, seconds; inf when proven infeasible (below the cut-off given).
    """

    assignment: Assignment | None
    evaluation: Evaluation | None
    bound: float


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
        self._add_spread()
        add_memory(self)

    def steps(self, seconds: float) -> int:
        """Seconds as integer steps, rounded down and capped just above `cap`."""
        return int(min(seconds / self.quantum_s, self.cap + 1))

    def member(self, unit: int, stage: int) -> Any:
        """0/1 expression: unit is in stage."""
        return self.reach[unit][stage] - self.reach[unit][stage + 1]

    @cached_property
    def member_var(self) -> list[list[Any]]:
        """Booleans equal to `member`, for use as enforcement literals."""
        rows = []
        for unit in range(len(self.units)):
            row = []
            for stage in range(self.stages):
                var = self.cp.new_bool_var(f"in_{unit}_{stage}")
                self.cp.add(var == self.member(unit, stage))
                row.append(var)
            rows.append(row)
        return rows

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
            members = [self.member(unit, k) for unit in range(len(self.units))]
            cp.add(sum(members) >= self.used[k])
            cp.add(sum(members) <= len(members) * self.used[k])
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
                        cp.add(self.member(unit, k) + self.on[k][d] <= 1)

    def _over(self, unit: int, option: int) -> bool:
        return self.steps(float(self.units.time_s[unit, option])) > self.cap

    def compute(self, stage: int, option: int) -> Any:
        """Steps of op time and host time of a stage on an option."""
        total: Any = self.steps(float(self.problem.host_s[option]))
        for unit in range(len(self.units)):
            seconds = self.units.time_s[unit, option]
            if np.isfinite(seconds) and not self._over(unit, option):
                total = total + self.steps(float(seconds)) * self.member(unit, stage)
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
                charged = self.compute(k, d) + self.transfers.charged(k, d)
                cp.add(charged <= self.busy[k]).only_enforce_if(self.on[k][d])
        if period:
            for load in self.transfers.shared_loads():
                cp.add(load <= self.goal)
        elif problem.latency_model is LatencyModel.SERIAL:
            cp.add(sum(self.busy) + sum(self.transfers.link_delays()) <= self.goal)
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

    def _add_spread(self) -> None:
        """Redundant: work by option, which gives the linear relaxation the load bound."""
        problem = self.problem
        if problem.objective is not Objective.PERIOD or len(symmetry(problem).classes) == 1:
            return
        cp, options, n = self.cp, range(problem.n_options), len(self.units)
        place = [[cp.new_bool_var(f"at_{v}_{d}") for d in options] for v in range(n)]
        for v in range(n):
            cp.add_exactly_one(place[v])
            for k in range(self.stages):
                for d in options:
                    cp.add(self.member(v, k) + self.on[k][d] - 1 <= place[v][d])
        for d in options:
            times = [(self.units.time_s[v, d], place[v][d]) for v in range(n)]
            load = sum(self.steps(float(t)) * x for t, x in times if np.isfinite(t))
            often = self._times_usable(d)
            cp.add(load <= often * self.goal)
            uses = sum(self.on[k][d] for k in range(self.stages))
            for _, x in times:
                cp.add(x <= uses)
        for price in load_prices(problem, self.units):
            floor = int(price.bound_s / self.quantum_s)
            cp.add(self.goal >= min(floor, self.cap))

    def _times_usable(self, option: int) -> int:
        uses = self.problem.uses[option]
        often = [int(c // u) for c, u in zip(self.problem.capacity, uses, strict=True) if u]
        return min([self.stages, *often])

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
    """
    # A load adds fewer than `terms` roundings of less than one step each.
    terms = len(units) + 2 * sum(len(flow.readers) + 1 for flow in units.flows) + 2
    cap = max(1 << 24, round(4 * terms / RELATIVE))
    quantum_s = ceiling_s * (1 + RELATIVE) / cap
    model = Model(problem, units, quantum_s, cap)
    model.cp.add(model.goal >= min(cap, int(floor_s / quantum_s)))
    if start is not None:
        model.hint(start)
    solver: Any = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = clock.left_s
    solver.parameters.num_workers = limits.workers
    solver.parameters.random_seed = limits.seed
    solver.parameters.relative_gap_limit = RELATIVE / 4
    watch = _Watch(model, limits, clock)
    status = solver.solve(model.cp, watch)
    best = watch.best
    if status == cp_model.INFEASIBLE:
        return Found(None, None, float("inf"))
    known = status in (cp_model.OPTIMAL, cp_model.FEASIBLE, cp_model.UNKNOWN)
    bound = solver.best_objective_bound * quantum_s if known else 0.0
    if best is None:
        return Found(None, None, max(bound, floor_s))
    return Found(*best, max(bound, floor_s))
