"""Reader and evaluation against the benchmark's checker, which shares no code with them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest

from partitioner.evaluation import evaluate
from partitioner.instance import read_instance
from partitioner.problem import Problem

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def checker() -> Any:
    sys.path.insert(0, str(BENCHMARKS))
    try:
        import published_check
    finally:
        sys.path.remove(str(BENCHMARKS))
    return published_check


def random_graph(rng: np.random.Generator) -> dict[str, Any]:
    n = int(rng.integers(1, 8))
    names = rng.permutation(n).tolist()  # ids in no order along the edges
    costs = rng.random(n).tolist()
    edges = [
        {"sourceId": names[i], "destId": names[j], "cost": costs[i]}
        for i in range(n)
        for j in range(i + 1, n)
        if rng.random() < 0.35
    ]
    nodes = [
        {
            "id": name,
            "supportedOnFpga": int(rng.random() < 0.9),
            "cpuLatency": float(rng.random() * 3),
            "fpgaLatency": float(rng.random()),
            "size": float(rng.integers(0, 3)),
            "colorClass": [None, None, None, 1, 2][rng.integers(5)],
        }
        for name in sorted(names)
    ]
    return {"maxFPGAs": 2, "maxCPUs": 1, "maxSizePerFPGA": 5.0, "nodes": nodes, "edges": edges}


def staged(problem: Problem, options: list[int], latency: bool) -> tuple[list[int], list[int]]:
    """Stages of an assignment: a device each, for latency a CPU node each; along the edges."""
    place = [
        (option, op if latency and problem.option_names[option].startswith("cpu") else -1)
        for op, option in enumerate(options)
    ]
    quotient = nx.DiGraph()
    quotient.add_nodes_from(place)
    quotient.add_edges_from((place[u], place[v]) for u, v in problem.edges if place[u] != place[v])
    cyclic = not nx.is_directed_acyclic_graph(quotient)
    order = list(quotient) if cyclic else list(nx.topological_sort(quotient))
    return [order.index(each) for each in place], [option for option, _ in order]


@pytest.mark.parametrize("mode", ["throughput", "free", "latency"])
def test_the_same_value_and_the_same_verdict(mode: str, tmp_path: Path, checker: Any) -> None:
    rng = np.random.default_rng(5)
    latency, free = mode == "latency", mode == "free"
    verdicts = []
    said: set[str] = set()
    for _ in range(150):
        graph = random_graph(rng)
        path = tmp_path / "g.json"
        path.write_text(json.dumps(graph), encoding="utf-8")
        problem = read_instance(path, "latency" if latency else None, free=free).problem
        options = rng.integers(0, 3, problem.n_ops).tolist()
        stages, used = staged(problem, options, latency)
        found = evaluate(problem, stages, [(option,) for option in used])
        assignment = {
            name: problem.option_names[option]
            for name, option in zip(problem.op_names, options, strict=True)
        }
        checked = checker.check_solution(graph, assignment, latency=latency, free=free)
        assert found.feasible == (not checked.broken), (found.violations, checked.broken)
        if found.feasible:
            assert found.value(problem.objective) == pytest.approx(checked.value)
            if latency:
                assert checker.critical_path(graph) <= checked.value * (1 + 1e-12)
        verdicts.append(found.feasible)
        said.update(text.split()[0] for text in checked.broken)
    assert 30 < sum(verdicts) < 140
    assert {"acc0", "colour", "node", *(["not"] if not free else [])} <= said


def test_a_critical_path_takes_the_quicker_device(checker: Any) -> None:
    times = [(3.0, 1.0), (0.5, 2.0), (4.0, 0.25)]  # 1 > 2, and 3 on its own
    nodes = [
        {"id": i, "cpuLatency": cpu, "fpgaLatency": accelerator, "supportedOnFpga": int(i != 3)}
        for i, (cpu, accelerator) in enumerate(times, start=1)
    ]
    edges = [{"sourceId": 1, "destId": 2, "cost": 9.0}]
    graph = {"maxFPGAs": 1, "maxCPUs": 1, "nodes": nodes, "edges": edges}
    assert checker.critical_path(graph) == 4.0
    assert checker.critical_path(graph | {"nodes": nodes[:2]}) == 1.5
    assert checker.critical_path(graph | {"nodes": nodes[:2], "maxFPGAs": 0}) == 3.5
