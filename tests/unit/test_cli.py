from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from fake_cpus import put_hikey970

from partitioner.cli import main
from partitioner.cli.numbers import duration
from partitioner.cli.progress import show_progress
from partitioner.clusters import find_clusters
from partitioner.errors import DeviceError, PlanError
from partitioner.host import CpuSets
from partitioner.machine import Machine
from partitioner.plan import Plan


@pytest.fixture(autouse=True)
def four_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host of four cores of which this process may use three."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2})
    sets = CpuSets((0, 1, 2, 3), (0, 1, 2, 3), (0, 1, 2))
    monkeypatch.setattr("partitioner.machine.cpu_sets", lambda: sets)


@pytest.fixture
def saved(plan: Plan, tmp_path: Path) -> str:
    path = tmp_path / "plan.json"
    plan.save(path)
    return str(path)


def failed(capsys: pytest.CaptureFixture[str]) -> str:
    """The error that was printed, which must be one paragraph."""
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert "Traceback" not in err
    return err


# devices


@pytest.fixture
def board(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A board of four little and four big cores, of which this process may not use two."""
    put_hikey970(tmp_path)
    found = find_clusters(tmp_path, range(6))
    monkeypatch.setattr("partitioner.cli.devices.find_clusters", lambda: found)


@pytest.mark.usefixtures("board")
def test_devices_of_this_host(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    toml, data = tmp_path / "m.toml", tmp_path / "m.json"
    assert main(["devices", "--save", str(toml), "--json", str(data)]) == 0
    text = capsys.readouterr().out
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert "cores:0-3 cpu 0-3 0.45 host host -" in lines
    assert "cores:4-5 cpu 4-5 1.00 host host -" in lines
    assert "0-3 Cortex-A53 1.84 GHz ondemand 512 KiB for 4 - 0 -" in lines
    assert "4-5 Cortex-A73 2.36 GHz schedutil 2 MiB for 4 - 0 -" in lines
    assert "left out: 6-7, not allowed to this process" in text
    saved = Machine.load(toml)
    assert [device.capacity for device in saved.devices] == [0.451, 1.0]
    assert re.search(r"^# +4-5 +Cortex-A73 +2.36 GHz", toml.read_text(encoding="utf-8"), re.M)
    written = json.loads(data.read_text(encoding="utf-8"))
    assert written["device"] == saved.to_data()["device"]
    assert [each["core_type"] for each in written["clusters"]] == ["Cortex-A53", "Cortex-A73"]


@pytest.mark.usefixtures("board")
def test_devices_of_unlike_cores(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["devices", "--devices", "cores:0-1", "cores:2"]) == 0
    assert "several kinds" not in capsys.readouterr().out
    sets = CpuSets(tuple(range(8)), tuple(range(8)), tuple(range(6)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("partitioner.machine.cpu_sets", lambda: sets)
        assert main(["devices", "--devices", "cores:3-5", "cores:0"]) == 0
    assert (
        "cores:3-5: cores of several kinds (3 Cortex-A53 of node 0, speed 0.451; 4-5 Cortex-A73 of "
        "node 0, speed 1): give each kind a device"
    ) in capsys.readouterr().out


@pytest.mark.usefixtures("board")
def test_devices_given_saved_and_read_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    toml, data = str(tmp_path / "m.toml"), tmp_path / "m.json"
    assert main(["devices", "--devices", "cores:0-1", "cuda:0", "--save", toml]) == 0
    first = capsys.readouterr().out
    assert "cores:0-1" in first
    assert "cuda:0" in first
    assert main(["devices", "--machine", toml, "--json", str(data)]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == first.splitlines()[1:]
    assert json.loads(data.read_text(encoding="utf-8")) == Machine.load(toml).to_data()


@pytest.mark.parametrize(
    ("devices", "message"),
    [
        (["gpu"], "unknown device 'gpu'; write cores:0-3"),
        (["cores:2-1"], "'2-1' is no core list"),
        (["cores:0-1", "cores:1-2"], "core 1 belongs to both 'cores:0-1' and 'cores:1-2'"),
        (["cores:4"], "this host has no core 4 (it has 0-3); use a machine file of this host"),
        (["cores:2-3"], "this process may not use core 3; widen its CPU set"),
    ],
)
def test_wrong_devices(
    devices: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["devices", "--devices", *devices]) == 1
    assert message in failed(capsys)


def test_a_machine_file_may_be_of_another_host(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Machine.of("cores:16-31").save(tmp_path / "big.toml")
    assert main(["devices", "--machine", str(tmp_path / "big.toml")]) == 0
    assert "cores:16-31" in capsys.readouterr().out


def test_a_wrong_machine_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "m.toml").write_text("name = 'm'", encoding="utf-8")
    assert main(["devices", "--machine", str(tmp_path / "m.toml")]) == 1
    assert "m.toml: the key 'device' is missing" in failed(capsys)


# show and explain


def test_show(saved: str, plan: Plan, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", saved]) == 0
    assert capsys.readouterr() == (f"{plan}\n", "")


def test_explain(saved: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", saved]) == 0
    out, err = capsys.readouterr()
    assert "cut 0|1: after relu_1, before conv_2" in out
    assert err == ""


def test_json_is_what_was_printed(
    saved: str, plan: Plan, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shown, explained = tmp_path / "show.json", tmp_path / "explain.json"
    assert main(["show", saved, "--json", str(shown)]) == 0
    assert Plan.load(shown) == plan
    capsys.readouterr()
    assert main(["explain", saved, "--json", str(explained)]) == 0
    data = json.loads(explained.read_text(encoding="utf-8"))
    assert data["explanation"] == capsys.readouterr().out.splitlines()
    assert Plan.from_data(data["plan"]) == plan


def test_json_that_cannot_be_written(
    saved: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(tmp_path.iterdir())
    for target in (tmp_path, tmp_path / "absent" / "data.json"):
        assert main(["show", saved, "--json", str(target)]) == 1
        assert "cannot write here" in capsys.readouterr().err
    assert sorted(tmp_path.iterdir()) == before


def test_a_failed_command_writes_no_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", str(tmp_path / "absent.json"), "--json", str(tmp_path / "out")]) == 1
    assert "absent.json: cannot read the plan: No such file or directory" in failed(capsys)
    assert list(tmp_path.iterdir()) == []


def test_a_broken_plan(saved: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path(saved).write_text("{", encoding="utf-8")
    assert main(["show", saved]) == 1
    assert "not JSON" in failed(capsys)


def test_an_edited_plan_is_shown_but_not_explained(
    saved: str, capsys: pytest.CaptureFixture[str]
) -> None:
    data = json.loads(Path(saved).read_text(encoding="utf-8"))
    data["stages"][0]["ops"].append(data["stages"][1]["ops"].pop(0))
    Path(saved).write_text(json.dumps(data), encoding="utf-8")
    assert main(["show", saved]) == 0
    assert "predicted: nothing, the stages were edited" in capsys.readouterr().out
    assert main(["explain", saved]) == 1
    assert "carries no figures to explain" in failed(capsys)


# Errors and usage


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="cannot read the plan"):
        main(["show", str(tmp_path / "absent.json"), "--debug"])
    with pytest.raises(DeviceError, match="unknown device"):
        main(["devices", "--devices", "gpu", "--debug"])


def test_interrupted(
    monkeypatch: pytest.MonkeyPatch, saved: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(path: str) -> Plan:
        raise KeyboardInterrupt

    monkeypatch.setattr(Plan, "load", interrupt)
    assert main(["show", saved]) == 130
    assert capsys.readouterr() == ("", "interrupted\n")
    with pytest.raises(KeyboardInterrupt):
        main(["show", saved, "--debug"])


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "the following arguments are required: COMMAND"),
        (["fly"], "invalid choice: 'fly'"),
        (["show"], "the following arguments are required: PLAN"),
        (["show", "plan.json", "--loud"], "unrecognized arguments: --loud"),
        (["devices", "--devices", "cpu", "--machine", "m.toml"], "not allowed with argument"),
        (["profile", "model.onnx"], "required: -o/--output"),
        (["plan", "m.onnx", "--estimate", "--profile", "p.json"], "not allowed with argument"),
        (["plan", "m.onnx", "--strategy", "luck"], "invalid choice: 'luck'"),
        (["plan", "m.onnx", "--max-stages", "0"], "argument --max-stages: 0 is below 1"),
        (["plan", "m.onnx", "--max-stages", "few"], "--max-stages: 'few' is not a whole number"),
        (["plan", "m.onnx", "--replicas", "0"], "argument --replicas: 0 is below 1"),
        (["plan", "m.onnx", "--refine", "-1"], "argument --refine: -1 is below 0"),
        (["solve", "g.json", "--time-limit", "long"], "--time-limit: 'long' is not a number"),
        (["solve", "g.json", "--time-limit", "-1"], "--time-limit: -1 is not a number, zero or"),
        (["plan", "m.onnx", "--time-limit", "-1"], "argument --time-limit: -1 s is no duration"),
        (["tune"], "the following arguments are required: MODEL"),
        (["tune", "m.onnx", "--budget", "10"], "--budget: '10' is no duration above 0; write 90s,"),
        (["tune", "m.onnx", "--budget", "0m"], "argument --budget: '0m' is no duration above 0"),
        (["tune", "m.onnx", "--budget", "-5m"], "argument --budget: expected one argument"),
        (["tune", "m.onnx", "--budget", "soon"], "argument --budget: 'soon' is no duration"),
        (["tune", "m.onnx", "--budget", "1h30m"], "argument --budget: '1h30m' is no duration"),
        (["run", "m.onnx", "--items", "0"], "argument --items: 0 is below 1"),
        (["run", "m.onnx", "--items", "many"], "argument --items: 'many' is not a whole number"),
        (["run", "m.onnx", "--seconds", "nan"], "argument --seconds: nan s is no duration"),
    ],
)
def test_bad_usage(argv: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(argv)
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90.0), ("10m", 600.0), ("1h", 3600.0), ("1.5h", 5400.0), (".5s", 0.5), ("2.m", 120.0)],
)
def test_durations(text: str, seconds: float) -> None:
    assert duration(text) == seconds


def test_steps_by_the_hundred_are_not_each_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now_s = 100.0
    monkeypatch.setattr("partitioner.cli.progress.time.monotonic", lambda: now_s)
    with show_progress(5.0) as progress:
        for step in range(100):
            now_s += 0.25
            progress(f"kernel {step}", step / 100)
        progress("tuned", 0.99)
    # Every fifth second, and how it ended: 25 s in steps of a quarter.
    assert capsys.readouterr().err.split("\n") == [
        *(f"kernel {step}" for step in (0, 20, 40, 60, 80)),
        "tuned",
        "",
    ]
    with show_progress() as progress:
        for step in (0, 0, 1):
            progress(f"step {step}", step / 2)
    assert capsys.readouterr().err == "step 0\nstep 1\n"


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--help"])
    assert caught.value.code == 0
    listed = {line.split()[0] for line in capsys.readouterr().out.splitlines() if line.strip()}
    assert {"devices", "profile", "tune", "plan", "run", "show", "explain"} <= listed


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_leaves_early_gets_no_complaint(saved: str, unbuffered: str) -> None:
    # The pipe is closed before anything is printed to it, as `| head -0` may do.
    read_end, write_end = os.pipe()
    os.close(read_end)
    code = "import sys; from partitioner.cli import main; sys.exit(main(sys.argv[1:]))"
    try:
        done = subprocess.run(
            [sys.executable, "-c", code, "show", saved],
            stdout=write_end,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
            text=True,
            timeout=60,
            check=False,
        )
    finally:
        os.close(write_end)
    assert (done.stderr, done.returncode) == ("", 1)
