"""Lower bounds on the latency ``list`` that hold for every assignment."""

from __future__ import annotations

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import coo_array

from partitioner.problem import Floats, Problem
from partitioner.solvers.listed.segments import Segment, segments

__all__ = ["load_bound", "path_bound", "tails"]

# Sums of floats taken in another order than `evaluation` takes them differ by less than this.
_SLACK = 1.0 - 1e-9
_TOLERANCE = 1e-7
_MOST_ENTRIES = 1_000_000


def path_bound(problem: Problem) -> float:
    """Longest path through the graph, every op and copy of it where that suits the path, seconds.

    An op's earliest end on an option is the largest, over what it reads, of the least over the
    maker's options of its earliest end there and the way from there, and its own time.
    """
    n, caller = problem.n_ops, problem.n_options
    times = np.where(problem.runs(), problem.time_s, np.inf)
    begin = np.broadcast_to(problem.host_s, (n, problem.n_options)).copy()
    bound = 0.0
    tensors: list[list[int]] = [[] for _ in range(n)]
    for tensor, maker in enumerate(problem.producer.tolist()):
        if maker >= 0:
            tensors[maker].append(tensor)
            continue
        way = _way(problem, tensor)[caller, :-1]
        # What a stage receives is behind its host time: both are charged to it.
        way = np.maximum(way, problem.host_s + _received(problem, tensor)[caller, :-1])
        for reader in problem.consumers[tensor]:
            begin[reader] = np.maximum(begin[reader], way)
    for op in range(n):
        end = begin[op] + times[op]
        bound = max(bound, float(end.min()))
        for tensor in tensors[op]:
            way = _way(problem, tensor)
            there = (end[:, None] + way[:-1, :-1]).min(axis=0)
            # In one stage nothing is moved.
            there = np.minimum(there, end)
            for reader in problem.consumers[tensor]:
                begin[reader] = np.maximum(begin[reader], there)
            if problem.to_caller[tensor]:
                bound = max(bound, float((end + way[:-1, caller]).min()))
    return bound * _SLACK


def tails(problem: Problem) -> Floats:
    """Least time from an op's end on an option until everything that needs it is done.

    Returns
    -------
    array, shape (n_ops, n_options)
    """
    times = np.where(problem.runs(), problem.time_s, np.inf)
    tail = np.zeros((problem.n_ops, problem.n_options))
    for tensor in sorted(range(problem.n_tensors), key=lambda t: -int(problem.producer[t])):
        maker = int(problem.producer[tensor])
        if maker < 0:
            continue
        way = _way(problem, tensor)
        if problem.to_caller[tensor]:
            tail[maker] = np.maximum(tail[maker], way[:-1, -1])
        for reader in problem.consumers[tensor]:
            rest = times[reader] + tail[reader]
            moved = (way[:-1, :-1] + rest[None, :]).min(axis=1)
            tail[maker] = np.maximum(tail[maker], np.minimum(moved, rest))
    return tail


def load_bound(problem: Problem, time_s: float) -> float:
    """Ops spread over all there is as evenly as it goes, part of the graph by part, seconds.

    A linear program: when each op begins, and which parts of it are where. A stage occupies its
    resources all the time, so that between two moments no more seconds of one are used than it has
    units times the time between.

    Returns
    -------
    float
        0 where that says nothing, or not within `time_s`.
    """
    runs, times = problem.runs(), problem.time_s
    scale = float(times[runs].max(initial=0.0))
    tight = np.flatnonzero(problem.uses.any(axis=0) & (problem.capacity > 0)).tolist()
    if scale <= 0 or not runs.any(axis=1).all() or time_s <= 0:
        return 0.0
    n = problem.n_ops
    ops, options = np.nonzero(runs)
    pairs, seconds = np.arange(len(ops)), times[ops, options] / scale
    of_op = np.split(pairs, np.flatnonzero(np.diff(ops)) + 1)
    # Columns: the parts, when each op begins, and the latency.
    begin, size = len(pairs), len(pairs) + n + 1
    entries: list[tuple[int, int, float]] = []
    row = 0

    def add(column: int, factor: float) -> None:
        entries.append((row, column, factor))

    def after(op: int, factor: float) -> None:
        """A multiple of the time at which an op ends; -1 is the beginning."""
        if op >= 0:
            add(begin + op, factor)
            for pair in of_op[op].tolist():
                add(pair, factor * float(seconds[pair]))

    for u, v in (*problem.edges, *((op, n) for op in range(n))):
        after(u, 1.0)
        add(begin + v, -1.0)
        row += 1
    whole = Segment(-1, n, tuple(range(n)))
    for each in (whole, *(s for s in segments(problem) if s != whole)):
        for resource in tight:
            units = float(problem.capacity[resource])
            for op in each.between:
                for pair in of_op[op].tolist():
                    add(pair, float(problem.uses[options[pair], resource]) * seconds[pair])
            after(each.first, units)
            add(begin + each.last, -units)
            row += 1
        if len(entries) > _MOST_ENTRIES:
            break
    rows, columns, factors = (np.array(each) for each in zip(*entries, strict=True))
    cost = np.zeros(size)
    cost[-1] = 1.0
    found = linprog(
        cost,
        A_ub=coo_array((factors, (rows, columns)), shape=(row, size)),
        b_ub=np.zeros(row),
        A_eq=coo_array((np.ones(len(pairs)), (ops, pairs)), shape=(n, size)),
        b_eq=np.ones(n),
        options={"time_limit": time_s},
    )
    if found.status != 0:
        return 0.0
    # What its tolerance of reduced costs can make of the columns at most.
    over = _TOLERANCE * float(np.abs(found.x).sum())
    return max(0.0, float(found.fun) - over) * scale * _SLACK


def _way(problem: Problem, tensor: int) -> Floats:
    """Seconds from the end of the op that makes a tensor until it has been received, by ends."""
    amount = problem.amount[tensor]
    way = problem.link.base_s + amount * problem.link.per_unit_s
    # The caller copies in time of its own.
    way[:-1] += (problem.send.base_s + amount * problem.send.per_unit_s)[:-1]
    way[:, :-1] += _received(problem, tensor)[:, :-1]
    return np.asarray(way)


def _received(problem: Problem, tensor: int) -> Floats:
    cost = problem.recv
    return np.asarray(cost.base_s + problem.amount[tensor] * cost.per_unit_s)
