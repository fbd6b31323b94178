"""The CP-SAT model of contiguous problems: exact for every transfer model, memory and limit.

Variables: ``reach[v, k]`` (unit v is in stage k or later, monotone along edges), ``on[k, d]``
(stage k runs on option d). Period and latency are counted in steps of their own, each only where
it is minimized or capped; see `scales` for how they are rounded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from ortools.sat.python import cp_model

from partitioner.problem import Ints, Objective, Problem
from partitioner.solvers.cpsat.flow_rows import Flows
from partitioner.solvers.cpsat.linear import Linear
from partitioner.solvers.cpsat.memory_rows import add_memory, total_memory
from partitioner.solvers.cpsat.scales import (
    Scale,
    counted,
    latency_limit,
    memory_scale,
    period_limit,
    time_scale,
)
from partitioner.solvers.cpsat.time_rows import Side, add_latency, add_period
from partitioner.solvers.cpsat.transfer_rows import tells_pairs_apart
from partitioner.solvers.reduce import Assignment, Units, most_stages, stages_of, symmetry

__all__ = ["Model", "terms"]


def terms(problem: Problem, units: Units) -> int:
    """About how many terms the model's rows have: what it takes to build it."""
    stages, options = min(most_stages(problem), len(units)), problem.n_options
    rows = stages * options * (len(units) + 2 * len(units.flows))
    readers = sum(len(flow.readers) for flow in units.flows)
    pairs = stages * (stages - 1) // 2
    return rows + pairs * readers * (options**2 if tells_pairs_apart(problem) else 1)


class Model:
    """The model.

    Parameters
    ----------
    problem, units
        The problem and its units.
    ceiling : float
        No objective above it is of interest.
    bits : int
        Bits that the limits on period and latency take as integers.

    Attributes
    ----------
    scale : Scale
        Steps of the objective.
    goal : variable
        The objective in steps.
    """

    def __init__(self, problem: Problem, units: Units, ceiling: float, bits: int) -> None:
        self.problem, self.units = problem, units
        self.cp: Any = cp_model.CpModel()
        self.stages = min(most_stages(problem), len(units))
        self._period = self._side(period_limit(problem, ceiling), bits, problem.replicas)
        self._latency = self._side(
            latency_limit(problem, ceiling), bits, np.ones(problem.n_options, dtype=np.int64)
        )
        self.flows = Flows(self)
        self._any: dict[tuple[int, tuple[int, ...]], Any] = {}
        self._add_order()
        self._add_options()
        add_memory(self, bits)
        self._add_goal(ceiling, bits)

    def _side(self, limit_s: float, bits: int, replicas: Ints) -> Side | None:
        if not np.isfinite(limit_s):
            return None
        return Side(time_scale(limit_s, bits), replicas)

    def member(self, unit: int, stage: int) -> Linear:
        """0/1 sum: unit is in stage."""
        inside = Linear()
        inside.add(1, self.reach[unit][stage])
        inside.add(-1, self.reach[unit][stage + 1])
        return inside

    def weighted(self, steps: Sequence[int], stage: int) -> Linear:
        """Steps of the units in a stage, added up."""
        total = Linear()
        if stage:
            total.extend(steps, self._columns[stage])
        else:
            total.constant = sum(steps)
        if stage + 1 < self.stages:
            total.extend([-each for each in steps], self._columns[stage + 1])
        return total

    def on_any(self, stage: int, options: tuple[int, ...]) -> Any:
        """1 when the stage runs on one of the options."""
        if len(options) == 1:
            return self.on[stage][options[0]]
        key = (stage, options)
        if key not in self._any:
            self._any[key] = self.cp.new_bool_var(f"on_{stage}_{options[0]}_{options[-1]}")
            self.cp.add(sum(self.on[stage][d] for d in options) == self._any[key])
        return self._any[key]

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
        follows = [(a, b) for b, before in enumerate(self.units.before) for a in before]
        for a, b in (*follows, *self.units.order):
            for k in range(1, stages):
                cp.add_implication(self.reach[a][k], self.reach[b][k])
        self._columns = [[row[k] for row in self.reach] for k in range(stages)]

    def _add_options(self) -> None:
        cp, problem = self.cp, self.problem
        options, stages = range(problem.n_options), range(self.stages)
        self.on: list[list[Any]] = [
            [cp.new_bool_var(f"on_{k}_{d}") for d in options] for k in stages
        ]
        self.used: list[Any] = [cp.new_bool_var(f"used_{k}") for k in stages]
        for k in stages:
            cp.add(sum(self.on[k]) == self.used[k])
            members = self.weighted([1] * len(self.units), k)
            for unit in range(len(self.units)):
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
        """Whether the unit alone is above a limit on the option."""
        time = float(self.units.time_s[unit, option])
        sides = (self._period, self._latency)
        return any(side is not None and side.over(time, option) for side in sides)

    def _add_goal(self, ceiling: float, bits: int) -> None:
        objective, cp = self.problem.objective, self.cp
        self.scale = self._goal_scale(ceiling, bits)
        self.goal = cp.new_int_var(0, self.scale.most, "goal")
        if self._period is not None:
            add_period(self, self._period, self.goal if objective is Objective.PERIOD else None)
        if self._latency is not None:
            add_latency(self, self._latency, self.goal if objective is Objective.LATENCY else None)
        if objective is Objective.COPIES:
            cp.add(self.flows.copies().expression() <= self.goal)
        elif objective is Objective.MEMORY:
            cp.add(total_memory(self, self.scale).expression() <= self.goal)
        elif objective is Objective.DEVICES:
            cp.add(self._devices().expression() <= self.goal)
        cp.minimize(self.goal)

    def _goal_scale(self, ceiling: float, bits: int) -> Scale:
        for objective, side in (
            (Objective.PERIOD, self._period),
            (Objective.LATENCY, self._latency),
        ):
            if self.problem.objective is objective and side is not None:
                return side.scale
        if self.problem.objective is Objective.MEMORY:
            return memory_scale(self.problem, ceiling, bits)
        return counted(ceiling)

    def _devices(self) -> Linear:
        total = Linear()
        for options in self.on:
            for d, here in enumerate(options):
                total.add(int(self.problem.replicas[d]), here)
        return total

    def forbid(self, assignment: Assignment) -> None:
        """Take an assignment out of the model."""
        stage_of, placements = assignment
        inside = [(unit, stage_of[ops[0]]) for unit, ops in enumerate(self.units.members)]
        self.imply(
            inside, [self.on[k][options[0]].negated() for k, options in enumerate(placements)]
        )

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
