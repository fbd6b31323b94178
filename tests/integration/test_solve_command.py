"""`partitioner solve`, from the instance file to the solution file."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from partitioner.cli import main
from partitioner.evaluation import evaluate
from partitioner.instance import read_instance, write_problem
from partitioner.problem import Problem


def graph(n: int, k: int = 2, budget: float = 100.0, seed: int = 0, **fields: Any) -> Any:
    """A random published graph of n nodes on k accelerators and a CPU."""
    rng = np.random.default_rng(seed)
    nodes = [
        {
            "id": i,
            "supportedOnFpga": 1,
            "cpuLatency": float(rng.integers(50, 200)),
            "fpgaLatency": float(rng.integers(1, 30)),
            "size": 1.0,
        }
        for i in range(n)
    ]
    costs = rng.integers(0, 6, n)
    edges = [
        {"sourceId": i, "destId": int(j), "cost": float(costs[i])}
        for i in range(n - 1)
        for j in {i + 1, min(n - 1, i + 1 + int(rng.integers(0, 6)))}
    ]
    base = {"maxFPGAs": k, "maxCPUs": 1, "maxSizePerFPGA": budget}
    return base | {"nodes": nodes, "edges": edges} | fields


def written(path: Path, data: Any) -> str:
    path.write_text(json.dumps(data), encoding="utf-8")
    return str(path)


def read(path: str | Path) -> Any:
    return json.loads(Path(path).read_text(encoding="utf-8"))


def rescored(instance: str, solution: Any, **options: Any) -> float:
    """The value of a solution file, from the graph and its assignment alone."""
    problem = read_instance(instance, **options).problem
    where = {name: stage for stage, names in enumerate(solution["stages"]) for name in names}
    placements = [(problem.option_names.index(name),) for name in solution["stage_order"]]
    assert {name: solution["stage_order"][stage] for name, stage in where.items()} == solution[
        "assignment"
    ]
    found = evaluate(problem, [where[name] for name in problem.op_names], placements)
    assert found.violations == ()
    return found.value(problem.objective)


def test_throughput(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    instance = written(tmp_path / "g.json", graph(14))
    out = tmp_path / "solution.json"
    assert main(["solve", instance, "-o", str(out)]) == 0
    solution = read(out)
    assert solution["status"] == "OPTIMAL"
    assert solution["objective"] == pytest.approx(rescored(instance, solution))
    assert solution["bound"] <= solution["objective"]
    assert solution["gap"] == pytest.approx(0.0, abs=1e-6)
    assert solution["method"] == "auto"
    assert list(solution)[:4] == ["status", "objective", "bound", "gap"]
    printed, progress = capsys.readouterr()
    assert "g: 14 ops, 3 options, least period, contiguous" in printed
    assert "OPTIMAL by auto" in printed
    assert "acc0" in printed
    assert "best " in progress
    assert "bound " in progress


@pytest.mark.parametrize("objective", ["throughput", "latency"])
def test_methods_agree(objective: str, tmp_path: Path) -> None:
    instance = written(tmp_path / "g.json", graph(5, seed=3, budget=3.0))
    values = {}
    for method in ("auto", "cpsat", "brute"):
        out = tmp_path / f"{method}.json"
        command = ["solve", instance, "--objective", objective, "--method", method]
        assert main([*command, "-o", str(out)]) == 0
        solution = read(out)
        assert solution["status"] == "OPTIMAL"
        values[method] = rescored(instance, solution, objective=objective)
    assert values["auto"] == pytest.approx(values["brute"], rel=2e-6)
    assert values["cpsat"] == pytest.approx(values["brute"], rel=2e-6)


def test_time_limit_zero_gives_the_quick_assignment(tmp_path: Path) -> None:
    instance = written(tmp_path / "g.json", graph(60, k=4))
    out = tmp_path / "s.json"
    assert main(["solve", instance, "--time-limit", "0", "-o", str(out)]) == 0
    solution = read(out)
    assert solution["status"] in ("FEASIBLE", "OPTIMAL")
    assert solution["objective"] == pytest.approx(rescored(instance, solution))
    assert 0 < solution["bound"] <= solution["objective"]


def test_infeasible(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    instance = written(tmp_path / "g.json", graph(10, budget=3.0, maxCPUs=0))
    out = tmp_path / "s.json"
    assert main(["solve", instance, "-o", str(out)]) == 1
    solution = read(out)
    assert (solution["status"], solution["assignment"]) == ("INFEASIBLE", {})
    printed, said = capsys.readouterr()
    assert printed == ""
    assert "error: no assignment is possible; any one of these makes one possible:" in said
    assert "memory pool 0 (acc0): needs 7 bytes, has 3, short by 4; raise its budget to 7" in said
    assert "memory of every pool: needs 5 bytes, has 3, short by 2" in said
    assert "Traceback" not in said


def test_a_diagnosis_cut_short(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(_problem: Problem) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("partitioner.solvers.diagnosis.diagnose.diagnose", interrupt)
    assert main(["solve", written(tmp_path / "g.json", graph(10, budget=3.0, maxCPUs=0))]) == 1
    assert "error: no assignment is possible: the constants need 10" in capsys.readouterr().err


def test_a_node_no_device_supports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = graph(4, maxCPUs=0)
    data["nodes"][2]["supportedOnFpga"] = 0
    out = tmp_path / "s.json"
    assert main(["solve", written(tmp_path / "g.json", data), "-o", str(out)]) == 1
    assert read(out)["status"] == "INFEASIBLE"
    assert "op '2': needs 1 option that runs it, has 0, short by 1" in capsys.readouterr().err


def test_limits_of_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    instance = written(tmp_path / "g.json", graph(8))
    out = tmp_path / "s.json"
    assert main(["solve", instance, "--max-stages", "1", "-o", str(out)]) == 0
    assert len(read(out)["stages"]) == 1
    best = read(out)["objective"]
    assert main(["solve", instance, "--max-stages", "1", "--period-cap", "1"]) == 1
    assert f"the cap on the period: needs {best:.9g} s, has 1" in capsys.readouterr().err


def test_replicas(tmp_path: Path) -> None:
    instance = written(tmp_path / "g.json", graph(6, k=3))
    alone, shared = tmp_path / "alone.json", tmp_path / "shared.json"
    assert main(["solve", instance, "-o", str(alone)]) == 0
    assert main(["solve", instance, "--replicas", "3", "-o", str(shared)]) == 0
    assert read(shared)["status"] == "OPTIMAL"
    assert read(shared)["objective"] < read(alone)["objective"]


def test_the_best_few(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    instance = written(tmp_path / "g.json", graph(7))
    out = tmp_path / "s.json"
    assert main(["solve", instance, "--best", "3", "-o", str(out)]) == 0
    first = read(out)
    assert len(first["others"]) == 2
    values = [first["objective"], *(other["objective"] for other in first["others"])]
    assert values == sorted(values)
    assert values == pytest.approx([rescored(instance, s) for s in (first, *first["others"])])
    printed = capsys.readouterr().out
    assert "rank  period  / best  place    stages (ops)" in printed
    sizes = [len(names) for names in first["stages"]]
    stages = (f"{on} ({n})" for on, n in zip(first["stage_order"], sizes, strict=True))
    assert f"OPTIMAL  {' | '.join(stages)}" in printed


def test_our_own_problem(tmp_path: Path) -> None:
    problem = read_instance(written(tmp_path / "g.json", graph(7))).problem
    write_problem(tmp_path / "p.json", problem)
    first, second = tmp_path / "1.json", tmp_path / "2.json"
    assert main(["solve", str(tmp_path / "g.json"), "-o", str(first)]) == 0
    assert main(["solve", str(tmp_path / "p.json"), "-o", str(second)]) == 0
    assert read(first)["objective"] == pytest.approx(read(second)["objective"], rel=2e-6)


def test_mistakes_are_told_before_any_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    instance = written(tmp_path / "g.json", graph(4))
    before = sorted(tmp_path.iterdir())
    for argv, message in (
        ([instance, "--method", "magic"], "there is no solver 'magic'; known are auto, "),
        ([instance, "-o", str(tmp_path / "no" / "s.json")], "cannot write here"),
        ([str(tmp_path / "absent.json")], "absent.json: cannot read the instance"),
        ([instance, "--best", "2", "--method", "dp"], "--best has a method of its own"),
    ):
        assert main(["solve", *argv]) == 1
        printed, said = capsys.readouterr()
        assert printed == ""
        assert said.startswith("error: ")
        assert message in said
    for argv in (["--time-limit", "-1"], ["--time-limit", "nan"], ["--objective", "speed"]):
        with pytest.raises(SystemExit):
            main(["solve", instance, *argv])
    assert sorted(tmp_path.iterdir()) == before


def test_interrupted_it_gives_the_best_so_far(tmp_path: Path) -> None:
    """A signal once progress says that there is an assignment and no proof."""
    instance = written(tmp_path / "g.json", graph(400, k=8, seed=1))
    out = tmp_path / "s.json"
    command = [sys.executable, "-m", "partitioner.cli", "solve", instance]
    with subprocess.Popen(
        [*command, "--time-limit", "100", "-o", str(out), "--method", "cpsat"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "COLUMNS": "200"},
    ) as process:
        assert process.stderr is not None
        first = process.stderr.readline()
        time.sleep(0.2)
        assert "best" in first
        began = time.perf_counter()
        process.send_signal(signal.SIGINT)
        printed, said = process.communicate(timeout=60)
        waited = time.perf_counter() - began
    assert process.returncode == 0, said
    assert waited < 20
    solution = read(out)
    assert solution["status"] == "FEASIBLE"
    assert solution["objective"] == pytest.approx(rescored(instance, solution))
    assert "FEASIBLE by cpsat" in printed
    assert "Traceback" not in said
