from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from partitioner.cli import main
from partitioner.plan import Plan


@pytest.fixture
def saved(plan: Plan, tmp_path: Path) -> str:
    path = tmp_path / "plan.json"
    plan.save(path)
    return str(path)


def test_a_plan_is_simulated(
    saved: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Two stages of 2.3 ms: see the `profile` fixture.
    data = tmp_path / "out.json"
    assert main(["simulate", saved, "--items", "300", "--jitter", "0", "--json", str(data)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("pipeline plan of tiny for pair, simulated: jitter 0%, seed 0\n")
    assert "period 2.3 ms (434.8 items/s)" in out
    assert "at 80% of that rate: latency p50 4.6 ms, p95 4.6 ms, p99 4.6 ms" in out
    assert "predicted: period 2.3 ms, latency 4.6 ms (atomic)" in out
    found = json.loads(data.read_text(encoding="utf-8"))
    assert found["full_speed"]["period_s"] == pytest.approx(2.3e-3)
    assert found["at_load"]["latency"]["p99_s"] == pytest.approx(4.6e-3)
    assert found["at_load"]["workers"][0]["utilisation"] == pytest.approx(0.8)


def test_the_seed_repeats_a_run(saved: str, capsys: pytest.CaptureFixture[str]) -> None:
    shown = []
    for seed in ("1", "1", "2"):
        assert main(["simulate", saved, "--items", "100", "--jitter", "0.2", "--seed", seed]) == 0
        shown.append(capsys.readouterr().out.split("\n", 1)[1])
    assert shown[0] == shown[1] != shown[2]


def test_contention_slows_the_stages_down(saved: str, tmp_path: Path) -> None:
    data = tmp_path / "out.json"
    options = ["--items", "200", "--jitter", "0", "--contention", "1.2", "--load", "0.5"]
    assert main(["simulate", saved, *options, "--json", str(data)]) == 0
    found = json.loads(data.read_text(encoding="utf-8"))
    assert found["full_speed"]["period_s"] == pytest.approx(1.2 * 2.3e-3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--seed", "-1"], "--seed is -1"),
        (["--contention", "0.5"], "each 1 or more"),
        (["--items", "1"], "items is 1"),
    ],
)
def test_wrong_numbers(
    saved: str, options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", saved, *options]) == 1
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("load", ["0", "1.5", "much"])
def test_wrong_load(saved: str, load: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["simulate", saved, "--load", load])
    assert "argument --load" in capsys.readouterr().err


def test_an_edited_plan(plan: Plan, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "edited.json"
    plan.stripped().save(path)
    assert main(["simulate", str(path)]) == 1
    assert "stage 0 has no predicted time" in capsys.readouterr().err


def test_it_loads_no_compiler(saved: str) -> None:
    code = (
        "import sys; from partitioner.cli import main; "
        f"main(['simulate', {saved!r}, '--items', '10']); "
        "sys.exit(bool({'tvm', 'onnx'} & {name.split('.')[0] for name in sys.modules}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, timeout=60, check=False
    )
    assert done.returncode == 0
