"""What the field does with the published instances, each scored by the same evaluation.

All but the expert splits cut one order of the nodes into blocks, one an accelerator, and leave the
CPU out. Nodes that must share a device are one item of the order.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import networkx as nx
import numpy as np

from partitioner import Problem, evaluate
from partitioner.solvers.reduce import Units, reduce_ops, stages_of

Cuts = list[int]
"""Ends of the blocks, the last one being the number of items; a block may be empty."""


@dataclass(frozen=True)
class Score:
    """A heuristic's value; inf with what is wrong."""

    value: float
    remark: str = ""

    def __str__(self) -> str:
        return f"{self.value:.3f}" if np.isfinite(self.value) else f"({self.remark})"


def heuristic_scores(problem: Problem, expert: Path | None) -> dict[str, Score]:
    """Largest load by each heuristic.

    Parameters
    ----------
    problem : Problem
        A throughput instance.
    expert : Path or None
        File of the expert split, where there is one.
    """
    units = reduce_ops(replace(problem, contiguous=True))
    # Accelerators come first and are equal; a CPU charges nothing for its copies.
    k = int((problem.send.per_unit_s > 0).any(axis=1).sum())
    times = [float(time) for time in units.time_s[:, 0]] if k else []
    scores = {}
    for name, rule in RULES.items():
        if not k or not np.isfinite(times).all():
            scores[name] = Score(float("inf"), "unsupported nodes")
            continue
        stage_of_unit = np.zeros(len(units), dtype=int)
        for stage, (start, stop) in enumerate(_blocks(rule(problem, units, times, k))):
            stage_of_unit[start:stop] = stage
        scores[name] = _score(problem, stages_of(units, stage_of_unit.tolist()), range(k))
    scores["expert"] = Score(float("inf"), "none") if expert is None else _expert(problem, expert)
    return scores


def _one(problem: Problem, units: Units, times: Sequence[float], k: int) -> Cuts:
    """Everything on one accelerator."""
    return [len(times)]


def _uniform(problem: Problem, units: Units, times: Sequence[float], k: int) -> Cuts:
    """Equal numbers of items."""
    return [round(len(times) * (block + 1) / k) for block in range(k)]


def _torchgpipe(problem: Problem, units: Units, times: Sequence[float], k: int) -> Cuts:
    """Blocks whose sizes differ by no more than one item, as torchgpipe balances by time.

    Barany and Grinberg, "Block Partitions of Sequences" (2013): as long as the largest block
    exceeds the smallest by more than the largest item, the smallest takes an item from its
    neighbour on the way to the largest. torchgpipe first moves the items' range to [0, 1].
    """
    n = len(times)
    span = max(times) - min(times)
    items = [(time - min(times)) / span if span else 0.0 for time in times]
    cuts = [n // k * (block + 1) for block in range(k - 1)] + [n]
    while True:
        sizes = [sum(items[start:stop]) for start, stop in _blocks(cuts)]
        largest = max(range(k), key=lambda block: (sizes[block], block))
        while largest is not None:
            sizes = [sum(items[start:stop]) for start, stop in _blocks(cuts)]
            smallest = min(range(k), key=lambda block: (sizes[block], block))
            if sizes[largest] <= sizes[smallest] + 1:
                return cuts
            giver = smallest - 1 if largest < smallest else smallest + 1
            if giver < smallest:
                cuts[giver] -= 1
            else:
                cuts[smallest] += 1
            if giver == largest:
                break


def _deepspeed(problem: Problem, units: Units, times: Sequence[float], k: int) -> Cuts:
    """Least largest block by time, as DeepSpeed's balanced partition finds by bisection to 1e-3.

    Each block takes what stays below the limit; the limit is the least for which k blocks suffice.
    """
    sums = np.concatenate([[0.0], np.cumsum(times)])

    def fill(limit: float) -> Cuts:
        cuts: Cuts = []
        start = 0
        for _ in range(k):
            start = int(np.searchsorted(sums, sums[start] + limit)) - 1
            cuts.append(start)
        return cuts

    low, high = sums[-1] / k, sums[-1] + 1e-3
    while high - low > 1e-3:
        middle = (low + high) / 2
        low, high = (low, middle) if fill(middle)[-1] == len(times) else (middle, high)
    return fill(high)


def _greedy(problem: Problem, units: Units, times: Sequence[float], k: int) -> Cuts:
    """Blocks filled one after the other until the next item would pass an equal share or memory."""
    share = sum(times) / k
    budget = float(problem.pool_bytes[0])
    cuts: Cuts = []
    load = held = 0.0
    for item, (time, size) in enumerate(zip(times, units.constant_bytes, strict=True)):
        if (load + time > share or held + size > budget) and load > 0 and len(cuts) < k - 1:
            cuts.append(item)
            load = held = 0.0
        load, held = load + time, held + float(size)
    return [*cuts, len(times)]


def _pipedream(problem: Problem, units: Units, times: Sequence[float], k: int) -> Cuts:
    """Best cuts, with copies, between nodes that all paths agree on.

    PipeDream (SOSP 2019, section 3.1) divides a chain by dynamic programming over its prefixes. A
    graph is made a chain here by cutting only beside nodes that are before or after every other,
    or without which the graph falls apart.
    """
    ends = _chain_ends(units)
    loads = _interval_loads(problem, units, times, ends)
    m = len(ends)
    best = np.full((k + 1, m + 1), np.inf)
    best[:, 0] = 0.0
    came = np.zeros((k + 1, m + 1), dtype=int)
    for block in range(1, k + 1):
        for j in range(1, m + 1):
            # Larger ones first would leave devices idle; ties take the longest last block.
            values = np.maximum(best[block - 1, :j], loads[:j, j])
            came[block, j] = int(np.argmin(values))
            best[block, j] = values[came[block, j]]
    cuts: Cuts = []
    j = m
    for block in range(k, 0, -1):
        cuts.append(ends[j - 1] if j else 0)
        j = came[block, j]
    return cuts[::-1]


RULES: dict[str, Callable[[Problem, Units, Sequence[float], int], Cuts]] = {
    "one accelerator": _one,
    "uniform": _uniform,
    "greedy": _greedy,
    "torchgpipe": _torchgpipe,
    "DeepSpeed": _deepspeed,
    "PipeDream-like": _pipedream,
}
"""How each cuts the order of items."""


def _blocks(cuts: Cuts) -> Iterator[tuple[int, int]]:
    return zip([0, *cuts[:-1]], cuts, strict=True)


def _chain_ends(units: Units) -> Cuts:
    """Ends of the links of the chain: before and after each unit at which branches meet."""
    n = len(units)
    graph = nx.Graph()
    graph.add_nodes_from(range(n))
    graph.add_edges_from((u, v) for v, before in enumerate(units.before) for u in before)
    reach = np.eye(n, dtype=bool)
    for v, before in enumerate(units.before):
        for u in before:
            reach[:, v] |= reach[:, u]
    meeting = {*nx.articulation_points(graph), *np.flatnonzero((reach | reach.T).all(axis=0))}
    return sorted({n, *(int(u) for u in meeting), *(int(u) + 1 for u in meeting)} - {0})


def _interval_loads(
    problem: Problem, units: Units, times: Sequence[float], ends: Cuts
) -> np.ndarray:
    """Load of links i to j - 1 on one accelerator, shape (m + 1, m + 1); inf where too large."""
    m = len(ends)
    link_of = np.searchsorted(ends, np.arange(len(units)), side="right")
    time, size = (
        np.concatenate([[0.0], np.cumsum(np.bincount(link_of, weights, m))])
        for weights in (times, units.constant_bytes)
    )
    loads = np.full((m + 1, m + 1), np.inf)
    for i in range(m):
        copies = np.zeros(m + 1)
        for flow in units.flows:
            made = link_of[flow.producer]
            readers = sorted({int(link_of[reader]) for reader in flow.readers})
            cost = float(problem.amount[flow.tensor])
            if made >= i and readers:
                # Sent while the block ends between its maker and its last reader.
                copies[made + 1 : readers[-1] + 1] += cost
            elif made < i and readers and readers[-1] >= i:
                copies[next(r for r in readers if r >= i) + 1 :] += cost
        fits = size - size[i] <= problem.pool_bytes[0] * (1 + 1e-9)
        loads[i] = np.where(fits, time - time[i] + copies, np.inf)
        loads[i, : i + 1] = np.inf
    return loads


def _score(problem: Problem, stage_of: Sequence[int], options: Sequence[int]) -> Score:
    """Value of the assignment, stage i on the i-th of `options`; empty stages are left out."""
    used = sorted(set(stage_of))
    stages = [used.index(stage) for stage in stage_of]
    found = evaluate(problem, stages, [(options[stage],) for stage in used])
    if found.feasible:
        return Score(found.value(problem.objective))
    wrong = found.violations[0]
    return Score(float("inf"), "over memory" if "memory" in wrong else wrong)


def _expert(problem: Problem, path: Path) -> Score:
    """The split that a person made, with its devices in an order along the edges."""
    data = json.loads(path.read_text(encoding="utf-8"))
    device_of = {
        str(node): (kind, index)
        for kind in ("fpgas", "cpus")
        for index, device in enumerate(data[kind])
        for node in device["nodes"]
    }
    missing = [name for name in problem.op_names if name not in device_of]
    if missing:
        return Score(float("inf"), f"{len(missing)} nodes unassigned")
    devices = [device_of[name] for name in problem.op_names]
    quotient = nx.DiGraph()
    quotient.add_nodes_from(sorted(set(devices)))
    quotient.add_edges_from(
        (devices[u], devices[v]) for u, v in problem.edges if devices[u] != devices[v]
    )
    if not nx.is_directed_acyclic_graph(quotient):
        if problem.contiguous:
            return Score(float("inf"), "not contiguous")
        order = list(quotient)
    else:
        order = list(nx.topological_sort(quotient))
    option = {
        device: problem.option_names.index(f"{'acc' if device[0] == 'fpgas' else 'cpu'}{device[1]}")
        for device in order
    }
    stages = [order.index(device) for device in devices]
    return _score(problem, stages, [option[device] for device in order])
