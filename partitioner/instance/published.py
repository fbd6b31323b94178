"""The published placement format: nodes with two times, equal accelerators, CPUs.

Format and cost model: Tarnawski et al., "Efficient Algorithms for Device Placement of DNN Graph
Operators", NeurIPS 2020 (sections 3 and 4 and the description of their data files).

A device's load counts what its own copies cost, once for each tensor and device: an accelerator
pays for sending and receiving, a CPU pays nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import networkx as nx
import numpy as np

from partitioner.errors import ProblemError
from partitioner.problem import LatencyModel, Objective, Problem, TransferCost

__all__ = ["problem_from_published"]

# Problems hold tables of all pairs of devices, and solvers compare them.
_MOST_DEVICES = 256


@dataclass(frozen=True, slots=True)
class _Node:
    """A node of the file; times are inf where it cannot run."""

    cpu_s: float
    accelerator_s: float
    size_bytes: float
    colour: str | None


@dataclass(frozen=True, slots=True)
class _Devices:
    accelerators: int
    cpus: int
    budget_bytes: float

    @property
    def names(self) -> tuple[str, ...]:
        """Accelerators first."""
        accelerators = (f"acc{i}" for i in range(self.accelerators))
        return (*accelerators, *(f"cpu{i}" for i in range(self.cpus)))


def problem_from_published(
    data: Mapping[str, Any], *, latency: bool = False, free: bool = False
) -> Problem:
    """Build the problem that a published file describes.

    For throughput every device is one stage. For latency every accelerator is one stage that runs
    as a whole, and each node on the CPU is a stage of its own, any number of them at once, so that
    nodes of one colour share that option and not a stage.

    Parameters
    ----------
    data : mapping
        The parsed file.
    latency : bool
        Minimize one sample's latency instead of the largest load.
    free : bool
        Nodes of a device may lie anywhere (throughput only).

    Returns
    -------
    Problem
        Ops named by node id, in a topological order that is near the file's; the file's unit of
        time is taken for seconds.

    Raises
    ------
    ProblemError
        If a key is missing, of the wrong kind or out of range, an id is there twice, an edge goes
        nowhere, or edges form a cycle.
    """
    if latency and free:
        raise ProblemError(
            "the published latency visits every accelerator once, so its nodes cannot lie "
            "anywhere; use free with the throughput objective"
        )
    devices = _devices(data)
    nodes = _nodes(data)
    sources, targets = _edges(data, nodes)
    order = _topological(nodes, targets)
    place = {node: op for op, node in enumerate(order)}
    producers = [node for node in order if node in targets]
    listed = [nodes[node] for node in order]
    if latency:
        devices = _Devices(devices.accelerators, min(devices.cpus, 1), devices.budget_bytes)
    k, m = devices.accelerators, len(devices.names)
    return Problem(
        op_names=tuple(order),
        option_names=devices.names,
        time_s=np.array(
            [[node.accelerator_s] * k + [node.cpu_s] * devices.cpus for node in listed]
        ),
        allowed=np.ones((len(order), m), dtype=bool),
        host_s=np.zeros(m),
        uses=_uses(devices, limited_cpus=not latency),
        capacity=np.ones(m, dtype=np.int64),
        pool_of=np.arange(m),
        pool_bytes=np.array([devices.budget_bytes] * k + [np.inf] * devices.cpus),
        producer=np.array([place[node] for node in producers], dtype=np.int64),
        consumers=tuple(
            tuple(sorted({place[target] for target in targets[node]})) for node in producers
        ),
        to_caller=np.zeros(len(producers), dtype=bool),
        amount=np.array([sources[node] for node in producers], dtype=np.float64),
        tensor_bytes=np.zeros(len(producers)),
        send=_charged(m, k, sender=True),
        recv=_charged(m, k, sender=False),
        link=TransferCost.zero(m),
        bus_of=np.full((m + 1, m + 1), -1, dtype=np.int64),
        constant_bytes=np.array([node.size_bytes for node in listed]),
        constant_ops=tuple((op,) for op in range(len(order))),
        live_bytes=np.zeros(len(order)),
        max_stages=len(order) if latency else m,
        send_once=True,
        colocate=() if latency else _colours(listed),
        same_option=_colours(listed) if latency else (),
        contiguous=not free,
        objective=Objective.LATENCY if latency else Objective.PERIOD,
        latency_model=LatencyModel.ATOMIC,
    )


def _uses(devices: _Devices, *, limited_cpus: bool) -> np.ndarray[Any, np.dtype[np.int64]]:
    """A resource a device; a CPU that takes any number of stages occupies none."""
    uses = np.eye(len(devices.names), dtype=np.int64)
    if not limited_cpus:
        uses[devices.accelerators :] = 0
    return uses


def _charged(m: int, accelerators: int, *, sender: bool) -> TransferCost:
    """One unit a unit of cost to the accelerators at one end, nothing within a device."""
    per_unit = np.zeros((m + 1, m + 1))
    per_unit[:accelerators, :m] = 1.0
    np.fill_diagonal(per_unit, 0.0)
    return TransferCost(np.zeros((m + 1, m + 1)), per_unit if sender else per_unit.T)


def _colours(nodes: list[_Node]) -> tuple[tuple[int, ...], ...]:
    groups: dict[str, list[int]] = {}
    for op, node in enumerate(nodes):
        if node.colour is not None:
            groups.setdefault(node.colour, []).append(op)
    return tuple(tuple(group) for group in groups.values() if len(group) > 1)


def _topological(nodes: Mapping[str, _Node], targets: Mapping[str, list[str]]) -> list[str]:
    graph = nx.DiGraph()
    graph.add_nodes_from(nodes)
    graph.add_edges_from((a, b) for a, readers in targets.items() for b in readers)
    position = {node: i for i, node in enumerate(nodes)}
    try:
        return list(nx.lexicographical_topological_sort(graph, key=position.__getitem__))
    except nx.NetworkXUnfeasible as error:
        cycle = [str(a) for a, _ in nx.find_cycle(graph)]
        shown = " > ".join([*cycle[:8], *(["..."] if len(cycle) > 8 else []), cycle[0]])
        raise ProblemError(
            f"edges form a cycle of {len(cycle)}: {shown}; a model graph has none, remove one edge"
        ) from error


def _devices(data: Mapping[str, Any]) -> _Devices:
    devices = _Devices(
        accelerators=_count(data, "maxFPGAs"),
        cpus=_count(data, "maxCPUs"),
        budget_bytes=_number(data, "maxSizePerFPGA", "the file"),
    )
    found = devices.accelerators + devices.cpus
    if not found:
        raise ProblemError("maxFPGAs and maxCPUs are both 0; at least one device is needed")
    if found > _MOST_DEVICES:
        raise ProblemError(
            f"maxFPGAs and maxCPUs are {found} together; at most {_MOST_DEVICES} are taken (more "
            "than there are nodes are of no use)"
        )
    return devices


def _nodes(data: Mapping[str, Any]) -> dict[str, _Node]:
    """Nodes by id, in the file's order."""
    nodes: dict[str, _Node] = {}
    rows = _rows(data, "nodes")
    if not rows:
        raise ProblemError("'nodes' is empty; a graph of at least one node is needed")
    for index, row in enumerate(rows):
        name = _id(row, "id", f"nodes[{index}]")
        where = f"node {name}"
        if name in nodes:
            raise ProblemError(f"{where} is there twice (again as nodes[{index}]); ids are unique")
        if _flag(row, "isBackwardNode", where, False):
            raise ProblemError(
                f"{where} is a backward node; only inference graphs are read, export one"
            )
        supported = _flag(row, "supportedOnFpga", where, None)
        colour = row.get("colorClass")
        nodes[name] = _Node(
            cpu_s=_number(row, "cpuLatency", where),
            accelerator_s=_number(row, "fpgaLatency", where) if supported else math.inf,
            size_bytes=_number(row, "size", where),
            colour=None if colour is None else _id(row, "colorClass", where),
        )
    return nodes


def _edges(
    data: Mapping[str, Any], nodes: Mapping[str, _Node]
) -> tuple[dict[str, float], dict[str, list[str]]]:
    """Cost of each node's output, and who reads it."""
    costs: dict[str, float] = {}
    targets: dict[str, list[str]] = {}
    for index, row in enumerate(_rows(data, "edges")):
        where = f"edges[{index}]"
        source, target = (_id(row, key, where) for key in ("sourceId", "destId"))
        for key, end in (("sourceId", source), ("destId", target)):
            if end not in nodes:
                raise ProblemError(
                    f"{where} has {key} {end}, which is no node; add the node or drop the edge"
                )
        cost = _number(row, "cost", where)
        if costs.setdefault(source, cost) != cost:
            raise ProblemError(
                f"{where} from node {source} to {target} costs {cost:g}, another edge from there "
                f"{costs[source]:g}; all edges from a node carry its one output and need one cost"
            )
        targets.setdefault(source, []).append(target)
    return costs, targets


def _rows(data: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    rows = data.get(key)
    if not isinstance(rows, list):
        found = "missing" if key not in data else type(rows).__name__
        raise ProblemError(f"{key!r} is {found}; a list of objects is needed")
    for index, row in enumerate(rows):
        if not isinstance(row, dict):
            raise ProblemError(f"{key}[{index}] is {row!r:.40}; an object is needed")
    return rows


def _count(data: Mapping[str, Any], key: str) -> int:
    value = _number(data, key, "the file")
    if value != int(value):
        raise ProblemError(f"the file: {key!r} is {value}; a whole number is needed")
    return int(value)


def _number(row: Mapping[str, Any], key: str, where: str) -> float:
    if key not in row:
        raise ProblemError(f"{where}: the key {key!r} is missing; a number is needed")
    value = row[key]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ProblemError(f"{where}: {key!r} is {value!r:.40}; a number is needed")
    if not 0 <= value < math.inf or value > 1e300:
        raise ProblemError(
            f"{where}: {key!r} is {value!r:.40}; a finite number, zero or more, is needed"
        )
    return float(value)


def _flag(row: Mapping[str, Any], key: str, where: str, default: bool | None) -> bool:
    if key not in row and default is not None:
        return default
    value = row.get(key)
    if value is None or value not in (0, 1):
        found = "missing" if key not in row else repr(value)[:40]
        raise ProblemError(f"{where}: {key!r} is {found}; true or false is needed")
    return bool(value)


def _id(row: Mapping[str, Any], key: str, where: str) -> str:
    value = row.get(key)
    if isinstance(value, bool) or not isinstance(value, int | str):
        found = "missing" if key not in row else repr(value)[:40]
        raise ProblemError(f"{where}: {key!r} is {found}; a whole number or a text is needed")
    return str(value)
