"""The profile job: what it measures, keeps, continues and refuses."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tvm

from partitioner import (
    Machine,
    Partition,
    ProfileTable,
    auto_partition,
    import_model,
    profile_model,
)
from partitioner.cost import op_keys, options_of
from partitioner.errors import InputError, ProfileError
from partitioner.frontend import Grouped
from partitioner.graph import Tensor
from partitioner.machine import Device
from partitioner.profiling import collect as job
from partitioner.profiling.measure import InPlace, measure_in_place
from partitioner.profiling.rivals import busy, rivals_of
from partitioner.profiling.table import Handover, Measurement, OpKey
from partitioner.rewrite.split import split
from partitioner.runtime.build import BuildCache, Built

Profile = Callable[..., ProfileTable]


class Steady:
    """Stands for watching cores; says what it is told to."""

    said: tuple[str, ...] = ()

    def __init__(self) -> None:
        self.visited: set[int] = set()

    def visit(self, cpus: Sequence[int]) -> nullcontext[None]:
        self.visited |= set(cpus)
        return nullcontext()

    def notes(self) -> tuple[str, ...]:
        return tuple(f"core {cpu} {what}" for cpu in sorted(self.visited) for what in self.said)


class Clock:
    """Stands for measuring: notes the devices, and gives op number n of a model n + 1 ms."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.devices: list[str] = []
        self.placements: list[tuple[str, int]] = []
        self.busy: tuple[tuple[str, tuple[int, ...]], ...] = ()
        self.beside: list[tuple[tuple[str, tuple[int, ...]], ...]] = []
        self.slowdown = 1.0
        self.stretch = 1.0
        self.interrupted_by: str | None = None
        monkeypatch.setattr(job, "measure_in_place", self.measure)
        monkeypatch.setattr(job, "Steadiness", Steady)
        monkeypatch.setattr(job, "measure_handover", lambda a, b: Handover(1e-5, 0.0, 1e-5, 0.0))

    @property
    def visited(self) -> list[str]:
        """The devices measured, each once, in order."""
        return list(dict.fromkeys(self.devices))

    def measure(
        self, built: Built, inputs: Sequence[Tensor], device: Device, **options: Any
    ) -> InPlace:
        self.devices.append(device.name)
        self.placements.append((device.name, device.threads))
        self.beside += [self.busy] if self.busy else []
        if device.name == self.interrupted_by:
            raise KeyboardInterrupt
        ops = tuple(
            (name, Measurement((number + 1) * 1e-3 * self.slowdown, 0.0, 5))
            for number, (name, _) in enumerate(built.kernels)
        )
        return InPlace(Measurement(1.0, 0.0, 5), ops, 1e-6, self.stretch)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@pytest.fixture
def profile(grouped: Grouped, pair: list[str], builds: BuildCache) -> Profile:
    """`profile_model` of the small network on two cores."""

    def make(**options: Any) -> ProfileTable:
        devices = options.pop("devices", pair)
        return profile_model(grouped, Machine.of(devices), builds=builds, **options)

    return make


def names_of(pair: list[str]) -> list[str]:
    return [device.name for device in options_of(Machine.of(pair))]


# Measured for real


def test_every_op_is_measured_on_every_placement(measured: Partition) -> None:
    table, options = measured.profile, options_of(measured.machine)
    assert [device.threads for device in options] == [1, 1, 2]
    assert set(table.ops) == set(op_keys(measured.graph, options))
    assert all(row.runs >= 10 for row in table.ops.values())
    assert all(row.median_s < 1.0 for row in table.ops.values())
    assert set(table.host_s) == {(device.name, device.threads) for device in options}
    assert table.handover is not None
    assert table.handover.send_base_s > 0
    assert not table.estimated
    # A reshape runs no kernel; everything else takes time.
    views = {op.signature for op in measured.graph.ops if op.kind == "reshape"}
    assert {key.signature for key, row in table.ops.items() if row.median_s == 0} == views


LONG = """
@I.ir_module
class Module:
    @R.function
    def main(x: R.Tensor((384, 384), "float32")):
        with R.dataflow():
            a = R.nn.relu(R.matmul(x, x))
            b = R.nn.softmax(a)
            c = R.matmul(b, a)
            R.output(c)
        return c
"""


def test_ops_timed_in_place_add_up_to_the_whole(pair: list[str], builds: BuildCache) -> None:
    # Milliseconds an op, against which what the caller and the timers cost is nothing.
    long = import_model(tvm.script.from_source(LONG))
    graph, device = long.graph, Machine.of(pair[:1]).devices[0]
    built = builds.build(split(long.module, graph, [0] * len(graph.ops))[0], device)
    inputs = [graph.tensors[tensor] for tensor in graph.inputs]
    found = measure_in_place(built, inputs, device, seconds=0.1)
    assert [name for name, _ in found.ops] == [op.name for op in graph.ops]
    assert all(row.median_s > 0 for _, row in found.ops)
    # Generous, since other processes may run meanwhile; they make the whole longer, not its work.
    ops = sum(row.median_s for _, row in found.ops)
    assert ops < found.total.median_s * 2
    assert found.dispatch_s * len(found.ops) < ops
    assert found.total.runs >= 5


# Continued


def test_only_what_is_missing_is_measured(
    clock: Clock, profile: Profile, pair: list[str], tmp_path: Path
) -> None:
    path = tmp_path / "profile.json"
    profile(devices=pair[:1], profile=path)
    assert clock.visited == pair[:1]
    table = profile(profile=path)
    assert clock.visited == names_of(pair)
    assert ProfileTable.load(path) == table
    assert profile(profile=path) == table
    assert clock.visited == names_of(pair)


def test_one_missing_op_has_its_device_measured_again(
    clock: Clock, profile: Profile, pair: list[str], grouped: Grouped, tmp_path: Path
) -> None:
    path = tmp_path / "profile.json"
    table = profile(profile=path)
    gone = next(key for key in table.ops if key.device == pair[1])
    replace(table, ops={key: row for key, row in table.ops.items() if key != gone}).save(path)
    clock.devices.clear()
    assert profile(profile=path).ops == table.ops
    assert clock.visited == [pair[1]]


def test_times_in_a_table_are_not_measured_again(
    clock: Clock, profile: Profile, pair: list[str]
) -> None:
    half = profile(devices=pair[:1])
    clock.devices.clear()
    whole = profile(profile=half)
    assert clock.visited == names_of(pair)[1:]
    assert half.ops.items() <= whole.ops.items()


def test_an_interrupted_profile_is_continued(
    clock: Clock, profile: Profile, pair: list[str], tmp_path: Path
) -> None:
    path = tmp_path / "profile.json"
    clock.interrupted_by = pair[1]
    with pytest.raises(KeyboardInterrupt):
        profile(profile=path)
    assert {key.device for key in ProfileTable.load(path).ops} == {pair[0]}
    assert [file.name for file in tmp_path.iterdir()] == ["profile.json"]
    clock.interrupted_by = None
    clock.devices.clear()
    table = profile(profile=path)
    assert clock.visited == names_of(pair)[1:]
    assert {key.device for key in table.ops} == set(names_of(pair))


def test_the_time_it_takes_is_said_before_it_begins(
    clock: Clock, profile: Profile, pair: list[str]
) -> None:
    said: list[tuple[str, float, int]] = []
    profile(progress=lambda what, part: said.append((what, part, len(clock.devices))), seconds=8.0)
    first, second, both = names_of(pair)
    assert said[0] == (f"profiling small on {first}, {second}, {both} x2: about 54 s", 0.0, 0)
    assert said[-1] == ("profiled", 1.0, 9)
    parts = [part for _, part, _ in said]
    assert parts == sorted(parts)


def test_ops_of_one_kernel_share_a_row_and_keep_their_sum(
    clock: Clock, builds: BuildCache, pair: list[str]
) -> None:
    twice = tvm.script.from_source("""
@I.ir_module
class Module:
    @R.function
    def main(x: R.Tensor((4, 4), "float32")):
        with R.dataflow():
            a = R.matmul(x, x)
            b = R.matmul(a, a)
            R.output(b)
        return b
""")
    part = auto_partition(twice, pair[:1], builds=builds)
    first, second = part.graph.ops
    assert first.signature == second.signature
    assert [row.median_s for row in part.profile.ops.values()] == [pytest.approx(1.5e-3)]


# Core counts, and busy neighbours


EIGHT = Machine("board", (Device("big", cpus=tuple(range(8))), Device("little", cpus=(8, 9))))
"""Nobody measures there, so that any host will do."""


@pytest.fixture
def board(
    clock: Clock, grouped: Grouped, builds: BuildCache, monkeypatch: pytest.MonkeyPatch
) -> Profile:
    """`collect` of the small network on `EIGHT`, with loads that only note what they would keep
    busy."""

    @contextmanager
    def noted(rivals: Sequence[tuple[Built, Device]], inputs: Sequence[Tensor]) -> Iterator[None]:
        clock.busy = tuple((device.name, device.cpus) for _, device in rivals)
        yield
        clock.busy = ()

    monkeypatch.setattr(job, "busy", noted)

    def make(**options: Any) -> ProfileTable:
        return job.collect(
            grouped.module, grouped.graph, EIGHT, options_of(EIGHT), builds=builds, **options
        )

    return make


def counts_of(table: ProfileTable, *, interpolated: bool) -> set[int]:
    return {
        key.threads
        for key, row in table.ops.items()
        if key.device == "big" and row.interpolated == interpolated
    }


def test_of_a_large_cluster_some_numbers_of_cores_are_measured(
    clock: Clock, board: Profile, grouped: Grouped, tmp_path: Path
) -> None:
    path = tmp_path / "profile.json"
    table = board(path=path)
    wanted = [("big", 1), ("big", 2), ("big", 4), ("big", 8), ("little", 1), ("little", 2)]
    assert clock.placements == [*wanted, ("cores:0-9", 10)] * 3
    assert counts_of(table, interpolated=True) == {3, 5, 6, 7}
    assert counts_of(table, interpolated=False) == {1, 2, 4, 8}
    assert table.missing(op_keys(grouped.graph, options_of(EIGHT))) == ()
    assert ProfileTable.load(path) == table
    clock.placements.clear()
    assert board(path=path) == table
    assert clock.placements == []


def test_rows_that_a_plan_rests_on_are_measured_when_asked(
    clock: Clock, board: Profile, grouped: Grouped
) -> None:
    table = board()
    clock.placements.clear()
    signature = grouped.graph.ops[0].signature
    asked = [OpKey(signature, "big", 6), OpKey(signature, "big", 4)]
    better = board(known=table, exact=asked)
    assert clock.placements == [("big", 6)] * 3
    assert counts_of(better, interpolated=True) == {3, 5, 7}


def test_times_beside_busy_cores_are_kept_apart(
    clock: Clock, board: Profile, grouped: Grouped
) -> None:
    alone = board()
    clock.placements.clear()
    clock.slowdown = 2.0
    table = board(known=alone, contended=True)
    assert table.ops == alone.ops
    assert clock.placements[:6] == [
        ("big", 1), ("big", 2), ("big", 4), ("big", 8), ("little", 1), ("little", 2)
    ]  # fmt: skip
    assert clock.beside[0] == (("big", (1, 2, 3, 4, 5, 6, 7)), ("little", (8, 9)))
    assert clock.beside[3] == (("little", (8, 9)),)
    assert clock.beside[4] == (("big", tuple(range(8))), ("little", (9,)))
    for key, row in table.ops.items():
        # Nothing is beside all cores.
        assert (key in table.contended) == (key.device != "cores:0-9")
        if key in table.contended:
            assert table.contended[key].median_s == pytest.approx(2 * row.median_s)
            assert table.contended[key].interpolated == row.interpolated
    assert board(known=table, contended=True) == table


def test_a_quota_is_noted(clock: Clock, profile: Profile, pair: list[str]) -> None:
    clock.stretch = 2.5
    (note,) = profile(devices=pair[:1]).notes
    assert note == (
        f"{pair[0]}: a quota stops its processes; each time is processor time times 2.50"
    )


def test_what_moved_is_noted_and_said(
    clock: Clock, profile: Profile, pair: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Steady, "said", ("slowed down",))
    said: list[str] = []
    table = profile(devices=pair[:1], progress=lambda what, part: said.append(what))
    core = pair[0].removeprefix("cores:")
    assert table.notes == (f"core {core} slowed down",)
    assert said[-2:] == [f"core {core} slowed down", "profiled"]
    # What is known already is not watched.
    assert profile(devices=pair, profile=table).notes == (
        f"core {core} slowed down",
        f"core {pair[1].removeprefix('cores:')} slowed down",
    )


def test_the_other_cores_are_really_busy(
    pair: list[str], builds: BuildCache, grouped: Grouped
) -> None:
    machine = Machine.of(pair)
    here, there = machine.devices
    assert rivals_of(machine, here) == (there,)
    whole = split(grouped.module, grouped.graph, [0] * len(grouped.graph.ops))[0]
    built = builds.build(whole, there)
    inputs = [grouped.graph.tensors[tensor] for tensor in grouped.graph.inputs]
    before = set(_children())
    with busy([(built, there)], inputs):
        (load,) = set(_children()) - before
        assert os.sched_getaffinity(load) == set(there.cpus)
        began = _cpu_ticks(load)
        measure_in_place(builds.build(whole, here), inputs, here, seconds=0.1)
        assert _cpu_ticks(load) > began
    assert set(_children()) == before


def test_a_load_that_cannot_run_says_so(tmp_path: Path, pair: list[str]) -> None:
    absent = Built(tmp_path / "absent.so", ())
    device = Machine.of(pair).devices[0]
    refused = pytest.raises(ProfileError, match=rf"load for '{pair[0]}' failed: .*absent.so")
    with refused, busy([(absent, device)], []):
        pytest.fail("the block must not begin")


def _children() -> list[int]:
    text = Path(f"/proc/self/task/{os.getpid()}/children").read_text(encoding="ascii")
    return [int(pid) for pid in text.split()]


def _cpu_ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


# Refused


def foreign(path: Path, **changes: Any) -> None:
    data = json.loads(path.read_text(encoding="utf-8"))
    for key, value in changes.items():
        (data["origin"]["host"] if key in data["origin"]["host"] else data["origin"])[key] = value
    path.write_text(json.dumps(data), encoding="utf-8")


@pytest.mark.parametrize(
    ("changes", "difference"),
    [
        ({"cpu": "Other CPU"}, r"cpu: Other CPU, here "),
        ({"cores": 999}, r"cores: 999, here "),
        ({"tvm": "0.1"}, r"tvm: 0\.1, here 0\.27"),
        ({"lowering": "old"}, r"lowering: old, here "),
    ],
)
def test_a_profile_from_elsewhere_is_refused_and_says_why(
    changes: dict[str, Any],
    difference: str,
    clock: Clock,
    profile: Profile,
    tmp_path: Path,
) -> None:
    path = tmp_path / "profile.json"
    profile(profile=path)
    foreign(path, **changes)
    before = path.read_bytes()
    clock.devices.clear()
    for given in (path, ProfileTable.load(path)):
        with pytest.raises(ProfileError, match=rf"not made here: .*{difference}.*allow_foreign"):
            profile(profile=given)
    assert clock.devices == []
    assert path.read_bytes() == before


def test_a_profile_from_elsewhere_may_be_allowed(
    clock: Clock, profile: Profile, grouped: Grouped, pair: list[str], tmp_path: Path
) -> None:
    path = tmp_path / "profile.json"
    profile(profile=path)
    foreign(path, cpu="Other CPU")
    clock.devices.clear()
    part = auto_partition(grouped, pair, profile=path, allow_foreign_profile=True)
    assert part.profile.origin.host.cpu == "Other CPU"
    assert clock.devices == []


def test_a_foreign_profile_with_missing_ops_is_no_plan(
    clock: Clock, profile: Profile, grouped: Grouped, pair: list[str], tmp_path: Path
) -> None:
    path = tmp_path / "profile.json"
    profile(profile=path, devices=pair[:1])
    with pytest.raises(
        ProfileError, match=rf"lacks \d+ of the times.*op 'conv2d_add_relu_0' on '{pair[1]}'"
    ):
        auto_partition(grouped, pair, profile=path, allow_foreign_profile=True)


def test_a_place_that_cannot_be_written_is_noticed_first(
    clock: Clock, profile: Profile, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="cannot write here"):
        profile(profile=tmp_path / "absent" / "profile.json")
    assert clock.devices == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "not JSON"),
        ("[]", "not a profile of version 1"),
        ('{"version": 99}', "found 99"),
        ('{"version": 1}', "lacks the key 'origin'"),
    ],
)
def test_a_broken_profile_is_left_as_it_is(
    text: str, words: str, clock: Clock, profile: Profile, tmp_path: Path
) -> None:
    path = tmp_path / "profile.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ProfileError, match=words):
        profile(profile=path)
    assert path.read_text(encoding="utf-8") == text
    assert clock.devices == []
