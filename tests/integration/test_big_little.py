"""The big.LITTLE example: its simulator part as users run it, and its running part on two cores."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from partitioner import Machine, auto_partition, import_model
from partitioner.core_list import parse_cpus
from partitioner.host import allowed_cpus
from partitioner.machine import Device
from partitioner.runtime.build import BuildCache

FILE = Path(__file__).parents[2] / "examples" / "big_little.py"


@pytest.fixture(scope="module")
def example() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("big_little", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["big_little"] = module  # where dataclasses look for it
    spec.loader.exec_module(module)
    yield module
    del sys.modules["big_little"]


def test_the_board_in_simulated_time(
    example: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "out.json"
    assert example.main(["--simulate-only", "--json", str(data)]) == 0
    out = capsys.readouterr().out
    assert "hikey970, in simulated time" in out
    assert out.count("2 big | 2 big | 4 little") >= 2
    found: dict[str, Any] = json.loads(data.read_text(encoding="utf-8"))
    assert found["here"] == []
    rows = {(row["model"], row["plan"]): row for row in found["board"]}
    for model in ("mlp", "minilm"):
        hand, stages, best = (rows[model, plan] for plan in ("by hand", "stages", "best"))
        assert len(hand["stages"].split(" | ")) == 3
        # The one by hand is among those that the others are the best of.
        assert best["predicted_s"] <= stages["predicted_s"] * (1 + 1e-6)
        assert stages["predicted_s"] < hand["predicted_s"]
        for row in (hand, stages, best):
            # What deviates is the jitter, which queues of four take up almost entirely.
            assert row["full_speed"]["period_s"] == pytest.approx(row["predicted_s"], rel=0.05)
            assert row["at_load"]["period_s"] == pytest.approx(row["predicted_s"] / 0.8, rel=0.05)
            assert row["at_load"]["latency"]["p99_s"] > row["at_load"]["latency"]["p50_s"]


def test_threads_are_shown_where_they_were(
    example: ModuleType, builds: BuildCache, capsys: pytest.CaptureFixture[str]
) -> None:
    cpus = allowed_cpus()
    if len(cpus) < 2:
        pytest.skip(f"two stages need two cores; this process may use {cpus}")
    big, little = Device("big", cpus=cpus[:1]), Device("little", cpus=cpus[1:2])
    machine = Machine("halves", (big, little))
    options: dict[str, Any] = {"profile": "estimate", "builds": builds}
    grouped = import_model(example.perceptron())
    first = auto_partition(grouped, machine, **options)
    hand = example.by_hand(first.plan, machine, (("big", 1), ("little", 1)))
    # Five of nine layers, then four: each a matrix product with what follows it, one op or more.
    layers = [{name.split(".")[1] for name in _sources(hand, stage)} for stage in (0, 1)]
    assert layers == [set("01234"), set("5678")]
    part = auto_partition(grouped, machine, plan=hand, **options)
    capsys.readouterr()
    assert example.measured(part, 0.3) > 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[2:]]
    assert {row[0] for row in rows} == {"0.0", "1.0"}
    for stage, cores, _, may_use, was_on in rows:
        own = {"0.0": big.cpus, "1.0": little.cpus}[stage]
        assert parse_cpus(cores, stage) == parse_cpus(may_use, stage) == own
        assert set(parse_cpus(was_on, stage)) <= set(own)


def _sources(plan: Any, stage: int) -> list[str]:
    sources = dict(plan.sources)
    return [name for op in plan.stages[stage].ops for name in sources[op]]
