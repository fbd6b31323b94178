"""`partitioner tune`, and `--tuning` of the commands after it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from partitioner.cli import main
from partitioner.errors import TuningError
from partitioner.frontend import Grouped
from partitioner.machine import Machine
from partitioner.tuning.records import Records

Tuner = Any


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's cache folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    return tmp_path / "home" / "partitioner"


@pytest.fixture
def tune_with(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Puts something in the place of tuning."""

    def put(tune: Any) -> None:
        monkeypatch.setattr("partitioner.tuning.session.tune", tune)

    return put


def test_what_is_asked_for_is_tuned(
    network_file: Path,
    pair: list[str],
    home: Path,
    tmp_path: Path,
    tune_with: Any,
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked: list[tuple[str, list[str], Path, float]] = []

    def tune(
        grouped: Grouped, machine: Machine, folder: Path, *, seconds: float, progress: Any
    ) -> Records:
        asked.append((grouped.graph.name, [d.name for d in machine.devices], folder, seconds))
        progress("trying", 0.5)
        return Records.none()

    tune_with(tune)
    argv = ["tune", str(network_file), "--devices", *pair]
    assert main([*argv, "--budget", "90s"]) == 0
    out, err = capsys.readouterr()
    assert err == "trying\n"
    rows = [line.split() for line in out.splitlines()]
    assert rows[0] == ["device", "threads", "ops", "by", "record", "by", "rule"]
    assert [row[:3] for row in rows[2:4]] == [[name, "1", "0"] for name in pair]
    assert out.splitlines()[-1] == f"0 records in {home / 'tuning'}"
    data = tmp_path / "data.json"
    folder = tmp_path / "records"
    assert main([*argv, "--records", str(folder), "--json", str(data)]) == 0
    assert asked == [
        ("small", pair, home / "tuning", 90.0),
        ("small", pair, folder, 600.0),
    ]
    told = json.loads(data.read_text(encoding="utf-8"))
    assert (told["model"], told["folder"], told["records"]) == ("small", str(folder), 0)
    assert [row["device"] for row in told["devices"]] == pair


def test_interrupted_it_says_what_is_kept(
    network_file: Path,
    pair: list[str],
    tmp_path: Path,
    tune_with: Any,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def tune(*args: Any, **options: Any) -> Records:
        raise KeyboardInterrupt

    tune_with(tune)
    folder = tmp_path / "records"
    argv = ["tune", str(network_file), "--devices", *pair, "--records", str(folder)]
    assert main(argv) == 130
    assert capsys.readouterr() == ("", f"kept 0 records in {folder}\ninterrupted\n")


def test_an_error_of_tuning_is_one_line(
    network_file: Path, pair: list[str], tune_with: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    def tune(*args: Any, **options: Any) -> Records:
        raise TuningError("0.1 s are too few for one kernel; give more")

    tune_with(tune)
    assert main(["tune", str(network_file), "--devices", *pair, "--budget", "0.1s"]) == 1
    assert capsys.readouterr() == ("", "error: 0.1 s are too few for one kernel; give more\n")


def test_devices_of_another_host_are_not_tuned_for(
    network_file: Path, tmp_path: Path, tune_with: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    tune_with(lambda *args, **options: pytest.fail("tuned"))
    Machine.of("cores:4000").save(tmp_path / "big.toml")
    assert main(["tune", str(network_file), "--machine", str(tmp_path / "big.toml")]) == 1
    assert "this host has no core 4000" in capsys.readouterr().err


def _shell(*argv: str, interrupted_after: str | None = None) -> tuple[int, str, str]:
    """A command as a user starts it, and interrupts it when it has said something."""
    process = subprocess.Popen(
        [sys.executable, "-m", "partitioner.cli", *argv],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    said = ""
    assert process.stderr is not None
    while interrupted_after is not None and interrupted_after not in said:
        said += process.stderr.readline()
        assert process.poll() is None, said
    if interrupted_after is not None:
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    out, err = process.communicate(timeout=300)
    return process.returncode, out, said + err


@pytest.mark.slow
def test_tune_is_interrupted_goes_on_and_is_used(
    network_file: Path, pair: list[str], tmp_path: Path
) -> None:
    folder = tmp_path / "records"
    argv = ["tune", str(network_file), "--devices", pair[0], "--records", str(folder)]
    code, out, err = _shell(*argv, "--budget", "10m", interrupted_after="x the rules' speed so far")
    assert (code, out) == (130, "")
    assert re.search(rf"^kept \d+ records in {folder}\ninterrupted$", err, re.M)
    assert "Traceback" not in err
    (kind,) = folder.iterdir()
    before = (kind / "database_tuning_record.json").read_text(encoding="utf-8")
    code, out, err = _shell(*argv, "--budget", "20s")
    assert code == 0, err
    assert f"records in {folder}" in out
    assert (kind / "database_tuning_record.json").read_text(encoding="utf-8").startswith(before)
    kept = len(Records.load(folder))
    used = ["run", str(network_file), "--devices", pair[0], "--estimate", "--tuning", str(folder)]
    code, out, err = _shell(*used, "--items", "3", "--rounds", "1", "--seconds", "0.02")
    assert code == 0, err
    assert f" of 7 ops from records ({folder} for {kind.name}), " in out or kept == 0
    assert "outputs of 3 items: bitwise equal" in out


@pytest.mark.parametrize("command", ["profile", "plan", "run"])
def test_records_that_are_not_there(
    command: str,
    network_file: Path,
    pair: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    argv = [command, str(network_file), "--devices", *pair, "--tuning", str(tmp_path / "absent")]
    output = ["-o", str(tmp_path / "out.json")] if command == "profile" else ["--estimate"]
    assert main([*argv, *output]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(
        f"error: {tmp_path / 'absent'}: there is no such folder of tuning records; "
    )
    assert err.count("\n") == 1
    assert not (tmp_path / "out.json").exists()
