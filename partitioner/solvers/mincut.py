"""Least serial latency over two options: an exact minimum cut, at any size.

Source: Stone, "Multiprocessor scheduling with the aid of network flow algorithms" (IEEE TSE
1977), section III; a tensor is a hyperedge and gets a node for each direction, so that a copy is
paid once however many ops read it.

With everything in a row, two stages on one option never beat one, so that an assignment is a set
of ops on the first option, and the rest on the second. Whatever the cut takes no notice of (memory,
resources, the caps, an order of stages) can only make an assignment dearer: its value is a bound
all the same, and its assignment is optimal when `evaluation` finds it feasible.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from ortools.graph.python import max_flow

from partitioner.errors import ProblemError
from partitioner.evaluation import evaluate
from partitioner.problem import Floats, Ints, LatencyModel, Objective, Problem, TransferCost
from partitioner.solvers.reduce import Assignment, Units, most_stages, stages_of, symmetry

__all__ = ["Cut", "applies", "minimum_cut"]


# Quanta that the largest cut of interest takes: a cut of half a million arcs, each rounded down,
# loses 1e-7 of it, and all arcs of 200,000 ops together stay below 64 bits.
_QUANTA = 1 << 42
# Each round's cut is the next one's largest of interest, for finer quanta; two nearly always do.
_ROUNDS = 4
_FINE = 1e-8
# Sums of floats taken in another order than `evaluation` takes them differ by less than this.
_SLACK = 1.0 - 1e-11
# Pairs of options that are tried one after another.
_MOST_PAIRS = 64


@dataclass(frozen=True, slots=True)
class Cut:
    """Result of the minimum cut.

    Attributes
    ----------
    assignment : tuple or None
        Stage of each op and placements, the best that is feasible by `evaluation`; None when the
        cut's breaks a rule that the cut takes no notice of.
    bound_s : float
        Proven lower bound on the latency, seconds; inf when no assignment exists.
    """

    assignment: Assignment | None
    bound_s: float


def applies(problem: Problem) -> bool:
    """Whether latency is serial and no assignment needs more than two options."""
    if problem.objective is not Objective.LATENCY:
        return False
    if problem.contiguous and problem.latency_model is not LatencyModel.SERIAL:
        return False
    if problem.latency_model is LatencyModel.LIST:
        return False
    usable = len(_usable(problem))
    return usable <= 2 or (most_stages(problem) <= 2 and usable * (usable - 1) <= 2 * _MOST_PAIRS)


def minimum_cut(problem: Problem, units: Units) -> Cut:
    """Solve for the least serial latency.

    Parameters
    ----------
    problem, units
        The problem and its units: nodes of the cut.

    Returns
    -------
    Cut
        The best over each option alone and each pair of options.

    Raises
    ------
    ProblemError
        If the objective is another, or more than two options may be used together.
    """
    if not applies(problem):
        raise ProblemError(
            "a minimum cut gives the least serial latency over two options; this problem has "
            f"{len(_usable(problem))} usable options, at most {most_stages(problem)} stages and "
            f"the objective {problem.objective.value}; use method 'auto'"
        )
    unit_of = np.array(stages_of(units, range(len(units))), dtype=np.int64)
    bound = float("inf")
    best: tuple[float, Assignment] | None = None
    for sides in _sides(problem):
        side, least = _cut(problem, unit_of, sides)
        bound = min(bound, least)
        for assignment in _assignments(problem, sides, side):
            value = evaluate(problem, *assignment).value(problem.objective)
            if value < float("inf") and (best is None or value < best[0]):
                best = (value, assignment)
    return Cut(None if best is None else best[1], bound)


def _usable(problem: Problem) -> list[int]:
    """Options that a stage can be on."""
    fits = np.all(problem.uses <= problem.capacity, axis=1) & problem.runs().any(axis=0)
    return [int(option) for option in np.flatnonzero(fits)]


def _sides(problem: Problem) -> Iterator[tuple[int, ...]]:
    """Single options and pairs, those that can stand together, one of each kind."""
    usable = _usable(problem)
    class_of = {
        option: number
        for number, members in enumerate(symmetry(problem).classes)
        for option in members
    }
    seen: set[tuple[int, ...]] = set()
    for size in range(1, min(2, most_stages(problem)) + 1):
        for sides in combinations(usable, size):
            kind = tuple(sorted(class_of[option] for option in sides))
            together = problem.uses[list(sides)].sum(axis=0) <= problem.capacity
            if kind not in seen and together.all():
                seen.add(kind)
                yield sides


def _assignments(
    problem: Problem, sides: tuple[int, ...], side: Ints | None
) -> Iterator[Assignment]:
    """The cut as stages; in both orders when stages have one."""
    if side is None:
        return
    used = np.unique(side)
    if len(used) == 1:
        yield (0,) * problem.n_ops, ((sides[int(used[0])],),)
        return
    yield tuple(side.tolist()), ((sides[0],), (sides[1],))
    if problem.contiguous:
        yield tuple((1 - side).tolist()), ((sides[1],), (sides[0],))


def _cut(problem: Problem, unit_of: Ints, sides: tuple[int, ...]) -> tuple[Ints | None, float]:
    """Side of each op and a proven bound, for a stage on each of `sides`."""
    n = int(unit_of.max()) + 1
    costs = np.array([_unary(problem, unit_of, n, option) for option in sides])
    host = float(problem.host_s[list(sides)].sum())
    if not np.isfinite(costs).any(axis=0).all():
        return None, float("inf")
    if len(sides) == 1:
        total = float(costs[0].sum()) + host + float(sum(_inputs(problem, sides[0])))
        return np.zeros(problem.n_ops, dtype=np.int64), total * _SLACK
    base = np.min(costs, axis=0)
    network = _Network(n)
    network.add_unary(costs - base)
    for (source, target), forward in (((0, 1), True), ((1, 0), False)):
        network.add_transfers(problem, unit_of, sides[source], sides[target], forward=forward)
        network.add_inputs(problem, unit_of, sides[target], forward=forward)
    first_side, flow = network.solve()
    side = np.where(first_side[unit_of], 0, 1)
    return side, (float(base.sum()) + host + flow) * _SLACK


def _unary(problem: Problem, unit_of: Ints, n: int, option: int) -> Floats:
    """Seconds of each node on an option: its ops, and what its outputs cost towards the caller."""
    seconds = np.where(problem.runs()[:, option], problem.time_s[:, option], np.inf)
    leaves = problem.to_caller & (problem.producer >= 0)
    caller = problem.n_options
    total = np.zeros(n)
    np.add.at(total, unit_of, seconds)
    for cost in (problem.send, problem.link):
        each = _seconds(problem, cost, option, caller)[leaves]
        np.add.at(total, unit_of[problem.producer[leaves]], each)
    return total


def _inputs(problem: Problem, option: int) -> Floats:
    """Seconds that each model input costs a stage on an option, shape (n_tensors,)."""
    caller = problem.n_options
    read = np.array([len(readers) > 0 for readers in problem.consumers], dtype=bool)
    cost = _seconds(problem, problem.recv, caller, option)
    cost = cost + _seconds(problem, problem.link, caller, option)
    return np.where((problem.producer < 0) & read, cost, 0.0)


def _moves(problem: Problem, source: int, target: int) -> Floats:
    """Seconds that each tensor costs from option to option, shape (n_tensors,)."""
    send = _seconds(problem, problem.send, source, target)
    if problem.send_once:
        # What the caller's copy costs is paid already; only a dearer send adds to it.
        caller = _seconds(problem, problem.send, source, problem.n_options)
        send = np.maximum(0.0, send - np.where(problem.to_caller, caller, 0.0))
    recv = _seconds(problem, problem.recv, source, target)
    return send + recv + _seconds(problem, problem.link, source, target)


def _seconds(problem: Problem, cost: TransferCost, source: int, target: int) -> Floats:
    return np.asarray(
        cost.base_s[source, target] + problem.amount * cost.per_unit_s[source, target]
    )


class _Network:
    """Arcs of the cut; nodes on the source's side are on the first option.

    Parameters
    ----------
    n : int
        Nodes of ops, numbered from 0; then come source, sink and those of tensors.
    """

    def __init__(self, n: int) -> None:
        self._n, self._source, self._sink = n, n, n + 1
        self._nodes = n + 2
        self._arcs: list[tuple[Ints, Ints, Floats]] = []

    def add_unary(self, costs: Floats) -> None:
        """Seconds of each node on the first and the second option, shape (2, n)."""
        for option in (0, 1):
            nodes = np.flatnonzero(costs[option] > 0)
            ends = (nodes, np.full(len(nodes), self._sink))
            if option == 1:
                ends = (np.full(len(nodes), self._source), nodes)
            self._arcs.append((*ends, costs[option, nodes]))

    def add_transfers(
        self, problem: Problem, unit_of: Ints, source: int, target: int, *, forward: bool
    ) -> None:
        """Tensors whose producer is on `source` and any reader on `target`."""
        moves = _moves(problem, source, target)
        chosen = np.flatnonzero((problem.producer >= 0) & (moves > 0))
        ends = unit_of[problem.producer[chosen]]
        self._add_hyperedges(problem, unit_of, chosen, ends, moves[chosen], forward=forward)

    def add_inputs(self, problem: Problem, unit_of: Ints, target: int, *, forward: bool) -> None:
        """Model inputs that any reader on `target` takes from the caller."""
        cost = _inputs(problem, target)
        chosen = np.flatnonzero(cost > 0)
        ends = np.full(len(chosen), self._source if forward else self._sink)
        self._add_hyperedges(problem, unit_of, chosen, ends, cost[chosen], forward=forward)

    def _add_hyperedges(
        self,
        problem: Problem,
        unit_of: Ints,
        tensors: Ints,
        ends: Ints,
        cost: Floats,
        *,
        forward: bool,
    ) -> None:
        """Cost when `ends` is on one side and any reader on the other (forward: the sink's)."""
        hubs = np.arange(self._nodes, self._nodes + len(tensors))
        self._nodes += len(tensors)
        readers = [unit_of[list(problem.consumers[t])] for t in tensors]
        many = np.repeat(hubs, [len(each) for each in readers])
        ops = np.concatenate(readers) if readers else np.zeros(0, dtype=np.int64)
        never = np.full(len(ops), np.inf)
        if forward:
            self._arcs += [(ends, hubs, cost), (many, ops, never)]
        else:
            self._arcs += [(hubs, ends, cost), (ops, many, never)]

    def solve(self) -> tuple[np.ndarray[tuple[int, ...], np.dtype[np.bool_]], float]:
        """Which op nodes are on the source's side, and a lower bound on the cut, seconds."""
        tails, heads, cost = (np.concatenate(part) for part in zip(*self._arcs, strict=True))
        ceiling = float(cost[np.isfinite(cost)].sum())
        first = np.zeros(self._nodes, dtype=np.bool_)
        bound = 0.0
        for _ in range(_ROUNDS):
            quantum = max(ceiling / _QUANTA, np.finfo(float).tiny)
            steps = np.minimum(np.floor(cost / quantum), 2 * _QUANTA).astype(np.int64)
            flow = max_flow.SimpleMaxFlow()
            flow.add_arcs_with_capacity(tails, heads, steps)
            status = flow.solve(self._source, self._sink)
            if status != flow.OPTIMAL:
                raise ProblemError(f"the maximum flow ended with status {status}")
            first[:] = False
            first[flow.get_source_side_min_cut()] = True
            value = float(cost[first[tails] & ~first[heads]].sum())
            bound = max(bound, float(flow.optimal_flow()) * quantum)
            if not _FINE * value < value - bound or not value < ceiling / 2:
                break
            ceiling = value
        return first[: self._n], bound
