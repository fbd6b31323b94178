"""Refining on this machine: what is there afterwards. Times are not judged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from partitioner import Partition, ProfileTable, auto_partition
from partitioner.cli import main
from partitioner.errors import InputError
from partitioner.frontend import Grouped
from partitioner.runtime.build import BuildCache


def require_refined(part: Partition, first: Partition) -> None:
    """What holds of every refined partition."""
    told = part.refinement
    assert told is not None
    assert told.rounds
    trials = told.rounds[0].trials
    assert trials[0].plan == 0
    assert first.plan.predicted is not None
    assert trials[0].predicted_s == pytest.approx(first.plan.predicted.period_s)
    assert all(trial.measured_s > 0 for each in told.rounds for trial in each.trials)
    assert sum(factor.workers for factor in told.factors) >= len(trials)
    assert all(factor.run > 0 and factor.send > 0 for factor in told.factors)
    assert part.plan.predicted is not None
    assert part.plan.predicted.bound_s <= part.plan.predicted.period_s * (1 + 1e-9)
    assert part.problem.time_s.shape == first.problem.time_s.shape
    assert (part.problem.time_s != first.problem.time_s).any()
    # The profile, and what it said of the first plan, are as they were.
    assert part.profile.hash == first.profile.hash
    assert first.refinement is None


def test_squeezenet(pair: list[str], builds: BuildCache) -> None:
    first = auto_partition(
        "zoo:squeezenet", pair, profile="estimate", strategy="pipeline", builds=builds
    )
    part = first.refined(1, strategy="pipeline", repeats=1, seconds=0.05)
    require_refined(part, first)
    assert part.refinement is not None
    cuts = [trial.cut for trial in part.refinement.rounds[0].trials]
    assert len(cuts) == len(set(cuts)) > 1
    assert all(" > " in cut for cut in cuts)
    report = part.measure(rounds=1, seconds=0.05)
    assert report.outputs is not None
    assert report.outputs.max_abs_diff == 0.0
    assert "refined in 1 round of 1 repeat: " in str(report)
    assert report.to_data()["refinement"]["chosen"] == part.refinement.chosen


def test_a_profile_and_all_kinds_of_plans(
    grouped: Grouped, measured: Partition, pair: list[str], builds: BuildCache
) -> None:
    said: list[tuple[str, float]] = []
    first = auto_partition(grouped, pair, profile=measured.profile, builds=builds)
    part = auto_partition(
        grouped,
        pair,
        refine=1,
        profile=measured.profile,
        builds=builds,
        progress=lambda what, done: said.append((what, done)),
    )
    require_refined(part, first)
    assert [what for what, _ in said if what.startswith("refining, round 1 of 1: ")]
    assert all(0 <= done <= 1 for _, done in said)


def test_the_command(
    network_file: Path,
    profile_file: Path,
    cache_home: Path,
    pair: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache_home))
    profile, path = tmp_path / "profile.json", tmp_path / "plan.json"
    ProfileTable.load(profile_file).save(profile)
    argv = ["plan", str(network_file), "--devices", *pair, "--profile", str(profile)]
    assert main([*argv, "--refine", "1", "--replicas", "1", "-o", str(path)]) == 0
    printed = capsys.readouterr().out
    assert ", refined: period at least" in printed
    assert "refined in 1 round of 3 repeats: " in printed
    assert json.loads(path.read_text(encoding="utf-8"))["model"] == "small"


def test_a_given_plan_is_not_refined(grouped: Grouped, measured: Partition) -> None:
    with pytest.raises(InputError, match="refine=2: rounds are 0 or more, and 0 with a given plan"):
        auto_partition(grouped, measured.machine, plan=measured.plan, refine=2)
    with pytest.raises(InputError, match="refine=-1"):
        auto_partition(grouped, measured.machine, refine=-1)
