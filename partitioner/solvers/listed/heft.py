"""Quick starts for the latency ``list``: ops go, one after the other, where they end first.

Sources: H. Topcuoglu, S. Hariri, M.-Y. Wu, "Performance-effective and low-complexity task
scheduling for heterogeneous computing" (IEEE TPDS 2002), HEFT; H. Arabnejad, J. G. Barbosa, "List
scheduling algorithm for heterogeneous systems by an optimistic cost table" (IEEE TPDS 2014), PEFT:
to an op's end on a device the least time is added that what follows takes from there. Ops are
placed by upward rank or in their own order, and are not moved into gaps, since the order on a stage
is theirs. What copies take of the sender after their own turn is left to the score.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from partitioner.problem import Problem, TransferCost
from partitioner.solvers.free.model import FreeModel
from partitioner.solvers.listed.bounds import tails

__all__ = ["starts"]


def starts(problem: Problem, model: FreeModel) -> Iterator[list[int]]:
    """Slots of the units by each combination of order and preference; those that are possible."""
    rest = np.where(np.isfinite(tails(problem)), tails(problem), 0.0)
    for order in (list(range(problem.n_ops)), _by_rank(problem)):
        for preference in (np.zeros_like(rest), rest):
            found = _placed(problem, model, order, preference.tolist())
            if found is not None:
                yield found


def _by_rank(problem: Problem) -> list[int]:
    """Ops by upward rank: mean times to the end of the graph, the longest first."""
    runs = problem.runs()
    time = np.where(runs, problem.time_s, 0.0).sum(axis=1) / np.maximum(1, runs.sum(axis=1))
    rank = time.copy()
    for tensor in sorted(range(problem.n_tensors), key=lambda t: -int(problem.producer[t])):
        maker = int(problem.producer[tensor])
        if maker < 0:
            continue
        amount = float(problem.amount[tensor])
        way = sum(
            float((cost.base_s + amount * cost.per_unit_s)[:-1, :-1].mean())
            for cost in (problem.send, problem.link, problem.recv)
        )
        for reader in problem.consumers[tensor]:
            rank[maker] = max(rank[maker], time[maker] + way + rank[reader])
    # Ops of equal rank, which take no time, stay in their order, which is topological.
    order: list[int] = np.argsort(-rank, kind="stable").tolist()
    return order


def _placed(
    problem: Problem, model: FreeModel, order: Sequence[int], rest: list[list[float]]
) -> list[int] | None:
    """Where each unit goes when its first op is placed; None if nothing is left for one."""
    unit_of = {op: unit for unit, ops in enumerate(model.units.members) for op in ops}
    option_of, times = model.option_of, problem.time_s.tolist()
    slot_of: list[int | None] = [None] * len(model.units)
    clock = [float(problem.host_s[option]) for option in option_of]
    left, stages = problem.capacity.copy(), problem.max_stages
    opened: set[int] = set()
    end = [0.0] * problem.n_ops
    read: list[list[int]] = [[] for _ in range(problem.n_ops)]
    for tensor, readers in enumerate(problem.consumers):
        for reader in readers:
            read[reader].append(tensor)
    way = [_table(problem, cost) for cost in (problem.send, problem.link, problem.recv)]

    def ends(op: int, slot: int) -> float:
        begin = clock[slot]
        for tensor in read[op]:
            maker = int(problem.producer[tensor])
            source = slot_of[unit_of[maker]] if maker >= 0 else None
            if maker >= 0 and source == slot:
                continue
            a = problem.n_options if source is None else option_of[source]
            sent = way[0][tensor][a][option_of[slot]] if maker >= 0 else 0.0
            carried = sent + way[1][tensor][a][option_of[slot]]
            there = (end[maker] if maker >= 0 else 0.0) + carried
            begin = max(begin, there) + way[2][tensor][a][option_of[slot]]
        return float(begin + times[op][option_of[slot]])

    for op in order:
        unit = unit_of[op]
        fixed = slot_of[unit]
        slots = (fixed,) if fixed is not None else model.slots_of[unit]
        able = [
            slot
            for slot in slots
            if slot in opened
            or ((problem.uses[option_of[slot]] <= left).all() and len(opened) < stages)
        ]
        if not able:
            return None
        when = {slot: ends(op, slot) for slot in able}
        best = min(able, key=lambda slot: when[slot] + rest[op][option_of[slot]])
        if best not in opened:
            opened.add(best)
            left = left - problem.uses[option_of[best]]
        slot_of[unit], clock[best], end[op] = best, when[best], when[best]
    return [slot for slot in slot_of if slot is not None]


def _table(problem: Problem, cost: TransferCost) -> list[list[list[float]]]:
    """Seconds by tensor and ends."""
    found = cost.base_s + problem.amount[:, None, None] * cost.per_unit_s
    return [[[float(c) for c in row] for row in each] for each in found]
