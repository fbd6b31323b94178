"""The problem as a mixed-integer linear program over slots.

A *slot* is one stage that may be there: each option has as many as its resources allow.
``place[v, a]`` puts op v in slot a; ``hop[t, a, b]`` is the product of the tensor's producer being
in a and one of its readers in b, linearized so that its sum over a covers every reader in b and
each stays below the producer's (F. Glover, E. Woolsey, Operations Research 22, 1974, on products of
binaries). All else is bounded from below by these and pushed down by what it costs. Order along the
edges, for a contiguous problem, is a linear ordering of the slots (M. Grötschel, M. Jünger,
G. Reinelt, Operations Research 32, 1984).
"""

from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np

from partitioner.problem import Floats, Problem
from partitioner.solvers.milp.program import Program, Sum
from partitioner.solvers.reduce import times_used

__all__ = ["Rows", "slots"]


def slots(problem: Problem) -> tuple[int, ...]:
    """Option of every slot, slots of an option side by side."""
    most = min(problem.max_stages, problem.n_ops)
    return tuple(np.repeat(np.arange(problem.n_options), times_used(problem, most)).tolist())


class Rows:
    """Variables and rows of a problem.

    Parameters
    ----------
    problem
        The problem.

    Attributes
    ----------
    program : Program
        Where they are.
    option : tuple of int, length n_slots
        Option of each slot.
    place : list of list of int, n_ops of n_slots
        Variable of each op in each slot, -1 where it cannot run.
    used : list of int, length n_slots
        Variable of each slot: at least 1 if an op is there.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem, self.program = problem, Program()
        self.option = slots(problem)
        self.all = range(len(self.option))
        self._first: dict[tuple[int, int], int] = {}
        self._add_places()
        self._add_limits()
        if problem.contiguous:
            self._add_order()
        else:
            self._add_names()
        self._add_hops()

    # Where ops go --------------------------------------------------------------------------

    def _add_places(self) -> None:
        program, problem = self.program, self.problem
        runs = problem.runs()
        self.place = [
            [program.variable(1, integer=True) if runs[op, d] else -1 for d in self.option]
            for op in range(problem.n_ops)
        ]
        self.used = [program.variable(1) for _ in self.all]
        nowhere = program.variable(0)
        for op, places in enumerate(self.place):
            once = Sum({nowhere: 1.0})  # a row even for an op that runs nowhere
            for slot in self.all:
                once.add(places[slot], 1.0)
                self.covers_place(self.used[slot], op, slot)
            program.row(once, 1.0, 1.0)
        for group in problem.colocate:
            for a, b in pairwise(group):
                for slot in self.all:
                    same = Sum()
                    same.add(self.place[a][slot], 1.0)
                    same.add(self.place[b][slot], -1.0)
                    program.row(same, 0.0, 0.0)

    def covers_place(self, variable: int, op: int, slot: int, factor: float = 1.0) -> None:
        """A variable is at least `factor` if the op is in the slot."""
        if self.place[op][slot] >= 0 and factor:
            self.program.covers(variable, {self.place[op][slot]: factor})

    def _add_limits(self) -> None:
        program, problem = self.program, self.problem
        program.at_most(dict.fromkeys(self.used, 1.0), float(problem.max_stages))
        for resource, capacity in enumerate(problem.capacity):
            taken = Sum()
            for slot, option in enumerate(self.option):
                taken.add(self.used[slot], float(problem.uses[option, resource]))
            program.at_most(taken, float(capacity))

    def _add_names(self) -> None:
        """Slots of one option are filled in the order of their first ops."""
        for a, b in pairwise(self.all):
            for op, places in enumerate(self.place if self.option[a] == self.option[b] else ()):
                before = Sum()
                before.add(places[b], 1.0)
                for other in range(op):
                    before.add(self.place[other][a], -1.0)
                self.program.at_most(before, 0.0)

    def _add_order(self) -> None:
        """``first[a, b]``: slot a comes before b. Slots of one option keep their order."""
        program = self.program
        pairs = combinations(self.all, 2)
        first = self._first = {pair: program.variable(1, integer=True) for pair in pairs}
        for a, b in first:
            if self.option[a] == self.option[b]:
                program.row({first[a, b]: 1.0}, 1.0, 1.0)
                if b == a + 1:
                    program.covers(self.used[a], {self.used[b]: 1.0})
        for a, b, c in combinations(self.all, 3):
            round_trip = {first[a, b]: 1.0, first[b, c]: 1.0, first[a, c]: -1.0}
            program.row(round_trip, 0.0, 1.0)
        for u, v in self.problem.edges:
            for (a, b), ahead in first.items():
                along, against = Sum({ahead: -1.0}), Sum({ahead: 1.0})
                along.add(self.place[u][a], 1.0)
                along.add(self.place[v][b], 1.0)
                against.add(self.place[u][b], 1.0)
                against.add(self.place[v][a], 1.0)
                program.at_most(along, 1.0)
                program.at_most(against, 2.0)

    # What moves ----------------------------------------------------------------------------

    def _add_hops(self) -> None:
        """Hops from slot to slot, and the slots that a model input enters (from -1)."""
        program, problem = self.program, self.problem
        self._hop: list[dict[tuple[int, int], int]] = []
        for producer, readers in zip(problem.producer, problem.consumers, strict=True):
            made = [-1] if producer < 0 else self.all
            hop = {(a, b): program.variable(1) for a in made for b in self.all if readers}
            for (a, _), each in hop.items():
                if producer >= 0:
                    inside = Sum()
                    inside.add(self.place[producer][a], -1.0)
                    inside.add(each, 1.0)
                    program.at_most(inside, 0.0)
            for reader in readers:
                for b in self.all:
                    if self.place[reader][b] >= 0:
                        short = Sum({hop[a, b]: -1.0 for a in made})
                        short.add(self.place[reader][b], 1.0)
                        program.at_most(short, 0.0)
            self._hop.append({(a, b): each for (a, b), each in hop.items() if a != b})

    def ends(self, tensor: int) -> list[tuple[int, int, int]]:
        """(from, to, variable) of all that a tensor may do; -1 is the caller."""
        problem = self.problem
        ends = [(a, b, each) for (a, b), each in self._hop[tensor].items()]
        producer = int(problem.producer[tensor])
        if problem.to_caller[tensor] and producer >= 0:
            ends += [(a, -1, self.place[producer][a]) for a in self.all]
        return [end for end in ends if end[2] >= 0]

    def read(self, values: Floats) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
        """Stages and placements of a solution, the stages numbered along the edges."""
        there = np.array(self.place)
        slot_of = np.where(there >= 0, values[there], -1.0).argmax(axis=1)
        ahead = np.zeros(len(self.option))
        for (a, b), first in self._first.items():
            ahead[b if values[first] > 0.5 else a] += 1
        order = [int(slot) for slot in np.argsort(ahead, kind="stable") if slot in slot_of]
        stages = tuple(order.index(slot) for slot in slot_of)
        return stages, tuple((self.option[slot],) for slot in order)
