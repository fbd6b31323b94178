"""What one more stage may be and cost, for latency of the model 'atomic' over chains of downsets.

Ordered along its edges, every assignment is a chain of downsets, each step a stage. Where transfers
do not depend on who is at the other end, the busy time of a stage follows from the two downsets
around it: `Rules` holds the costs, `applies` says when this is so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from partitioner.problem import Floats, Ints, LatencyModel, Objective, Problem, TransferCost
from partitioner.solvers.bounds import hangs_on_both_ends
from partitioner.solvers.reduce import Units, beside, symmetry

__all__ = ["Kind", "Rules", "Wire", "applies", "make_rules"]


@dataclass(frozen=True, slots=True)
class Wire:
    """A tensor between units as the recursion sees it.

    Attributes
    ----------
    producer : int
        The unit that makes it; -1 when it is there from the start.
    readers : tuple of int
        Units that read it.
    tensor : int
        Index in the problem; -1 for the origin, a wire without cost to every unit that needs
        nothing else, which makes time zero a time like any other.
    """

    producer: int
    readers: tuple[int, ...]
    tensor: int


@dataclass(frozen=True, slots=True, eq=False)
class Kind:
    """Options that can be exchanged for one another.

    Attributes
    ----------
    options : tuple of int
        The options.
    single : bool
        True: takes nothing from any resource and transfers cost it nothing, so that stages of one
        unit are best.
    time_s : array, shape (n_units,)
        Seconds of each unit, inf where it cannot run.
    host_s : float
        Fixed seconds of a stage.
    most_s : float
        Busy time a stage may have.
    most_bytes : float
        Memory a stage may take.
    recv_s, open_s, closed_s : array, shape (n_wires,)
        Busy seconds to read a wire from outside; to make one that somebody outside reads; to make
        one that nobody else does but the caller.
    """

    options: tuple[int, ...]
    single: bool
    time_s: Floats
    host_s: float
    most_s: float
    most_bytes: float
    recv_s: Floats
    open_s: Floats
    closed_s: Floats


@dataclass(frozen=True, slots=True, eq=False)
class Rules:
    """Kinds of stages, and in which states of the resources each can still be had.

    Attributes
    ----------
    kinds : tuple of Kind
        Stages that can be made.
    used : array, shape (n_states, n_resources)
        Units of each resource taken in each state, equal options interchanged so that taken ones
        come first; state 0 is nothing taken. The last resource is the number of stages where that
        is limited.
    steps : tuple of array, each of shape (2, n_steps)
        For each kind: the states from which a stage of it can be made, and those it leads to.
    wires : tuple of Wire
        Tensors between units.
    wire_bytes : array, shape (n_wires,)
        Memory a wire takes in the queues of a stage that reads it.
    """

    kinds: tuple[Kind, ...]
    used: Ints
    steps: tuple[Ints, ...]
    wires: tuple[Wire, ...]
    wire_bytes: Floats

    @property
    def n_states(self) -> int:
        """Number of states."""
        return len(self.used)

    def options_of(self, problem: Problem, kinds: Sequence[int]) -> list[int]:
        """An option for each stage, from the kind of each stage in order."""
        taken = np.zeros_like(problem.capacity)
        left = list(problem.capacity)
        chosen = []
        for kind in kinds:
            fits = [d for d in self.kinds[kind].options if (problem.uses[d] + taken <= left).all()]
            # Members of a kind take units of their own or all the same ones, so the first will do.
            chosen.append(fits[0])
            taken = taken + problem.uses[fits[0]]
        return chosen


def applies(problem: Problem, units: Units) -> bool:
    """Whether a stage's busy time and memory follow from the downsets around it."""
    if problem.objective is not Objective.LATENCY:
        return False
    if problem.latency_model is not LatencyModel.ATOMIC or not problem.contiguous:
        return False
    if problem.link.base_s.any() or problem.link.per_unit_s.any():
        return False
    if np.isfinite(problem.period_cap_s) and not _period_is_busy(problem):
        return False
    if hangs_on_both_ends(problem) or not _apart(problem):
        return False
    return all(_simple(problem, units, kind) for kind in symmetry(problem).classes)


def make_rules(problem: Problem, units: Units) -> Rules:
    """Costs of stages and states of resources of a problem to which this applies.

    Parameters
    ----------
    problem, units
        The problem and its units.

    Returns
    -------
    Rules
        With the kinds in the order of their first options.
    """
    wires = tuple(_wires(units))
    groups = symmetry(problem).classes
    kinds = tuple(_kind(problem, units, group, wires) for group in groups)
    used, steps = _states(problem, units, groups)
    sizes = [problem.tensor_bytes[w.tensor] if w.tensor >= 0 else 0.0 for w in wires]
    wire_bytes = np.array(sizes) * problem.queue_slots
    return Rules(kinds, used, steps, wires, wire_bytes)


def _wires(units: Units) -> Iterator[Wire]:
    fed = {reader for flow in units.flows for reader in flow.readers}
    free = tuple(unit for unit in range(len(units)) if unit not in fed)
    if free:
        yield Wire(-1, free, -1)
    for flow in units.flows:
        yield Wire(flow.producer, flow.readers, flow.tensor)


def _period_is_busy(problem: Problem) -> bool:
    """Whether nothing but stages can set the period."""
    caller = problem.n_options
    costs = (
        *(part[caller] for part in (problem.send.base_s, problem.send.per_unit_s)),
        *(part[:, caller] for part in (problem.recv.base_s, problem.recv.per_unit_s)),
    )
    return not any(cost.any() for cost in costs) and bool((problem.host_core < 0).all())


def _apart(problem: Problem) -> bool:
    """Whether a stage neither sends per reader nor shares limited memory with others."""
    fits = beside(problem)
    sends = [part[:-1, :-1] for part in (problem.send.base_s, problem.send.per_unit_s)]
    if not problem.send_once and any(part[fits].any() for part in sends):
        return False
    pool = problem.pool_of
    shared = (fits & (pool[:, None] == pool[None, :])).any(axis=1)
    return not np.isfinite(problem.pool_bytes[pool[shared]]).any()


def _simple(problem: Problem, units: Units, group: tuple[int, ...]) -> bool:
    """Whether a kind is an ordinary one, or one of which stages of one unit are best."""
    if problem.uses[list(group)].any(axis=1).all():
        return True
    return problem.max_stages >= len(units) and _costless(problem, group[0])


def _costless(problem: Problem, option: int) -> bool:
    send, recv = problem.send, problem.recv
    ends = [
        send.base_s[option],
        send.per_unit_s[option],
        recv.base_s[:, option],
        recv.per_unit_s[:, option],
    ]
    return not problem.host_s[option] and not any(end.any() for end in ends)


def _kind(problem: Problem, units: Units, group: tuple[int, ...], wires: Sequence[Wire]) -> Kind:
    option, caller = group[0], problem.n_options
    others = np.flatnonzero(beside(problem)[option])
    other = int(others[0]) if len(others) else caller
    copies = int(problem.replicas[option])
    recv, opened, closed = (np.zeros(len(wires)) for _ in range(3))
    flows = {flow.tensor: flow for flow in units.flows}
    for w, wire in enumerate(wires):
        if wire.tensor < 0:
            continue
        amount = float(problem.amount[wire.tensor])
        recv[w] = problem.recv.seconds(caller if wire.producer < 0 else other, option, amount)
        if wire.producer >= 0:
            if flows[wire.tensor].to_caller:
                closed[w] = problem.send.seconds(option, caller, amount)
            opened[w] = _both(problem.send, option, other, amount, closed[w], problem.send_once)
    return Kind(
        options=group,
        single=not problem.uses[option].any(),
        time_s=units.time_s[:, option],
        host_s=float(problem.host_s[option]),
        most_s=problem.period_cap_s * copies,
        most_bytes=float(problem.pool_bytes[problem.pool_of[option]]) / copies,
        recv_s=recv,
        open_s=opened,
        closed_s=closed,
    )


def _both(
    send: TransferCost, option: int, other: int, amount: float, closed: float, once: bool
) -> float:
    opened = send.seconds(option, other, amount)
    return max(opened, closed) if once else opened + closed


def _states(
    problem: Problem, units: Units, groups: Sequence[tuple[int, ...]]
) -> tuple[Ints, tuple[Ints, ...]]:
    """States reachable by making stages, and the steps of each kind between them."""
    swaps = symmetry(problem)
    n = len(problem.capacity)
    counted = problem.max_stages < len(units)
    start = (0,) * (n + counted)
    found = {start: 0}
    queue = [start]
    steps: list[list[tuple[int, int]]] = [[] for _ in groups]
    for state in queue:
        for kind, group in enumerate(groups):
            for option in group:
                total = np.array(state[:n]) + problem.uses[option]
                stages = tuple(count + 1 for count in state[n:])
                if (total > problem.capacity).any() or stages > (problem.max_stages,):
                    continue
                after = (*swaps.canonical(total.tolist()), *stages)
                if after not in found:
                    found[after] = len(found)
                    queue.append(after)
                step = (found[state], found[after])
                if step not in steps[kind]:
                    steps[kind].append(step)
    used = np.array(list(found), dtype=np.int64).reshape(len(found), -1)
    return used, tuple(np.array(step, dtype=np.int64).reshape(-1, 2).T for step in steps)
