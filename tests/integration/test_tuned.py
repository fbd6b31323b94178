"""Records of tuning from where they are read to the kernels, times and reports that follow."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from tvm.s_tir import Schedule

from partitioner import Machine, Partition, ProfileTable, auto_partition, profile_model
from partitioner.api import import_model
from partitioner.cost import op_keys, options_of
from partitioner.errors import InputError, TuningError
from partitioner.files import cache_home
from partitioner.frontend import Grouped
from partitioner.lowering import Choice, host_target, tiles_of, workload
from partitioner.lowering.isa import kind_of
from partitioner.lowering.schedule import apply_trace
from partitioner.machine import Device
from partitioner.profiling import collect as job
from partitioner.profiling.measure import InPlace
from partitioner.profiling.table import Handover, Measurement, OpKey
from partitioner.rewrite.split import split
from partitioner.runtime.build import BuildCache, Built
from partitioner.tuning.database import Database, Row
from partitioner.tuning.defaults import default_records
from partitioner.tuning.records import CONFIRMED, Records

Array = np.ndarray[Any, np.dtype[Any]]

SERIAL = Choice(trace="[[], []]")
"""The kernel that TVM makes of an op, as it is."""


def backwards(grouped: Grouped, name: str) -> Choice:
    """A convolution that sums over its kernel before its channels, as no rule does."""
    op = grouped.graph.find_op(name).name
    schedule = Schedule(workload(grouped.module, op, host_target(1)))
    *_, channels, rows, columns = schedule.get_loops(schedule.get_sblock("conv2d_nchw"))
    schedule.reorder(columns, rows, channels)
    return Choice(trace=json.dumps(schedule.trace.as_json()))


class Chosen:
    """Stands for records: a choice by signature and the fewest threads that it is for."""

    notes: tuple[str, ...] = ()

    def __init__(self, choices: Mapping[tuple[str, int], Choice]) -> None:
        self._choices = choices

    def choice(self, signature: str, target: Any, threads: int) -> Choice | None:
        fitting = [k for each, k in self._choices if each == signature and k <= threads]
        return self._choices[signature, max(fitting)] if fitting else None

    def digest(self, signature: str, target: Any, threads: int) -> str:
        choice = self.choice(signature, target, threads)
        return "" if choice is None else hashlib.sha256(repr(choice).encode()).hexdigest()[:12]

    def source(self, signature: str, target: Any, threads: int) -> str:
        return "made up" if self.choice(signature, target, threads) else ""

    def __len__(self) -> int:
        return len(self._choices)


def keep(folder: Path, choices: Mapping[str, Choice], threads: int = 1) -> Path:
    """Records of kernels twice as fast as the rules', by signature."""
    target = host_target(1)
    database = Database(folder / kind_of(target))
    for op, choice in choices.items():
        database.add(Row(op, threads, Choice(), (2.0,) * CONFIRMED), target)
        database.add(Row(op, threads, choice, (1.0,) * CONFIRMED), target)
    return folder


@pytest.fixture(scope="module")
def signatures(grouped: Grouped) -> dict[str, str]:
    """Of the ops, by source node."""
    return {source: op.signature for op in grouped.graph.ops for source in op.sources}


@pytest.fixture(scope="module")
def tiles(grouped: Grouped) -> dict[str, tuple[int, ...]]:
    """By signature, the last tile that a rule would take: not its own choice."""
    found = {
        op.signature: tiles_of(grouped.module, op.name, host_target(1)) for op in grouped.graph.ops
    }
    return {each: tiles[-1] for each, tiles in found.items() if len(tiles) > 1}


@pytest.fixture
def by_rule(builds: BuildCache) -> BuildCache:
    return builds.using(Records.none())


def whole(grouped: Grouped) -> Any:
    return split(grouped.module, grouped.graph, [0] * len(grouped.graph.ops))[0]


def cores(n: int) -> Device:
    return Device("cores", cpus=tuple(range(n)))


# Builds


def test_a_record_makes_another_kernel_of_its_op_alone(
    grouped: Grouped, by_rule: BuildCache, tiles: dict[str, tuple[int, ...]]
) -> None:
    assert len(tiles) >= 2
    signature, tile = next(iter(tiles.items()))
    records: Any = Chosen({(signature, 1): Choice(tile=tile)})
    rule = by_rule.build(whole(grouped), cores(1))
    tuned = by_rule.using(records).build(whole(grouped), cores(1))
    assert tuned.path != rule.path
    assert rule.recorded == ()
    changed = {op for (op, a), (_, b) in zip(rule.kernels, tuned.kernels, strict=True) if a != b}
    of_record = {op.name for op in grouped.graph.ops if op.signature == signature}
    assert changed == set(tuned.recorded) == of_record
    # Found again, it is the same.
    assert by_rule.using(records).build(whole(grouped), cores(1)) == tuned


def test_records_that_say_nothing_of_a_model_change_nothing(
    grouped: Grouped, by_rule: BuildCache
) -> None:
    records: Any = Chosen({("of another model", 1): SERIAL})
    rule = by_rule.build(whole(grouped), cores(1))
    assert by_rule.using(records).build(whole(grouped), cores(1)) == rule


def test_one_build_serves_all_numbers_of_threads_with_equal_kernels(
    grouped: Grouped, by_rule: BuildCache, tiles: dict[str, tuple[int, ...]]
) -> None:
    (first, tile), *_ = tiles.items()
    records: Any = Chosen({(first, 1): Choice(tile=tile), (first, 4): SERIAL})
    builds = by_rule.using(records)
    built = [builds.build(whole(grouped), cores(threads)).path for threads in (1, 2, 3, 4, 5)]
    assert len({*built[:3]}) == len({*built[3:]}) == 1
    assert built[0] != built[3]


# Times


def test_a_retuned_kernel_never_keeps_its_time(
    grouped: Grouped,
    by_rule: BuildCache,
    pair: list[str],
    tiles: dict[str, tuple[int, ...]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    visited: list[str] = []
    visits = count(1)

    def measure(built: Built, inputs: Any, device: Device, **options: Any) -> InPlace:
        visited.append(device.name)
        row = Measurement(next(visits) * 1e-3, 0.0, 5)
        return InPlace(row, tuple((op, row) for op, _ in built.kernels), 1e-6)

    monkeypatch.setattr(job, "measure_in_place", measure)
    monkeypatch.setattr(job, "measure_handover", lambda a, b: Handover(1e-5, 0.0, 1e-5, 0.0))
    path = tmp_path / "profile.json"

    def profiled(records: Any, **options: Any) -> ProfileTable:
        visited.clear()
        return profile_model(
            grouped,
            Machine.of(pair[:1]),
            profile=path,
            seconds=0.02,
            builds=by_rule.using(records),
            **options,
        )

    (first, tile), (second, other), *_ = tiles.items()
    rule = profiled(Records.none())
    assert visited
    assert {row.kernel for row in rule.ops.values()} == {""}
    assert profiled(Records.none()) == rule
    assert visited == []

    said: list[str] = []
    one = Chosen({(first, 1): Choice(tile=tile)})
    tuned = profiled(one, progress=lambda what, part: said.append(what))
    assert visited == pair[:1] * 3
    assert said[0] == "known times of other kernels than are made now: 1, taken anew"
    assert {key.signature for key, row in tuned.ops.items() if row.kernel} == {first}
    (retuned,) = (key for key in tuned.ops if key.signature == first)
    assert (rule.time_s(retuned), tuned.time_s(retuned)) == (2e-3, 5e-3)
    assert ProfileTable.load(path) == tuned
    assert profiled(one) == tuned
    assert visited == []
    # Another record of the same op, one more op, and none any more.
    for records in (
        Chosen({(first, 1): SERIAL}),
        Chosen({(first, 1): SERIAL, (second, 1): Choice(tile=other)}),
        Records.none(),
    ):
        profiled(records)
        assert visited


def test_times_beside_busy_cores_are_of_the_kernels_too(
    grouped: Grouped, measured: Partition, by_rule: BuildCache, tiles: dict[str, tuple[int, ...]]
) -> None:
    (first, tile), *_ = tiles.items()
    records: Any = Chosen({(first, 1): Choice(tile=tile)})
    options = options_of(measured.machine)
    kernels = job._kernels(grouped.graph, options, by_rule.using(records))
    assert set(kernels) == set(op_keys(grouped.graph, options))
    assert {key.signature for key, digest in kernels.items() if digest} == {first}
    rows = {key: replace(row, kernel="") for key, row in measured.profile.ops.items()}
    table = replace(measured.profile, ops=rows, contended=rows)
    left = table.without_other_kernels(kernels)
    gone = {OpKey(first, device.name, device.threads) for device in options}
    assert set(table.ops) - set(left.ops) == set(table.contended) - set(left.contended) == gone


def test_a_profile_for_another_machine_is_taken_as_it_is(
    grouped: Grouped,
    measured: Partition,
    builds: BuildCache,
    pair: list[str],
    tiles: dict[str, tuple[int, ...]],
) -> None:
    (first, tile), *_ = tiles.items()
    records: Any = Chosen({(first, 1): Choice(tile=tile)})
    part = auto_partition(
        grouped,
        pair,
        profile=measured.profile,
        allow_foreign_profile=True,
        builds=builds.using(records),
    )
    assert part.profile == measured.profile


# Plans that run


def outputs(part: Partition, items: list[dict[str, Array]]) -> list[bytes]:
    with part.pipeline(workers="thread") as pipe:
        return [array.tobytes() for result in pipe.map(items) for array in result]


def test_tiles_change_no_bit_and_the_report_counts_them(
    grouped: Grouped,
    measured: Partition,
    builds: BuildCache,
    tiles: dict[str, tuple[int, ...]],
    items: list[dict[str, Array]],
    pair: list[str],
    tmp_path: Path,
) -> None:
    folder = keep(tmp_path, {each: Choice(tile=tile) for each, tile in tiles.items()})
    part = auto_partition(
        grouped, pair, strategy="pipeline", profile="estimate", tuning=folder, builds=builds
    )
    assert len(part.plan.stages) == 2
    assert {built.path for stage in part.build() for built in stage}.isdisjoint(
        built.path for stage in measured.build(part.plan) for built in stage
    )
    assert outputs(part, items) == outputs(measured, items)
    report = part.measure(items, rounds=1, seconds=0.02)
    assert report.outputs is not None
    assert (report.outputs.max_abs_diff, report.outputs.tolerance) == (0.0, 0.0)
    n = sum(op.signature in tiles for op in grouped.graph.ops)
    rest = len(grouped.graph.ops) - n
    where = f"{folder} for {kind_of(host_target(1))}"
    assert f"kernels: {n} of {n + rest} ops from records ({where}), {rest} by rule" in str(report)
    assert report.to_data()["kernels"]["recorded"] == n


def test_stages_have_the_bits_of_the_uncut_model_with_schedules_too(
    grouped: Grouped,
    measured: Partition,
    builds: BuildCache,
    signatures: dict[str, str],
    items: list[dict[str, Array]],
    expected: list[tuple[Array, ...]],
    pair: list[str],
) -> None:
    names = ("block", "wide")
    records: Any = Chosen({(signatures[name], 1): backwards(grouped, name) for name in names})
    part = auto_partition(
        grouped, pair, strategy="pipeline", profile="estimate", builds=builds.using(records)
    )
    found = outputs(part, items)
    assert part.report.kernels is not None
    assert part.report.kernels.recorded == len(names)
    assert found != outputs(measured, items)  # or nothing was shown
    with part.reference(workers="thread") as uncut:
        assert found == [array.tobytes() for row in uncut.map(items) for array in row]
    wanted = [array for row in expected for array in row]
    for raw, array in zip(found, wanted, strict=True):
        np.testing.assert_allclose(
            np.frombuffer(raw, array.dtype).reshape(array.shape), array, atol=1e-3 * np.ptp(array)
        )


# What is asked for


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    return cache_home()


@pytest.fixture
def planned(grouped: Grouped, builds: BuildCache, pair: list[str]) -> Callable[..., Partition]:
    def make(tuning: Any, given: BuildCache | None = builds, **options: Any) -> Partition:
        return auto_partition(
            grouped, pair[:1], profile="estimate", tuning=tuning, builds=given, **options
        )

    return make


@pytest.mark.usefixtures("home")
def test_rules_alone(planned: Callable[..., Partition], builds: BuildCache) -> None:
    part = planned(None)
    assert len(part.builds.records) == 0
    assert part.builds.folder == builds.folder
    assert part.report.kernels is not None
    assert part.report.kernels.recorded == 0


def test_default_leaves_the_records_of_builds(
    planned: Callable[..., Partition], builds: BuildCache, signatures: dict[str, str]
) -> None:
    records: Any = Chosen({(signatures["wide"], 1): SERIAL})
    part = planned("default", builds.using(records))
    assert part.builds.records is records
    assert part.report.kernels is not None
    assert part.report.kernels.recorded == 1
    assert len(planned(None, builds.using(records)).builds.records) == 0


def test_seconds_tune_first_and_what_is_kept_is_used(
    planned: Callable[..., Partition],
    home: Path,
    grouped: Grouped,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Any] = []

    def tune(model: Grouped, machine: Machine, folder: Path, **options: Any) -> None:
        asked.append((model.graph, folder, options["seconds"]))

    monkeypatch.setattr("partitioner.tuning.session.tune", tune)
    part = planned(2.5)
    assert asked == [(grouped.graph, home / "tuning", 2.5)]
    assert part.builds.records is not None


def test_the_users_own_records_come_before_the_shipped(
    planned: Callable[..., Partition],
    home: Path,
    tiles: dict[str, tuple[int, ...]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (first, tile), (second, other), *_ = tiles.items()
    mine, theirs = Choice(tile=tile), Choice(tile=other)
    old = Choice(tile=(*tile, 1))
    shipped = Records.load(keep(tmp_path / "shipped", {first: old, second: theirs}))
    monkeypatch.setattr(Records, "shipped", lambda: shipped)
    assert default_records() == shipped
    keep(home / "tuning", {first: mine})
    records = planned("default", None).builds.records
    target = host_target(1)
    assert (records.choice(first, target, 1), records.choice(second, target, 1)) == (mine, theirs)
    # Of another TVM, they are left out and stay as they are.
    about = home / "tuning" / kind_of(target) / "about.json"
    data = {**json.loads(about.read_text(encoding="utf-8")), "tvm": "0.1"}
    about.write_text(json.dumps(data), encoding="utf-8")
    said: list[str] = []
    part = planned("default", None, progress=lambda what, part: said.append(what))
    assert part.builds.records.choice(first, target, 1) == old
    assert said[0].startswith(f"left out: {about.parent}: these tuning records were made with TVM")
    assert json.loads(about.read_text(encoding="utf-8")) == data


@pytest.mark.parametrize("tuning", [0, -1.0, float("inf"), float("nan"), True])
def test_no_time_to_tune_for(tuning: Any, planned: Callable[..., Partition]) -> None:
    with pytest.raises(InputError, match=r"tuning=.* is no time to tune for; give seconds above"):
        planned(tuning)


def test_what_a_killed_run_left_is_said_and_the_rest_used(
    planned: Callable[..., Partition], tiles: dict[str, tuple[int, ...]], tmp_path: Path
) -> None:
    (first, tile), *_ = tiles.items()
    folder = keep(tmp_path, {first: Choice(tile=tile)})
    (path,) = folder.glob("*/database_tuning_record.json")
    whole = path.read_text(encoding="utf-8")
    path.write_text(whole + whole[:40], encoding="utf-8")
    said: list[str] = []
    part = planned(folder, progress=lambda what, part: said.append(what))
    assert "1 line is half-written or no tuning record" in said[0]
    assert part.report.kernels is not None
    assert part.report.kernels.recorded >= 1
    assert path.read_text(encoding="utf-8") == whole + whole[:40]


def test_the_shipped_records_fit_the_rules_of_today() -> None:
    """One that does not is passed over in silence, and counted as a record all the same."""
    target = tvm.target.Target({"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "znver3"})
    grouped, shipped = import_model("zoo:ppocr_det"), Records.shipped()  # the demo's network
    found = {
        (op.name, shipped.choice(op.signature, target, threads))
        for op in grouped.graph.ops
        for threads in (1, 2)
    }
    tiled = [(op, choice.tile) for op, choice in found if choice and choice.tile]
    traced = [(op, choice.trace) for op, choice in found if choice and choice.trace]
    assert tiled
    assert traced
    for op, tile in tiled:
        assert tile in tiles_of(grouped.module, op, target), op
    for op, trace in traced:
        assert apply_trace(workload(grouped.module, op, target), trace) is not None, op


def test_no_such_folder(planned: Callable[..., Partition], tmp_path: Path) -> None:
    with pytest.raises(
        TuningError, match=r"absent: there is no such folder of tuning records; `partitioner"
    ):
        planned(tmp_path / "absent")
