"""A solution file scored from the instance file alone, by the format's own definitions.

It shares no code with the solvers, the evaluation or the reader of instances, and so checks that
all of them mean what the format means.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import networkx as nx

Graph = Mapping[str, Any]


@dataclass(frozen=True)
class Checked:
    """The value of an assignment and the rules that it breaks."""

    value: float
    broken: tuple[str, ...]


def check_solution(
    graph: Graph, assignment: Mapping[str, str], *, latency: bool, free: bool
) -> Checked:
    """Score an assignment.

    Parameters
    ----------
    graph : mapping
        The parsed instance file.
    assignment : mapping of str to str
        Device of each node id: ``acc0``, ``acc1``, ..., ``cpu0``, ...
    latency : bool
        One sample's latency instead of the largest load.
    free : bool
        Whether a device's nodes may lie anywhere.
    """
    device = {node["id"]: assignment[str(node["id"])] for node in graph["nodes"]}
    broken = list(_broken(graph, device))
    quotient = _quotient(graph, device, latency)
    if not nx.is_directed_acyclic_graph(quotient) and (latency or not free):
        return Checked(float("inf"), (*broken, "not contiguous"))
    value = _latency(graph, device, quotient) if latency else max(_loads(graph, device).values())
    return Checked(value, tuple(broken))


def _broken(graph: Graph, device: Mapping[Any, str]) -> list[str]:
    broken = []
    allowed = {
        *(f"acc{i}" for i in range(graph["maxFPGAs"])),
        *(f"cpu{i}" for i in range(graph["maxCPUs"])),
    }
    broken += [f"no device {name}" for name in sorted(set(device.values()) - allowed)]
    held: dict[str, float] = {}
    colours: dict[Any, set[str]] = {}
    for node in graph["nodes"]:
        name = device[node["id"]]
        held[name] = held.get(name, 0.0) + node["size"]
        if name.startswith("acc") and not node["supportedOnFpga"]:
            broken.append(f"node {node['id']} cannot run on {name}")
        if node.get("colorClass") is not None:
            colours.setdefault(node["colorClass"], set()).add(name)
    limit = graph["maxSizePerFPGA"] * (1 + 1e-9)
    broken += [f"{d} over memory" for d, b in held.items() if d.startswith("acc") and b > limit]
    broken += [f"colour {c} on {len(d)} devices" for c, d in colours.items() if len(d) > 1]
    return broken


def _quotient(graph: Graph, device: Mapping[Any, str], latency: bool) -> nx.DiGraph:
    """Devices and the edges between them; for latency every node on a CPU is a device."""

    def place(node: Any) -> Any:
        return node if latency and device[node].startswith("cpu") else device[node]

    quotient = nx.DiGraph()
    quotient.add_nodes_from(place(node["id"]) for node in graph["nodes"])
    ends = ((place(edge["sourceId"]), place(edge["destId"])) for edge in graph["edges"])
    quotient.add_edges_from((a, b) for a, b in ends if a != b)
    return quotient


def _loads(graph: Graph, device: Mapping[Any, str]) -> dict[str, float]:
    loads = dict.fromkeys(device.values(), 0.0)
    for node in graph["nodes"]:
        name = device[node["id"]]
        loads[name] += node["fpgaLatency" if name.startswith("acc") else "cpuLatency"]
    paid = set()
    for edge in graph["edges"]:
        source, target = device[edge["sourceId"]], device[edge["destId"]]
        if source != target:
            for name in (source, target):
                if name.startswith("acc") and (edge["sourceId"], name) not in paid:
                    paid.add((edge["sourceId"], name))
                    loads[name] += edge["cost"]
    return loads


def _latency(graph: Graph, device: Mapping[Any, str], quotient: nx.DiGraph) -> float:
    loads = _loads(graph, device)
    cpu = {node["id"]: node["cpuLatency"] for node in graph["nodes"]}
    return _slowest_path(quotient, {p: cpu[p] if p in cpu else loads[p] for p in quotient})


def critical_path(graph: Graph) -> float:
    """Time of the slowest path when each node runs where it is quickest and nothing is moved."""
    quickest = {
        node["id"]: min(
            node["cpuLatency"] if graph["maxCPUs"] else float("inf"),
            node["fpgaLatency"] if graph["maxFPGAs"] and node["supportedOnFpga"] else float("inf"),
        )
        for node in graph["nodes"]
    }
    edges = nx.DiGraph()
    edges.add_nodes_from(quickest)
    edges.add_edges_from((edge["sourceId"], edge["destId"]) for edge in graph["edges"])
    return _slowest_path(edges, quickest)


def _slowest_path(graph: nx.DiGraph, time: Mapping[Any, float]) -> float:
    ready: dict[Any, float] = {}
    for node in nx.topological_sort(graph):
        start = max((ready[before] for before in graph.predecessors(node)), default=0.0)
        ready[node] = start + time[node]
    return max(ready.values())
