"""Every command, from the files it reads to the files it writes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from partitioner import Partition, Plan, ProfileTable
from partitioner.cli import main
from partitioner.profiling import collect

Array = np.ndarray[Any, np.dtype[Any]]


@pytest.fixture(autouse=True)
def own_cache(cache_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache_home))


@pytest.fixture
def nothing_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(*args: Any, **options: Any) -> None:
        raise AssertionError("something was measured although every time is known")

    monkeypatch.setattr(collect, "measure_in_place", measure)
    monkeypatch.setattr(collect, "measure_handover", measure)


@pytest.fixture
def plan_file(measured: Partition, tmp_path: Path) -> Path:
    path = tmp_path / "plan.json"
    measured.plan.save(path)
    return path


@pytest.fixture
def profiled(network_file: Path, profile_file: Path, pair: list[str], tmp_path: Path) -> list[str]:
    """Arguments: a model, devices, and a profile of its own that lacks nothing."""
    profile = shutil.copy(profile_file, tmp_path / "profile.json")
    return [str(network_file), "--devices", *pair, "--profile", str(profile)]


def read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def shell(*argv: str) -> subprocess.CompletedProcess[str]:
    """A command as a user starts it."""
    return subprocess.run(
        [sys.executable, "-m", "partitioner.cli", *argv],
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "200"},
        timeout=300,
        check=False,
    )


def test_devices(pair: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["devices", "--devices", *pair, "--json", str(tmp_path / "d.json")]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in pair)
    assert [row["name"] for row in read(tmp_path / "d.json")["device"]] == pair


def test_profile_of_one_core(network_file: Path, pair: list[str], tmp_path: Path) -> None:
    path, data = tmp_path / "profile.json", tmp_path / "data.json"
    argv = ["profile", str(network_file), "-o", str(path), "--devices", pair[0]]
    done = shell(*argv, "--seconds", "0.02", "--json", str(data))
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith(f"profiling small on {pair[0]}: about ")
    assert "Traceback" not in done.stderr
    assert "conv2d_add_relu_0" in done.stdout
    table = ProfileTable.load(path)
    assert {key.device for key in table.ops} == {pair[0]}
    assert read(data) == read(path)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["data.json", "profile.json"]


@pytest.mark.usefixtures("nothing_measured")
def test_a_complete_profile_is_printed_at_once(
    network_file: Path,
    profile_file: Path,
    pair: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = shutil.copy(profile_file, tmp_path / "profile.json")
    assert main(["profile", str(network_file), "-o", str(path), "--devices", *pair]) == 0
    out, err = capsys.readouterr()
    assert "conv2d_add_relu_0" in out
    assert err == ""
    assert path.read_bytes() == profile_file.read_bytes()


@pytest.mark.usefixtures("nothing_measured")
def test_plan_show_and_explain(
    profiled: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, data = tmp_path / "plan.json", tmp_path / "data.json"
    argv = ["plan", *profiled, "--strategy", "pipeline", "-o", str(path), "--json", str(data)]
    assert main(argv) == 0
    out, err = capsys.readouterr()
    assert err == ""
    plan = Plan.load(path)
    assert len(plan.stages) == 2
    assert out == f"{plan}\n"
    assert read(data) == read(path)
    assert {"single", "replicas"} <= {other.name.split()[0] for other in plan.alternatives}

    assert main(["show", str(path)]) == 0
    assert capsys.readouterr() == (out, "")

    assert main(["explain", str(path)]) == 0
    first, second = plan.stages
    explained = capsys.readouterr().out
    assert f"cut 0|1: after {first.ops[-1]}, before {second.ops[0]}" in explained


def test_an_estimated_plan_measures_nothing_and_says_so(
    network_file: Path,
    pair: list[str],
    nothing_measured: None,
    capsys: pytest.CaptureFixture[str],
) -> None:
    options = ["--pin", f"head={pair[0]}", "--max-stages", "1", "--objective", "latency"]
    assert main(["plan", str(network_file), "--devices", *pair, "--estimate", *options]) == 0
    out = capsys.readouterr().out
    assert "predicted (estimated, not measured)" in out
    assert "least latency" in out
    assert "1 stage" in out


@pytest.mark.usefixtures("nothing_measured")
def test_a_plan_within_caps_and_groups(
    profiled: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "plan.json"
    argv = ["plan", *profiled, "-o", str(path)]
    assert main([*argv, "--strategy", "pipeline"]) == 0
    plan = Plan.load(path)
    assert plan.predicted is not None
    before, after = plan.stages[0].ops[-1], plan.stages[1].ops[0]
    # The two ops at the cut must share a stage now.
    assert main([*argv, "--strategy", "pipeline", "--together", f"{before},{after}"]) == 0
    moved = Plan.load(path)
    assert moved.predicted is not None
    assert any({before, after} <= set(stage.ops) for stage in moved.stages)
    assert moved.predicted.period_s >= plan.predicted.period_s
    # Handing over makes every pipeline slower for one item than the model on its best device.
    cap = min(each.latency_s for each in plan.alternatives if each.name.startswith("single"))
    assert main([*argv, "--latency-cap", str(cap), "--second", "devices"]) == 0
    uncut = Plan.load(path)
    assert uncut.predicted is not None
    assert uncut.name.startswith("single")
    assert uncut.predicted.latency_s <= cap * (1 + 1e-9)
    capsys.readouterr()
    assert main([*argv, "--period-cap", str(plan.predicted.bound_s / 4)]) == 1
    assert "no assignment" in capsys.readouterr().err


@pytest.mark.usefixtures("nothing_measured")
def test_run_with_everything(
    profiled: list[str],
    plan_file: Path,
    measured: Partition,
    items: list[dict[str, Array]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    files = {name: tmp_path / name for name in ("in.npz", "out.npz", "trace.json", "data.json")}
    np.savez(files["in.npz"], picture=np.stack([item["picture"] for item in items]))
    argv = ["run", *profiled, "--plan", str(plan_file)]
    argv += ["--measure", "--rounds", "1", "--seconds", "0.02"]
    argv += ["--input", str(files["in.npz"]), "--output", str(files["out.npz"])]
    argv += ["--trace", str(files["trace.json"]), "--json", str(files["data.json"])]
    assert main(argv) == 0
    out, err = capsys.readouterr()
    assert "Traceback" not in err
    assert f"outputs of {len(items)} items: bitwise equal to the uncut model's" in out
    assert "measured over" in out

    with measured.reference(workers="thread") as pipe:
        wanted = list(pipe.map(items))
    with np.load(files["out.npz"]) as found:
        assert found.files == ["logits", "map"]
        for index, name in enumerate(found.files):
            assert found[name].tobytes() == np.stack([row[index] for row in wanted]).tobytes()

    _assert_schema(read(files["data.json"]), items, measured)
    events = read(files["trace.json"])
    events = events["traceEvents"] if isinstance(events, dict) else events
    assert len(events) >= 2 * len(items)
    left = {"plan.json", "profile.json", *files}
    assert {file.name for file in tmp_path.iterdir()} == left


def _assert_schema(data: Any, items: list[dict[str, Array]], measured: Partition) -> None:
    keys = "schema model plan predicted op_sum stage_measured measured baselines outputs host"
    assert set(data) == {*keys.split(), "refinement", "kernels"}
    assert data["refinement"] is None
    assert data["kernels"]["ops"] == len(measured.graph.ops)
    assert data["schema"] == 1
    assert data["model"] == "small"
    assert [stage["ops"] for stage in data["plan"]["stages"]] == [
        list(stage.ops) for stage in measured.plan.stages
    ]
    assert set(data["predicted"]) == {"period_s", "latency_s"}
    assert set(data["measured"]) == {"period_s", "latency_s", "items", "spread"}
    assert set(data["op_sum"]) == set(data["stage_measured"]) == {"period_s"}
    for part in ("predicted", "op_sum", "stage_measured", "measured"):
        assert 0 < data[part]["period_s"] < 1
    names = {row["name"] for row in data["baselines"]}
    assert {f"single {name}" for name in measured.problem.option_names} <= names
    assert any(name.startswith("replicas ") for name in names)
    assert all({"name", "period_s", "latency_s"} <= set(row) for row in data["baselines"])
    assert data["outputs"]["checked"] == len(items)
    assert data["outputs"]["max_abs_diff"] == 0
    assert {"cpu", "arch", "system", "cores"} <= set(data["host"])


def test_run_does_whatever_is_missing(network_file: Path, pair: list[str], tmp_path: Path) -> None:
    out = tmp_path / "out.npz"
    argv = ["run", str(network_file), "--devices", pair[0], "--estimate", "--items", "3"]
    done = shell(*argv, "--rounds", "1", "--seconds", "0.02", "--output", str(out))
    assert done.returncode == 0, done.stderr
    assert "outputs of 3 items: bitwise equal" in done.stdout
    assert "Traceback" not in done.stderr
    with np.load(out) as found:
        assert found["logits"].shape == (3, 1, 10)
        assert np.abs(found["logits"][0] - found["logits"][1]).max() > 1e-3
    assert [file.name for file in tmp_path.iterdir()] == ["out.npz"]


@pytest.mark.parametrize("option", ["--json", "-o"])
@pytest.mark.usefixtures("nothing_measured")
def test_a_file_that_cannot_be_written_is_noticed_before_any_work(
    option: str,
    network_file: Path,
    pair: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for target in (tmp_path, tmp_path / "absent" / "plan.json"):
        argv = ["plan", str(network_file), "--devices", *pair, option, str(target)]
        assert main(argv) == 1
        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith(f"error: {target}: cannot write here: ")
    assert list(tmp_path.iterdir()) == []


def test_exit_codes_of_a_process(tmp_path: Path) -> None:
    wrong = shell("plan", str(tmp_path / "absent.onnx"), "--estimate")
    assert wrong.returncode == 1
    assert wrong.stdout == ""
    assert wrong.stderr.startswith("error: ")
    assert wrong.stderr.count("\n") == 1
    usage = shell("plan")
    assert usage.returncode == 2
    assert "the following arguments are required: MODEL" in usage.stderr
