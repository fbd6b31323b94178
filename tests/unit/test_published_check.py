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
def check_solution() -> Any:
    sys.path.insert(0, str(BENCHMARKS))
    try:
        from published_check import check_solution
    finally:
        sys.path.remove(str(BENCHMARKS))
    return check_solution


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
def test_the_same_value_and_the_same_verdict(
    mode: str, tmp_path: Path, check_solution: Any
) -> None:
    rng = np.random.default_rng(5)
    latency, free = mode == "latency", mode == "free"
    verdicts = []
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
        checked = check_solution(graph, assignment, latency=latency, free=free)
        assert found.feasible == (not checked.broken), (found.violations, checked.broken)
        if found.feasible:
            assert found.value(problem.objective) == pytest.approx(checked.value)
        verdicts.append(found.feasible)
    assert 30 < sum(verdicts) < 140
