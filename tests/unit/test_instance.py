from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from problem_builder import build, uniform

from partitioner.errors import InputError, ProblemError
from partitioner.evaluation import evaluate
from partitioner.instance import (
    no_solution_file,
    problem_from_json,
    problem_to_json,
    read_instance,
    solution_file,
    write_problem,
)
from partitioner.problem import LatencyModel, Objective, Problem, Solution, SolveStats, Status
from partitioner.solvers import solve


def node(name: Any, cpu: float = 10.0, accelerator: float = 1.0, **fields: Any) -> dict[str, Any]:
    base = {"id": name, "supportedOnFpga": 1, "cpuLatency": cpu, "fpgaLatency": accelerator}
    return base | {"size": 1.0, "isBackwardNode": False} | fields


def edge(source: Any, target: Any, cost: float = 0.5) -> dict[str, Any]:
    return {"sourceId": source, "destId": target, "cost": cost}


def graph(**fields: Any) -> dict[str, Any]:
    """Two accelerators of 3 bytes and a CPU; 7 feeds 3 and 5, which feed 9."""
    base = {
        "maxFPGAs": 2,
        "maxCPUs": 1,
        "maxSizePerFPGA": 3.0,
        "nodes": [node(9), node(3, 20.0, 2.0), node(5), node(7, 30.0, 4.0)],
        "edges": [edge(7, 3), edge(7, 5), edge(3, 9, 0.25), edge(5, 9, 0.125)],
    }
    return base | fields


@pytest.fixture
def read(tmp_path: Path) -> Any:
    """Writes data to a file and reads it as an instance."""

    def write_and_read(data: Any, **options: Any) -> Any:
        path = tmp_path / "graph.json"
        path.write_text(data if isinstance(data, str) else json.dumps(data), encoding="utf-8")
        return read_instance(path, **options)

    return write_and_read


def value(problem: Problem, stages: list[int], options: list[int]) -> float:
    evaluation = evaluate(problem, stages, [(option,) for option in options])
    assert evaluation.violations == ()
    return evaluation.value(problem.objective)


# The published format


def test_the_order_is_along_the_edges(read: Any) -> None:
    instance = read(graph())
    problem = instance.problem
    assert (instance.name, instance.published) == ("graph", True)
    assert problem.op_names == ("7", "3", "5", "9")
    assert problem.option_names == ("acc0", "acc1", "cpu0")
    assert problem.edges == ((0, 1), (0, 2), (1, 3), (2, 3))
    assert problem.contiguous
    assert problem.max_stages == 3


def test_an_output_is_paid_once_at_both_ends(read: Any) -> None:
    problem = read(graph()).problem
    # 7 on acc0; 3 and 5 on acc1, which share what 7 made; 9 on the CPU, which pays nothing.
    stages = evaluate(problem, [0, 1, 1, 2], [(0,), (1,), (2,)])
    assert stages.busy_s == ((4 + 0.5,), (2 + 1 + 0.5 + 0.25 + 0.125,), (10.0,))
    assert stages.pool_bytes == (1.0, 2.0, 1.0)
    # With a third place 7 still sends once.
    assert evaluate(problem, [0, 1, 2, 2], [(0,), (1,), (2,)]).busy_s[0] == (4.5,)


def test_memory_is_the_sum_of_sizes_and_the_cpu_has_no_limit(read: Any) -> None:
    problem = read(graph(maxSizePerFPGA=2.0)).problem
    assert (
        "memory pool 0 needs 4 bytes; its budget is 2"
        in evaluate(problem, [0] * 4, [(0,)]).violations
    )
    assert value(problem, [0] * 4, [2]) == 70.0


def test_free_lets_a_device_lie_on_both_sides(read: Any) -> None:
    problem = read(graph(), free=True).problem
    assert not problem.contiguous
    assert value(problem, [0, 1, 1, 0], [0, 1]) == 5.0 + 0.5 + 0.25 + 0.125


def test_latency_follows_the_published_recursion(read: Any) -> None:
    data = graph(
        maxCPUs=8,
        nodes=[node(9, 1.0), node(3, 2.0), node(5, 0.75), node(7, 3.0), node(4, 7.0, 5.0)],
        edges=[*graph()["edges"], edge(4, 9, 2.0)],
    )
    problem = read(data, objective="latency").problem
    assert problem.option_names == ("acc0", "acc1", "cpu0")
    assert (problem.objective, problem.latency_model) == (Objective.LATENCY, LatencyModel.ATOMIC)
    assert problem.op_names == ("7", "3", "5", "4", "9")
    # 7, 5 and 4 on the CPU at their own times; 3 alone on acc0; 9 waits for the slowest, 4.
    assert value(problem, [0, 1, 2, 3, 4], [2, 0, 2, 2, 2]) == 7.0 + 1.0
    # 3 and 9 as a whole on acc0: nothing of it starts before 4 is there.
    assert value(problem, [0, 3, 1, 2, 3], [2, 2, 2, 0]) == 7 + (0.5 + 0.125 + 2.0) + 2
    # 7 to acc0 hands over when it is whole: 1 + 0.5, then 3 on acc1: receives, runs, sends.
    assert value(problem, [0, 1, 2, 3, 4], [0, 1, 2, 2, 2]) == 8.0


def test_colours_stay_together(read: Any) -> None:
    nodes = [node(9, colorClass=4), node(3), node(5, colorClass=None), node(7, colorClass=4)]
    problem = read(graph(nodes=nodes)).problem
    assert problem.colocate == ((0, 3),)
    split = evaluate(problem, [0, 1, 1, 2], [(0,), (1,), (2,)])
    assert split.violations == ("ops 7, 9 must share a stage",)


@pytest.mark.parametrize(
    ("cpu", "colours"),
    [
        # 1 > 2 > 3 > 4, and 2 > 4
        ([0, 5, 0, 5], [7, 7, 7, None]),  # weights, the node, its output
        ([0, 5, 5, 0], [None, 7, 7, None]),  # two nodes that take time
        ([0, 0, 5, 0], [None, 7, 7, None]),  # 4 can have what 2 made before 3 is done
        ([5, 0, 5, 0], [7, 7, 8, 8]),
        ([0, 0, 5, 0], [8, 7, 7, 8]),
    ],
)
def test_colours_share_a_device_and_on_a_cpu_no_stage(
    read: Any, cpu: list[float], colours: list[int | None]
) -> None:
    nodes = [
        node(i + 1, float(time), colorClass=colour)
        for i, (time, colour) in enumerate(zip(cpu, colours, strict=True))
    ]
    data = graph(nodes=nodes, edges=[edge(1, 2), edge(2, 3), edge(3, 4), edge(2, 4)])
    for free in (False, True):
        problem = read(data, free=free).problem
        assert len(problem.colocate) == len({c for c in colours if c is not None})
        assert problem.same_option == ()
    problem = read(data, objective="latency").problem
    assert problem.colocate == ()
    every = solve(problem, method="brute")
    found = solve(problem)
    assert found.stats.status is Status.OPTIMAL
    assert found.stats.objective == pytest.approx(every.stats.objective, rel=1e-6)
    for group in problem.same_option:
        assert len({found.placements[found.stage_of[op]] for op in group}) == 1


def test_what_an_accelerator_does_not_support(read: Any) -> None:
    nodes = [node(9), node(3, supportedOnFpga=False), node(5), node(7)]
    del nodes[1]["fpgaLatency"]
    problem = read(graph(nodes=nodes)).problem
    assert problem.runs()[1].tolist() == [False, False, True]


def test_without_accelerators_the_cpu_runs_all(read: Any) -> None:
    problem = read(graph(maxFPGAs=0)).problem
    assert problem.option_names == ("cpu0",)
    solution = solve(problem)
    assert (solution.stats.status, solution.stats.objective) == (Status.OPTIMAL, 70.0)


def test_one_node(read: Any) -> None:
    solution = solve(read(graph(nodes=[node("only")], edges=[])).problem)
    assert (solution.stats.status, solution.stats.objective) == (Status.OPTIMAL, 1.0)


def test_ids_may_be_texts(read: Any) -> None:
    data = graph(nodes=[node("b"), node("a")], edges=[edge("a", "b")])
    assert read(data).problem.op_names == ("a", "b")


def test_the_same_edge_twice_is_one(read: Any) -> None:
    data = graph(edges=[edge(7, 3), edge(7, 3)])
    assert read(data).problem.edges == ((2, 3),)


def test_costs_of_many_magnitudes(read: Any) -> None:
    """The best, found by trying all, to 1e-6 although costs span 27 powers of ten."""
    times = [1e-9, 3.0, 1e18, 2e-9, 7e17, 5e3]
    nodes = [node(i, 4 * time, time) for i, time in enumerate(times)]
    edges = [edge(i, i + 1, cost) for i, cost in enumerate([1e18, 1e-9, 5e16, 1.0, 1e-3])]
    problem = read(graph(nodes=nodes, edges=edges)).problem
    best = solve(problem, method="brute").stats.objective
    found = solve(problem)
    assert found.stats.status is Status.OPTIMAL
    assert found.stats.objective == pytest.approx(best, rel=1e-6)
    assert found.stats.bound <= best


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"nodes": []}, "'nodes' is empty"),
        ({"nodes": {}}, "'nodes' is dict; a list of objects is needed"),
        ({"nodes": [node(1), 5]}, "nodes[1] is 5; an object is needed"),
        ({"edges": None}, "'edges' is NoneType; a list"),
        ({"edges": [edge(7, 3), edge(3, 5), edge(5, 7)]}, "edges form a cycle of 3: "),
        ({"edges": [edge(7, 7)]}, "edges form a cycle of 1: 7 > 7; "),
        ({"nodes": [node(7), node(3), node(7)]}, "node 7 is there twice (again as nodes[2])"),
        ({"nodes": [node(7), node("7")]}, "node 7 is there twice"),
        ({"edges": [edge(7, 3), edge(7, 11)]}, "edges[1] has destId 11, which is no node"),
        ({"edges": [edge(12, 3)]}, "edges[0] has sourceId 12, which is no node"),
        ({"edges": [edge(7, 3), edge(7, 5, 2)]}, "edges[1] from node 7 to 5 costs 2, another"),
        ({"edges": [edge(7, 3, -1)]}, "edges[0]: 'cost' is -1; a finite number, zero or more"),
        ({"edges": [edge(7, 3, math.nan)]}, "edges[0]: 'cost' is nan; a finite number"),
        ({"edges": [{"sourceId": 7, "cost": 1}]}, "edges[0]: 'destId' is missing"),
        ({"nodes": [node(7, math.inf)]}, "node 7: 'cpuLatency' is inf; a finite number"),
        ({"nodes": [node(7, -2.5)]}, "node 7: 'cpuLatency' is -2.5; a finite number"),
        ({"nodes": [node(7, 10**400)]}, "node 7: 'cpuLatency' is 1000"),
        ({"nodes": [node(7, 1, math.nan)]}, "node 7: 'fpgaLatency' is nan"),
        ({"nodes": [node(7, "fast")]}, "node 7: 'cpuLatency' is 'fast'; a number is needed"),
        ({"nodes": [node(7, True)]}, "node 7: 'cpuLatency' is True; a number is needed"),
        ({"nodes": [node(7, size=-1)]}, "node 7: 'size' is -1"),
        ({"nodes": [{"id": 7}]}, "node 7: 'supportedOnFpga' is missing; true or false"),
        ({"nodes": [{"id": 7, "supportedOnFpga": 1}]}, "the key 'cpuLatency' is missing"),
        ({"nodes": [node(7, supportedOnFpga="no")]}, "'supportedOnFpga' is 'no'; true or false"),
        ({"nodes": [node(None)]}, "nodes[0]: 'id' is None; a whole number or a text"),
        ({"nodes": [node(7, isBackwardNode=True)]}, "node 7 is a backward node; only inference"),
        ({"maxFPGAs": 0, "maxCPUs": 0}, "maxFPGAs and maxCPUs are both 0; at least one device"),
        ({"maxFPGAs": -1}, "'maxFPGAs' is -1"),
        ({"maxFPGAs": 1e12}, "are 1000000000001 together; at most 256 are taken"),
        ({"maxFPGAs": 1.5}, "'maxFPGAs' is 1.5; a whole number is needed"),
        ({"maxCPUs": "2"}, "'maxCPUs' is '2'; a number is needed"),
    ],
)
def test_a_wrong_graph(read: Any, changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ProblemError) as caught:
        read(graph(**changed))
    text = str(caught.value)
    assert "graph.json: " in text
    assert message in text
    assert "\n" not in text


def test_a_missing_key(read: Any) -> None:
    data = graph()
    del data["maxSizePerFPGA"]
    with pytest.raises(ProblemError, match="the key 'maxSizePerFPGA' is missing; a number"):
        read(data)


def test_a_long_cycle_is_cut_short(read: Any) -> None:
    edges = [edge(i, (i + 1) % 40) for i in range(40)]
    with pytest.raises(ProblemError, match=r"a cycle of 40: 0 > 1 > .* > 7 > \.\.\. > 0"):
        read(graph(nodes=[node(i) for i in range(40)], edges=edges))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"),
        ("", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[1, 2]", "not an instance"),
        ('{"vertices": []}', "it needs 'nodes' and 'edges' (published format) or \"format\""),
        ("3", "not an instance"),
    ],
)
def test_no_instance(read: Any, text: str, message: str) -> None:
    with pytest.raises(ProblemError) as caught:
        read(text)
    assert message in str(caught.value)


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ProblemError, match="not JSON"):
        read_instance(tmp_path / "x.json")


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"absent.json: cannot read the instance: No such file"):
        read_instance(tmp_path / "absent.json")
    with pytest.raises(InputError, match="cannot read the instance: Is a directory"):
        read_instance(tmp_path)


def test_wishes_that_do_not_fit(read: Any) -> None:
    with pytest.raises(ProblemError, match="unknown objective 'speed'; known are throughput, "):
        read(graph(), objective="speed")
    with pytest.raises(ProblemError, match="visits every accelerator once"):
        read(graph(), objective="latency", free=True)


# Our own format


@pytest.fixture
def rich() -> Problem:
    """A problem with something in every field."""
    return build(
        np.array([[1.0, np.inf, 3.0], [2.0, 4.0, 1e-9], [1.0, 1e18, 0.1]]),
        [(-1, (0,), 2.0, False), (0, (1, 2), 1.5, False), (2, (), 1.0, True)],
        allowed=np.array([[True, True, False], [True, True, True], [True, False, True]]),
        host_s=np.array([0.1, 0.2, 0.3]),
        pool_bytes=np.array([7.0, np.inf]),
        pool_of=np.array([0, 1, 1]),
        send=uniform(3, 0.1, 0.01),
        recv=uniform(3, 0.2, 0.0),
        link=uniform(3, 0.0, 0.3),
        bus_of=np.arange(16).reshape(4, 4) % 3 - 1,
        constant_bytes=np.array([3.0, 4.0]),
        constant_ops=((0, 1), (2,)),
        live_bytes=np.array([1.0, 2.0, 3.0]),
        queue_slots=2,
        send_once=True,
        colocate=((0, 1),),
        contiguous=False,
        replicas=np.array([1, 2, 1]),
        host_core=np.array([0, -1, 0]),
        objective=Objective.LATENCY,
        second=Objective.COPIES,
        period_cap_s=9.5,
        latency_model=LatencyModel.SERIAL,
    )


def same(a: Problem, b: Problem) -> bool:
    return problem_to_json(a) == problem_to_json(b)


def test_a_problem_comes_back(rich: Problem, tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    write_problem(path, rich)
    instance = read_instance(path)
    assert not instance.published
    assert same(instance.problem, rich)
    for field in dataclasses.fields(Problem):
        was, now = getattr(rich, field.name), getattr(instance.problem, field.name)
        if isinstance(was, np.ndarray):
            assert was.dtype == now.dtype
            assert np.array_equal(was, now)
        elif field.name not in ("send", "recv", "link"):
            assert was == now
    assert np.array_equal(rich.link.per_unit_s, instance.problem.link.per_unit_s)
    for bare in ("Infinity", "NaN"):
        assert bare not in path.read_text(encoding="utf-8")


def test_wishes_change_what_the_file_says(rich: Problem, tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    write_problem(path, dataclasses.replace(rich, contiguous=True))
    assert read_instance(path).problem.objective is Objective.LATENCY
    assert read_instance(path).problem.contiguous
    wished = read_instance(path, "throughput", free=True).problem
    assert wished.objective is Objective.PERIOD
    assert not wished.contiguous


def test_defaults_may_be_left_out(rich: Problem) -> None:
    data = problem_to_json(rich)
    for key in ("colocate", "replicas", "second", "latency_cap_s", "contiguous"):
        del data[key]
    read = problem_from_json(data)
    assert (read.colocate, read.second, read.contiguous) == ((), None, True)
    assert read.replicas.tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("key", "wrong", "message"),
    [
        ("version", 2, "not a partitioner problem of version 1 (found ('partitioner problem', 2))"),
        ("time_s", [[1, "x", 3]], "'time_s' is [[1, 'x', 3]]; nested lists of numbers"),
        ("time_s", [[1], [1, 2]], "nested lists of numbers"),
        ("time_s", [[1.0, -2.0, 3.0]] * 3, "takes -2.0 s"),
        ("time_s", [[1.0, 2.0, float("nan")]] * 3, "takes nan s"),
        ("uses", [[1.5]], "'uses' is [[1.5]]; nested lists of whole numbers"),
        ("uses", [[True]], "nested lists of whole numbers"),
        ("uses", [[10**30]], "nested lists of whole numbers"),
        ("allowed", [[1]], "'allowed' is [[1]]; nested lists of true and false"),
        ("op_names", ["a", 2, "c"], "'op_names' is ['a', 2, 'c']; a list of different"),
        ("op_names", "abc", "a list of different texts"),
        ("op_names", ["a", "b", "a"], "'a' is there twice"),
        ("consumers", [[0.5]], "a list of lists of op numbers"),
        ("send", 0, "an object with base_s and per_unit_s"),
        ("send", {"base_s": [[0]]}, "an object with base_s and per_unit_s"),
        ("objective", "speed", "'objective' is 'speed'; one of period, latency, copies"),
        ("second", 3, "null or one of period"),
        ("max_stages", "many", "'max_stages' is 'many'; a whole number is needed"),
        ("contiguous", 1, "'contiguous' is 1; true or false is needed"),
        ("period_cap_s", None, "'period_cap_s' is None; a number or \"inf\""),
        ("colour", 1, "unknown key 'colour'; known are op_names, "),
        ("consumers", [[2], [1, 2], [0]], "topological order"),
    ],
)
def test_a_wrong_problem(rich: Problem, key: str, wrong: Any, message: str) -> None:
    with pytest.raises(ProblemError) as caught:
        problem_from_json(problem_to_json(rich) | {key: wrong})
    assert message in str(caught.value)


def test_a_problem_with_a_key_missing(rich: Problem) -> None:
    data = problem_to_json(rich)
    del data["time_s"]
    with pytest.raises(ProblemError, match="the key 'time_s' is missing"):
        problem_from_json(data)


# Solutions


def test_a_solution_as_data(read: Any) -> None:
    problem = read(graph()).problem
    stages, placements = (0, 1, 1, 2), ((1,), (0,), (2,))
    stats = SolveStats(Status.FEASIBLE, 10.0, 8.0, 0.5, "auto")
    found = Solution(stages, placements, evaluate(problem, stages, placements), stats)
    assert solution_file(problem, found) == {
        "status": "FEASIBLE",
        "objective": 10.0,
        "bound": 8.0,
        "gap": pytest.approx(0.2),
        "wall_s": 0.5,
        "method": "auto",
        "assignment": {"7": "acc1", "3": "acc0", "5": "acc0", "9": "cpu0"},
        "stage_order": ["acc1", "acc0", "cpu0"],
        "stages": [["7"], ["3", "5"], ["9"]],
    }
    with_second = dataclasses.replace(stats, second=3.0, second_bound=float("nan"))
    data = solution_file(problem, dataclasses.replace(found, stats=with_second))
    assert (data["second"], data["second_bound"]) == (3.0, None)


def test_no_solution_as_data() -> None:
    data = no_solution_file(Status.INFEASIBLE, 0.25, "dp")
    assert (data["status"], data["objective"], data["assignment"]) == ("INFEASIBLE", None, {})
    json.dumps(data, allow_nan=False)
