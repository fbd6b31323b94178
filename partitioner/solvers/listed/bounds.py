"""Lower bounds on the latency ``list`` that hold for every assignment."""

from __future__ import annotations

import numpy as np
from scipy.optimize import linprog

from partitioner.problem import Floats, Problem

__all__ = ["load_bound", "path_bound", "tails"]

# Sums of floats taken in another order than `evaluation` takes them differ by less than this, and
# so does what a linear program takes for feasible.
_SLACK = 1.0 - 1e-9
_PROGRAM = 1.0 - 1e-6


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


def load_bound(problem: Problem) -> float:
    """Op times spread over all there is as evenly as it goes, seconds; 0 where that says nothing.

    A stage occupies its resources all the time, so that of each resource no more seconds are used
    than it has units times the latency.
    """
    runs, times = problem.runs(), problem.time_s
    ops, options = np.nonzero(runs)
    tight = np.flatnonzero(problem.uses.any(axis=0) & (problem.capacity > 0))
    if not len(tight) or not runs.any(axis=1).all():
        return 0.0
    pairs = np.arange(len(ops))
    once = np.zeros((problem.n_ops, len(pairs) + 1))
    once[ops, pairs] = 1.0
    used = np.zeros((len(tight), len(pairs) + 1))
    used[:, :-1] = problem.uses[options][:, tight].T * times[ops, options]
    used[:, -1] = -problem.capacity[tight]
    scale = float(times[runs].max())
    if scale <= 0:
        return 0.0
    used[:, :-1] /= scale
    cost = np.zeros(len(pairs) + 1)
    cost[-1] = 1.0
    found = linprog(cost, A_ub=used, b_ub=np.zeros(len(tight)), A_eq=once, b_eq=np.ones(len(once)))
    return float(found.fun) * scale * _PROGRAM if found.status == 0 else 0.0


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
