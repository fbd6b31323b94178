"""Tensors that no good assignment moves: their maker and readers share a stage.

Moving a tensor costs its sender and its receiver something. Where that much more than the least
that must be done anyway does not fit below the cut-off (the load bound of `bounds.Prices`, the end
or the link alone, the sum or the longest path of the latency), the tensor is not moved. The better
the incumbent, the more is found; this is fixing by reduced cost, as in integer programming.
"""

from __future__ import annotations

import numpy as np

from partitioner.problem import Bools, Floats, LatencyModel, Objective, Problem
from partitioner.solvers.bounds import Prices
from partitioner.solvers.limits import RELATIVE
from partitioner.solvers.reduce import Flow, Units, beside

__all__ = ["uncuttable"]

# Costs of all moves between all options, 8 bytes each, are looked at together.
_MOST = 4_000_000


def uncuttable(
    problem: Problem, units: Units, cutoff: float, prices: tuple[Prices, ...]
) -> list[tuple[int, ...]]:
    """Makers and readers of tensors that cannot be moved below the cut-off and within the caps."""
    flows = [flow for flow in units.flows if flow.producer >= 0 and flow.readers]
    options = problem.n_options
    if not flows or len(flows) * options * options > _MOST:
        return []
    amount = problem.amount[[flow.tensor for flow in flows]][:, None, None]
    send, recv, link = (
        cost.base_s[:-1, :-1] + amount * cost.per_unit_s[:-1, :-1]
        for cost in (problem.send, problem.recv, problem.link)
    )
    between = beside(problem) & _ends(units, flows)
    period_s = _limit(problem, cutoff, Objective.PERIOD)
    latency_s = _limit(problem, cutoff, Objective.LATENCY)
    dear = np.zeros(len(flows), dtype=np.bool_)
    if np.isfinite(period_s):
        dear |= _overloads(problem, send, recv, between, prices, period_s)
        dear |= _too_long(problem, units, flows, send, link, between, period_s)
    if np.isfinite(latency_s):
        dear |= _too_late(problem, units, flows, send + recv + link, between, latency_s)
    found = [(flow.producer, *flow.readers) for flow, d in zip(flows, dear, strict=True) if d]
    if np.isfinite(period_s):
        found += _unreceivable(problem, units, flows, recv, between, period_s)
    return found


def _limit(problem: Problem, cutoff: float, objective: Objective) -> float:
    """What the objective of this name must not exceed."""
    cap = problem.period_cap_s if objective is Objective.PERIOD else problem.latency_cap_s
    return (min(cutoff, cap) if problem.objective is objective else cap) * (1 + RELATIVE / 8)


def _ends(units: Units, flows: list[Flow]) -> Bools:
    """Options of maker and some reader of each tensor, shape (n_flows, n_options, n_options)."""
    makers = units.runs[[flow.producer for flow in flows]]
    readers = np.array([units.runs[list(flow.readers)].any(axis=0) for flow in flows])
    return np.asarray(makers[:, :, None] & readers[:, None, :])


def _least(cost: Floats, where: Bools) -> Floats:
    """Least cost of each tensor over the pairs of options allowed; inf where there are none."""
    return np.asarray(np.where(where, cost, np.inf).min(axis=(1, 2)))


def _overloads(
    problem: Problem,
    send: Floats,
    recv: Floats,
    between: Bools,
    prices: tuple[Prices, ...],
    period_s: float,
) -> Bools:
    """Whether a move's price and all work together exceed the price of all there is."""
    found = np.zeros(len(send), dtype=np.bool_)
    for price in prices:
        rate = (problem.uses @ price.resource + price.slot) / problem.replicas
        move = _least(send * rate[:, None] + recv * rate[None, :], between)
        work = float(price.work.sum()) * (1 - RELATIVE / 8)
        found |= work + move > price.total * period_s
    return found


def _too_long(
    problem: Problem,
    units: Units,
    flows: list[Flow],
    send: Floats,
    link: Floats,
    between: Bools,
    period_s: float,
) -> Bools:
    """Whether the maker with the send alone, or the link alone, exceeds the period."""
    maker = units.time_s[[flow.producer for flow in flows]] + problem.host_s
    busy = (np.where(np.isfinite(maker), maker, 0.0)[:, :, None] + send) / problem.replicas[:, None]
    return np.asarray(_least(np.maximum(busy, link), between) > period_s)


def _unreceivable(
    problem: Problem,
    units: Units,
    flows: list[Flow],
    recv: Floats,
    between: Bools,
    period_s: float,
) -> list[tuple[int, int]]:
    """Readers that exceed the period when they receive, with the makers."""
    least = np.where(between, recv, np.inf).min(axis=1)
    found = []
    for flow, entering in zip(flows, least, strict=True):
        for reader in flow.readers:
            busy = (units.time_s[reader] + problem.host_s + entering) / problem.replicas
            if float(busy.min()) > period_s:
                found.append((flow.producer, reader))
    return found


def _too_late(
    problem: Problem,
    units: Units,
    flows: list[Flow],
    move: Floats,
    between: Bools,
    latency_s: float,
) -> Bools:
    """Whether a move and the least of everything, or of a path through it, take too long."""
    shortest = units.time_s.min(axis=1)
    least = _least(move, between)
    if problem.latency_model is LatencyModel.SERIAL or not problem.contiguous:
        return np.asarray((float(shortest.sum()) + least) * (1 - RELATIVE / 8) > latency_s)
    head, tail = shortest.copy(), shortest.copy()
    for unit, before in enumerate(units.before):
        head[unit] += max((head[b] for b in before), default=0.0)
    for unit in reversed(range(len(units))):
        for b in units.before[unit]:
            tail[b] = max(tail[b], shortest[b] + tail[unit])
    # The tensor may be moved to any one of its readers.
    through = np.array([head[f.producer] + min(tail[r] for r in f.readers) for f in flows])
    return np.asarray((through + least) * (1 - RELATIVE / 8) > latency_s)
