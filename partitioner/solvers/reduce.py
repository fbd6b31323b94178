"""Exact reductions: ops that must share a stage become one unit; equal options become a class.

Stages are numbered along the edges, so that whatever lies on a cycle once colocated ops are merged
must be in the same stage too: a unit is a strongly connected component of that merged graph. Where
stages are not contiguous, units are colocated ops alone, in the order of their first op.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

from partitioner.problem import Bools, Floats, Ints, Problem

__all__ = [
    "Assignment",
    "Flow",
    "Symmetry",
    "Units",
    "beside",
    "largest_stage_bytes",
    "most_stages",
    "reduce_ops",
    "repriced_units",
    "stages_of",
    "symmetry",
    "tight_pools",
    "times_used",
]

Assignment = tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]
"""Stage of each op, and the options of each stage."""


@dataclass(frozen=True, slots=True)
class Flow:
    """A tensor between units.

    Attributes
    ----------
    tensor : int
        Its index in the problem.
    producer : int
        The unit that makes it, -1 for a model input.
    readers : tuple of int
        Other units that read it.
    to_caller : bool
        Whether a unit's result goes to the caller.
    """

    tensor: int
    producer: int
    readers: tuple[int, ...]
    to_caller: bool


@dataclass(frozen=True, slots=True, eq=False)
class Units:
    """The problem's ops merged into units, in a topological order if the problem is contiguous.

    Attributes
    ----------
    members : tuple of tuple of int
        Ops of each unit.
    time_s : array, shape (n_units, n_options)
        Sum of op times; inf where an op may not or cannot run.
    live_bytes : array, shape (n_units,)
        Largest of the ops'.
    constant_bytes : array, shape (n_units,)
        Constants that only this unit reads.
    shared : tuple of (float, tuple of int)
        Bytes of the other constants with the units that read them.
    flows : tuple of Flow
        Tensors that may leave a unit or enter one.
    before : tuple of tuple of int
        Units that feed each unit directly.
    order : tuple of (int, int)
        Units whose stage may be asked not to come after that of another: one of the ways to
        number identical branches (see `reductions.twins`).
    runs : array of bool, shape (n_units, n_options)
        Where a unit can run.
    """

    members: tuple[tuple[int, ...], ...]
    time_s: Floats
    live_bytes: Floats
    constant_bytes: Floats
    shared: tuple[tuple[float, tuple[int, ...]], ...]
    flows: tuple[Flow, ...]
    before: tuple[tuple[int, ...], ...]
    order: tuple[tuple[int, int], ...] = ()
    runs: Bools = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "runs", np.isfinite(self.time_s))

    def __len__(self) -> int:
        return len(self.members)

    def ends(self) -> tuple[list[list[Flow]], list[list[Flow]]]:
        """Tensors that enter each unit, and those that leave it."""
        entering: list[list[Flow]] = [[] for _ in self.members]
        leaving: list[list[Flow]] = [[] for _ in self.members]
        for flow in self.flows:
            for reader in flow.readers:
                entering[reader].append(flow)
            if flow.producer >= 0:
                leaving[flow.producer].append(flow)
        return entering, leaving


def reduce_ops(problem: Problem) -> Units:
    """Merge ops that must share a stage.

    Returns
    -------
    Units
        `stages_of` brings an assignment of units back to ops.
    """
    unit_of, members = _components(problem)
    flows = []
    before: list[set[int]] = [set() for _ in members]
    for tensor, (maker, consumers) in enumerate(
        zip(problem.producer, problem.consumers, strict=True)
    ):
        producer = unit_of[maker] if maker >= 0 else -1
        readers = tuple(sorted({unit_of[c] for c in consumers} - {producer}))
        to_caller = bool(problem.to_caller[tensor]) and producer >= 0
        if readers or to_caller:
            flows.append(Flow(tensor, producer, readers, to_caller))
        if producer >= 0:
            for reader in readers:
                before[reader].add(producer)
    return Units(
        members=members,
        flows=tuple(flows),
        before=tuple(tuple(sorted(units)) for units in before),
        **_costs(problem, members),
    )


def repriced_units(problem: Problem, units: Units) -> Units:
    """The same units under the costs of another problem with the same graph and groups."""
    return replace(units, **_costs(problem, units.members))


def _costs(problem: Problem, members: tuple[tuple[int, ...], ...]) -> dict[str, Any]:
    """The parts of `Units` that are sums and maxima over ops."""
    ops = np.concatenate([np.array(group) for group in members])
    first = np.cumsum([0, *map(len, members)])[:-1]
    unit_of = np.empty(problem.n_ops, dtype=np.int64)
    unit_of[ops] = np.repeat(np.arange(len(members)), [len(group) for group in members])
    times = np.where(problem.runs(), problem.time_s, np.inf)
    own = np.zeros(len(members))
    shared = []
    for size, readers in zip(problem.constant_bytes, problem.constant_ops, strict=True):
        held = tuple(sorted({int(unit_of[op]) for op in readers}))
        if len(held) == 1:
            own[held[0]] += size
        elif held:
            shared.append((float(size), held))
    return {
        "time_s": np.add.reduceat(times[ops], first, axis=0),
        "live_bytes": np.maximum.reduceat(problem.live_bytes[ops], first),
        "constant_bytes": own,
        "shared": tuple(shared),
    }


def stages_of(units: Units, stage_of_unit: Sequence[int]) -> tuple[int, ...]:
    """Stage of each op, from the stage of each unit."""
    stages = [0] * sum(map(len, units.members))
    for ops, stage in zip(units.members, stage_of_unit, strict=True):
        for op in ops:
            stages[op] = int(stage)
    return tuple(stages)


def _components(problem: Problem) -> tuple[list[int], tuple[tuple[int, ...], ...]]:
    arcs = list(problem.edges) if problem.contiguous else []
    for group in problem.colocate:
        arcs += [(a, b) for a in group[:1] for b in group[1:]]
        arcs += [(b, a) for a in group[:1] for b in group[1:]]
    n = problem.n_ops
    rows, columns = (np.array([arc[i] for arc in arcs], dtype=np.int64) for i in (0, 1))
    graph = coo_matrix((np.ones(len(arcs)), (rows, columns)), shape=(n, n))
    _, label = connected_components(graph, directed=True, connection="strong")
    groups: dict[int, list[int]] = {}
    for op in range(n):
        groups.setdefault(int(label[op]), []).append(op)
    # Without an order of stages, merged ops may feed each other in a cycle; op order will do.
    order = _topological(problem, label, groups) if problem.contiguous else list(groups)
    unit_of = [0] * n
    for unit, key in enumerate(order):
        for op in groups[key]:
            unit_of[op] = unit
    return unit_of, tuple(tuple(groups[key]) for key in order)


def _topological(problem: Problem, label: Ints, groups: dict[int, list[int]]) -> list[int]:
    """Labels so that no edge goes back, as near to op order as that allows."""
    preds: dict[int, set[int]] = {key: set() for key in groups}
    for u, v in problem.edges:
        if label[u] != label[v]:
            preds[int(label[v])].add(int(label[u]))
    order: list[int] = []
    placed: set[int] = set()
    for key in sorted(groups, key=lambda k: groups[k][0]):
        stack = [key]
        while stack:
            top = stack[-1]
            missing = sorted(preds[top] - placed, key=lambda k: -groups[k][0])
            if top in placed:
                stack.pop()
            elif missing:
                stack.extend(missing)
            else:
                placed.add(top)
                order.append(top)
                stack.pop()
    return order


def most_stages(problem: Problem, *, limited: bool = True) -> int:
    """Largest number of stages that resources and `max_stages` allow, by a valid upper bound.

    Parameters
    ----------
    limited : bool
        False leaves `max_stages` out.
    """
    best = min(problem.max_stages, problem.n_ops) if limited else problem.n_ops
    usable = problem.uses[np.all(problem.uses <= problem.capacity, axis=1)]
    for resource in range(len(problem.capacity)):
        least = usable[:, resource].min(initial=np.iinfo(np.int64).max)
        if least > 0:
            best = min(best, int(problem.capacity[resource] // least))
    if len(usable) and (usable.sum(axis=1) > 0).all():
        best = min(best, int(problem.capacity.sum() // usable.sum(axis=1).min()))
    return best


def times_used(problem: Problem, most: int) -> Ints:
    """How often the resources allow each option, `most` times at most, shape (n_options,)."""
    fits = np.where(problem.uses > 0, problem.capacity // np.maximum(problem.uses, 1), most)
    return np.asarray(fits.min(axis=1, initial=most))


def beside(problem: Problem) -> Bools:
    """Options that two stages can be on at once, shape (n_options, n_options)."""
    together = problem.uses[:, None, :] + problem.uses[None, :, :]
    return np.asarray((together <= problem.capacity).all(axis=2))


def largest_stage_bytes(problem: Problem) -> float:
    """Bytes that no replica of any stage exceeds."""
    return (
        float(problem.constant_bytes.sum())
        + float(problem.live_bytes.max())
        + problem.queue_slots * float(problem.tensor_bytes.sum())
    )


def tight_pools(problem: Problem) -> tuple[int, ...]:
    """Memory pools that some assignment could overflow."""
    held = times_used(problem, most_stages(problem)) * problem.replicas
    most = np.bincount(problem.pool_of, held, minlength=len(problem.pool_bytes))
    over = most * largest_stage_bytes(problem) > problem.pool_bytes
    return tuple(np.flatnonzero(over).tolist())


@dataclass(frozen=True, slots=True)
class Symmetry:
    """Options that can be exchanged without changing anything.

    Attributes
    ----------
    classes : tuple of tuple of int
        Options by class, ascending.
    blocks : tuple of tuple of tuple of int
        For each class whose members occupy resources of their own: those resources by member.
    """

    classes: tuple[tuple[int, ...], ...]
    blocks: tuple[tuple[tuple[int, ...], ...], ...]

    def canonical(self, used: Sequence[int]) -> tuple[int, ...]:
        """One representative of all use vectors that are equal up to exchanging options."""
        key = [int(units) for units in used]
        for blocks in self.blocks:
            values = sorted((tuple(key[r] for r in block) for block in blocks), reverse=True)
            for block, value in zip(blocks, values, strict=True):
                for r, units in zip(block, value, strict=True):
                    key[r] = units
        return tuple(key)


def symmetry(problem: Problem) -> Symmetry:
    """Find the classes of exchangeable options.

    Two options are exchangeable when swapping them, with their resources and pools, leaves every
    array as it was. Swaps generate all permutations of a class.
    """
    classes: list[list[int]] = []
    blocks: list[list[tuple[int, ...]]] = []
    for option in range(problem.n_options):
        for members, own in zip(classes, blocks, strict=True):
            swap = _swap(problem, members[0], option)
            if swap is None or (own and own[0] != swap[0] and len(members) > 1):
                continue
            if len(members) == 1:
                own.append(swap[0])
            members.append(option)
            own.append(swap[1])
            break
        else:
            classes.append([option])
            blocks.append([])
    return Symmetry(
        tuple(map(tuple, classes)),
        tuple(tuple(own) for own in blocks if own and own[0]),
    )


def _swap(problem: Problem, a: int, b: int) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Resources that change places when options `a` and `b` do, or None if that changes more."""
    order = np.arange(problem.n_options + 1)
    order[[a, b]] = order[[b, a]]
    options = order[:-1]
    # Options that differ mostly do so in the first op, which spares a look at a large problem.
    if problem.time_s[0, a] != problem.time_s[0, b]:
        return None
    if not all(_same(array[:, a], array[:, b]) for array in (problem.time_s, problem.allowed)):
        return None
    for each in (problem.host_s, problem.replicas, problem.host_core):
        if not _same(each, each[options]):
            return None
    square = np.ix_(order, order)
    for cost in (problem.send, problem.recv, problem.link):
        for part in (cost.base_s, cost.per_unit_s):
            if not _same(part, part[square]):
                return None
    if not _same(problem.bus_of, problem.bus_of[square]):
        return None
    more = np.flatnonzero(problem.uses[a] > problem.uses[b])
    less = np.flatnonzero(problem.uses[a] < problem.uses[b])
    if len(more) != len(less):
        return None
    resources = np.arange(len(problem.capacity))
    resources[more], resources[less] = less, more
    pools = np.arange(len(problem.pool_bytes))
    pa, pb = problem.pool_of[a], problem.pool_of[b]
    pools[[pa, pb]] = pools[[pb, pa]]
    unchanged = (
        _same(problem.capacity, problem.capacity[resources])
        and _same(problem.uses, problem.uses[options][:, resources])
        and _same(problem.pool_bytes, problem.pool_bytes[pools])
        and _same(problem.pool_of, pools[problem.pool_of[options]])
    )
    return (_ints(more), _ints(less)) if unchanged else None


def _same(a: np.ndarray[tuple[int, ...], np.dtype[np.generic]], b: object) -> bool:
    return bool(np.array_equal(a, np.asarray(b)))


def _ints(values: Iterable[np.int64]) -> tuple[int, ...]:
    return tuple(int(value) for value in values)
