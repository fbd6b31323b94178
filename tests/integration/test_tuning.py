"""The search for better kernels: what it keeps, what it survives, and that kernels are chosen."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm_ffi import structural_equal

from partitioner import Machine
from partitioner.errors import DeviceError, TuningError
from partitioner.frontend import Grouped
from partitioner.lowering import Choice, build, host_target, lower, tiles_of
from partitioner.lowering.isa import kind_of
from partitioner.machine import Device
from partitioner.rewrite.split import split
from partitioner.tuning.client import Client
from partitioner.tuning.database import LOST_S, read
from partitioner.tuning.kernels import Kernels, interleaved, with_weights
from partitioner.tuning.records import Records
from partitioner.tuning.session import tune
from partitioner.tuning.sketches import sketches
from partitioner.tuning.tasks import Task, tasks_of, weightless

RULE = Choice()
TARGET = host_target(1)
KIND = kind_of(TARGET)


class Fake:
    """Measures by a table: seconds of an op's kernel are those of its rule times a factor.

    Attributes
    ----------
    factors : dict of (op name, choice) to float
        1.5 where an op and choice are not named; no times for 0.
    asked : list of (op name, choice)
        Candidates in the order in which they were measured.
    """

    batch = 1

    def __init__(self, factors: dict[tuple[str, Choice], float], stop_after: int = 10**9) -> None:
        self.factors = factors
        self.stop_after = stop_after
        self.asked: list[tuple[str, Choice]] = []
        self.drawn: list[tuple[str, int]] = []
        self.traces: list[str] = []
        self.ended = 0

    def __enter__(self) -> Fake:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.ended += 1

    def measure(
        self, task: Task, choices: Sequence[Choice], rounds: int, expected_s: float = 0.0
    ) -> list[list[float]]:
        assert choices[0] == RULE
        self.asked += [(task.name, choice) for choice in choices[1:]]
        if len(self.asked) > self.stop_after:
            raise KeyboardInterrupt
        factors = [1.0, *(self.factors.get((task.name, c), 1.5) for c in choices[1:])]
        # The machine's pace is another in every round.
        return [
            [1e-3 * factor * (1 + turn % 3) for turn in range(rounds)] if factor else []
            for factor in factors
        ]

    def sketches(self, task: Task, count: int, seed: int, patience_s: float) -> list[Choice]:
        self.drawn.append((task.name, seed))
        return [Choice(trace=trace) for trace in self.traces]


def tuned(grouped: Grouped, folder: Path, fake: Fake, **options: Any) -> Records:
    machine = Machine("host", (Device("cores:0", cpus=(0,)),))
    return tune(grouped, machine, folder, measure=lambda device, target: fake, **options)


def conv_of(grouped: Grouped) -> tuple[str, str, tuple[Choice, ...]]:
    """Name and signature of an op with several tiles, and these."""
    task = max(tasks_of(grouped, TARGET), key=lambda one: len(one.tiles))
    assert len(task.tiles) > 14
    return task.name, task.op, tuple(Choice(tile=tile) for tile in task.tiles)


class Fickle(Fake):
    """One candidate is fast only the first times that it is measured."""

    def __init__(self, lucky: tuple[str, Choice], factors: dict[tuple[str, Choice], float]) -> None:
        super().__init__(factors)
        self.lucky = lucky

    def measure(
        self, task: Task, choices: Sequence[Choice], rounds: int, expected_s: float = 0.0
    ) -> list[list[float]]:
        # Tried, confirmed, and then as it is.
        self.factors[self.lucky] = 0.3 if self.asked.count(self.lucky) < 2 else 1.1
        return super().measure(task, choices, rounds, expected_s)


def test_a_lucky_winner_does_not_stand(grouped: Grouped, tmp_path: Path) -> None:
    name, signature, tiles = conv_of(grouped)
    fake = Fickle((name, tiles[1]), {(name, tiles[0]): 0.8})
    records = tuned(grouped, tmp_path, fake)
    assert records.choice(signature, TARGET, 1) == tiles[0]
    assert fake.asked.count((name, tiles[1])) == 3
    assert Records.load(tmp_path).choice(signature, TARGET, 1) == tiles[0]


def test_each_kind_of_op_is_one_task(grouped: Grouped) -> None:
    tasks = tasks_of(grouped, TARGET)
    assert len({task.op for task in tasks}) == len(tasks)
    assert {task.op for task in tasks} == {op.signature for op in grouped.graph.ops}
    assert sum(task.calls for task in tasks) == len(grouped.graph.ops)


def test_records_are_kept_where_the_rule_is_beaten_and_nowhere_else(
    grouped: Grouped, tmp_path: Path
) -> None:
    name, signature, tiles = conv_of(grouped)
    fake = Fake({(name, tiles[1]): 0.9, (name, tiles[3]): 0.5, (name, tiles[2]): 0.99})
    records = tuned(grouped, tmp_path, fake)
    assert records.choice(signature, TARGET, 1) == tiles[3]
    assert len(records) == 1
    others = {op.signature for op in grouped.graph.ops} - {signature}
    assert {records.choice(op, TARGET, 1) for op in others} == {None}
    assert fake.ended == 1
    gains = [r for r in read(tmp_path / KIND).rows if r.op == signature and r.choice == tiles[3]]
    # The rule's first took 2 ms in the median.
    # Tried, confirmed, and at the end once more.
    assert [round(row.median_s, 9) for row in gains] == [1e-3, 1e-3, 1e-3]
    assert Records.load(tmp_path).choice(signature, TARGET, 1) == tiles[3]


def test_an_op_is_left_after_a_number_of_candidates_without_gain(
    grouped: Grouped, tmp_path: Path
) -> None:
    name, _, tiles = conv_of(grouped)
    fake = Fake({(name, tiles[2]): 0.5})
    tuned(grouped, tmp_path, fake)
    # The third wins and is measured twice; then twelve more, if there are as many, and it again.
    tried = [choice for asked, choice in fake.asked if asked == name]
    assert tried == [*tiles[:3], tiles[2], *tiles[3:15], tiles[2]]


def test_several_candidates_at_a_time(grouped: Grouped, tmp_path: Path) -> None:
    """The best of a batch is measured again, and what it beats is not."""
    name, signature, tiles = conv_of(grouped)
    fake = Fake({(name, tiles[0]): 0.9, (name, tiles[2]): 0.5, (name, tiles[3]): 0.8})
    fake.batch = 4
    records = tuned(grouped, tmp_path, fake)
    assert records.choice(signature, TARGET, 1) == tiles[2]
    tried = [choice for asked, choice in fake.asked if asked == name]
    assert tried == [*tiles[:4], tiles[2], *tiles[4:16], tiles[2]]


def test_time_goes_where_it_pays(grouped: Grouped, tmp_path: Path) -> None:
    """All kernels take equally long here, so an op that is called twice comes first."""
    fake = Fake({})
    tuned(grouped, tmp_path, fake)
    tasks = {task.name: task for task in tasks_of(grouped, TARGET) if task.tiles}
    most = max(task.calls for task in tasks.values())
    assert tasks[fake.asked[0][0]].calls == most
    # And none is forgotten.
    assert {name for name, _ in fake.asked} == set(tasks)


def test_a_design_space_of_two_schedules_ends(grouped: Grouped, tmp_path: Path) -> None:
    """What is drawn again is not measured again, and nothing new is the end."""
    fake = Fake({})
    root = ["GetSBlock", [], ["root", "main"], ["b0"]]
    fake.traces = [
        json.dumps([[root, ["Annotate", ["b0", number], ["of.a.test"], []]], []])
        for number in (1, 2)
    ]
    tuned(grouped, tmp_path, fake)
    untiled = {task.name for task in tasks_of(grouped, TARGET) if not task.tiles}
    assert untiled
    for name in untiled:
        assert [choice.trace for asked, choice in fake.asked if asked == name] == fake.traces
        assert len({seed for asked, seed in fake.drawn if asked == name}) == 2


def test_what_cannot_be_measured_is_noted_and_not_tried_again(
    grouped: Grouped, tmp_path: Path
) -> None:
    name, signature, tiles = conv_of(grouped)
    records = tuned(grouped, tmp_path, Fake({(name, tiles[0]): 0.0, (name, tiles[1]): 0.5}))
    assert records.choice(signature, TARGET, 1) == tiles[1]
    assert LOST_S in {row.median_s for row in read(tmp_path / KIND).rows}
    again = Fake({})
    tuned(grouped, tmp_path, again)
    assert (name, tiles[0]) not in again.asked


def test_ctrl_c_keeps_what_was_found_and_the_next_call_goes_on(
    grouped: Grouped, tmp_path: Path
) -> None:
    factors = {(name, tile): 0.5 for name, _, tiles in [conv_of(grouped)] for tile in tiles[:2]}
    fake = Fake(factors, stop_after=9)
    with pytest.raises(KeyboardInterrupt):
        tuned(grouped, tmp_path, fake)
    assert fake.ended == 1
    kept = Records.load(tmp_path)
    assert kept.notes == ()
    measured = {(row.op, row.choice) for row in read(tmp_path / KIND).rows}
    rest = Fake(factors)
    records = tuned(grouped, tmp_path, rest)
    signature = {op.name: op.signature for op in grouped.graph.ops}
    asked = {(signature[name], choice) for name, choice in rest.asked}
    _, op, tiles = conv_of(grouped)
    assert measured & asked == {(op, tiles[0])}  # the winner, at the end
    whole = tuned(grouped, tmp_path / "whole", Fake(factors))
    assert len(records) == len(whole) == 1


def test_more_threads_begin_with_what_was_best_on_one(grouped: Grouped, tmp_path: Path) -> None:
    name, signature, tiles = conv_of(grouped)
    machine = Machine("host", (Device("cores:0-1", cpus=(0, 1)),))
    one, two = Fake({(name, tiles[5]): 0.5}), Fake({(name, tiles[8]): 0.6})
    fakes = {1: one, 2: two}
    records = tune(grouped, machine, tmp_path, measure=lambda device, target: fakes[device.threads])
    assert [choice for asked, choice in two.asked if asked == name][:2] == [tiles[5]] * 2
    assert records.choice(signature, TARGET, 1) == tiles[5]
    assert records.choice(signature, TARGET, 2) == tiles[8]
    losing = {1: Fake({(name, tiles[5]): 0.5}), 2: Fake({})}
    records = tune(
        grouped, machine, tmp_path / "2", measure=lambda device, target: losing[device.threads]
    )
    assert records.choice(signature, TARGET, 2) is None


def test_other_rules_are_measured_anew(
    grouped: Grouped, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What beat the old rules is tried first, and what is now slower than the new is dropped."""
    name, signature, tiles = conv_of(grouped)
    tuned(grouped, tmp_path, Fake({(name, tiles[4]): 0.5}))
    monkeypatch.setattr("partitioner.tuning.session.lowering_hash", lambda: "another")
    fake = Fake({(name, tiles[4]): 1.1, (name, tiles[0]): 0.9})
    records = tuned(grouped, tmp_path, fake)
    assert [choice for asked, choice in fake.asked if asked == name][:2] == [tiles[4]] * 2
    assert records.choice(signature, TARGET, 1) == tiles[0]


def test_progress_has_the_time_left_and_the_speed(grouped: Grouped, tmp_path: Path) -> None:
    name, _, tiles = conv_of(grouped)
    told: list[tuple[str, float]] = []
    tuned(
        grouped,
        tmp_path,
        Fake({(name, tiles[0]): 0.5}),
        progress=lambda text, part: told.append((text, part)),
    )
    assert all(0 <= part <= 1 for _, part in told)
    assert all(text.startswith("tuning ") and text.endswith(" s left") for text, _ in told)
    ops = tasks_of(grouped, TARGET)
    total = sum(task.calls for task in ops)
    calls = next(task.calls for task in ops if task.name == name)
    assert f"{total / (total - calls / 2):.2f}x the rules' speed" in told[-1][0]


def test_a_budget_too_small_changes_nothing(grouped: Grouped, tmp_path: Path) -> None:
    folder = tmp_path / "new"
    with pytest.raises(TuningError, match=r"too short to tune.*give 60 s or more"):
        tuned(grouped, folder, Fake({}), seconds=1e-9)
    with pytest.raises(TuningError, match="budget of 0 s"):
        tuned(grouped, folder, Fake({}), seconds=0)
    assert not folder.exists()


def test_records_of_another_tvm_are_not_added_to(grouped: Grouped, tmp_path: Path) -> None:
    name, _, tiles = conv_of(grouped)
    tuned(grouped, tmp_path, Fake({(name, tiles[0]): 0.5}))
    about = tmp_path / KIND / "about.json"
    about.write_text(json.dumps({"version": 1, "tvm": "0.1"}), encoding="utf-8")
    before = {path: path.read_bytes() for path in about.parent.iterdir()}
    fake = Fake({})
    with pytest.raises(TuningError, match=r"made with TVM 0\.1"):
        tuned(grouped, tmp_path, fake)
    assert fake.asked == []
    assert {path: path.read_bytes() for path in about.parent.iterdir()} == before


def test_devices_and_threads_that_are_not_there(grouped: Grouped, tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match="no device 'cores:7'"):
        tuned(grouped, tmp_path, Fake({}), devices=["cores:7"])
    with pytest.raises(DeviceError, match="cannot run kernels on 1, 2 threads"):
        tuned(grouped, tmp_path, Fake({}), threads=(1, 2))


def test_a_target_without_cores_is_no_hindrance(grouped: Grouped, tmp_path: Path) -> None:
    target = json.dumps({"kind": "llvm", "mcpu": str(TARGET.attrs["mcpu"])})
    machine = Machine("host", (Device("cores:0", cpus=(0,), target=target),))
    name, signature, tiles = conv_of(grouped)
    fake = Fake({(name, tiles[0]): 0.5})
    records = tune(grouped, machine, tmp_path, measure=lambda device, target: fake)
    assert records.choice(signature, tvm.target.Target(json.loads(target)), 1) == tiles[0]


# Kernels


def test_weights_are_left_out_of_a_task_and_come_back(grouped: Grouped) -> None:
    for task in tasks_of(grouped, TARGET):
        text = tvm.ir.save_json(weightless(grouped.module, task.name))
        assert len(text) < 40_000, task.name
        module = with_weights(tvm.ir.load_json(text), task.name)
        assert relax.analysis.check_well_formed(module)
        assert tiles_of(module, task.name, TARGET)[1:] == task.tiles


def test_a_tile_makes_another_kernel_with_the_same_outputs(grouped: Grouped) -> None:
    name, _, tiles = conv_of(grouped)
    module = with_weights(weightless(grouped.module, name), name)
    rule = Kernels(module, name, TARGET, RULE)
    for choice in (tiles[0], tiles[-1]):
        kernels = Kernels(module, name, TARGET, choice)
        for one, other in zip(kernels.outputs(), rule.outputs(), strict=True):
            assert one.tobytes() == other.tobytes()
            assert np.ptp(one) > 0
        lowered = [lower(module, TARGET, {name: c}) for c in (RULE, choice)]
        assert not structural_equal(*lowered)


def test_a_choice_out_of_records_reaches_a_stage(grouped: Grouped, tmp_path: Path) -> None:
    name, signature, tiles = conv_of(grouped)
    records = tuned(grouped, tmp_path, Fake({(name, tiles[1]): 0.5}))
    choice = records.choice(signature, TARGET, 1)
    assert choice is not None
    whole = split(grouped.module, grouped.graph, [0] * len(grouped.graph.ops))[0]
    plain, chosen = lower(whole, TARGET), lower(whole, TARGET, {name: choice})
    assert not structural_equal(plain, chosen)
    outputs = []
    for mod in (plain, chosen):
        vm = relax.VirtualMachine(build(mod, TARGET), tvm.cpu())
        shapes = [[int(n) for n in param.ty.shape.values] for param in whole["main"].params]
        rng = np.random.default_rng(0)
        inputs = [tvm.runtime.tensor(rng.random(s, dtype=np.float32)) for s in shapes]
        outputs.append([part.numpy().tobytes() for part in vm["main"](*inputs)])
    assert outputs[0] == outputs[1]


class Steady:
    """Kernels that take what they are told to, run by run."""

    def __init__(self, *seconds: float) -> None:
        self.runs = itertools.chain(seconds[:1], itertools.cycle(seconds))

    def seconds(self, runs: int) -> float:
        return next(self.runs)


def test_turns_are_even_and_what_is_far_behind_has_two() -> None:
    kernels: Any = [Steady(1.0), Steady(1.2), Steady(1.6)]
    assert interleaved(kernels, 3) == [[1.0] * 3, [1.2] * 3, [1.6] * 2]


def test_one_slow_burst_does_not_condemn_a_kernel() -> None:
    kernels: Any = [Steady(1.0), Steady(9.0, 0.8, 0.8, 0.8)]
    assert interleaved(kernels, 4)[1] == [9.0, 0.8, 0.8, 0.8]


def test_sketches_of_a_kernel_without_tiles_compute_what_it_does(grouped: Grouped) -> None:
    task = next(one for one in tasks_of(grouped, TARGET) if "pool" in one.name)
    module = with_weights(weightless(grouped.module, task.name), task.name)
    drawn = sketches(module, task.name, TARGET, 3, seed=1)
    assert drawn
    assert drawn == sketches(module, task.name, TARGET, 3, seed=1)
    rule = Kernels(module, task.name, TARGET, RULE).outputs()
    for trace in drawn:
        found = Kernels(module, task.name, TARGET, Choice(trace=trace)).outputs()
        for one, other in zip(found, rule, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5)


# The measuring process


def device() -> Device:
    cpu = min(Machine.detect().devices[0].cpus)
    return Device(f"cores:{cpu}", cpus=(cpu,))


def test_a_small_search_in_a_process_of_its_own(grouped: Grouped, tmp_path: Path) -> None:
    machine = Machine("host", (device(),))
    records = tune(grouped, machine, tmp_path, seconds=8)
    rows = read(tmp_path / KIND).rows
    assert {row.choice for row in rows} - {RULE}
    assert all(row.median_s > 0 for row in rows)
    # No record without a thorough measurement in which it won.
    assert len(records) <= len({row.op for row in rows if len(row.seconds) >= 5})


def test_the_process_measures_tiles_and_refuses_nonsense(grouped: Grouped) -> None:
    name, signature, tiles = conv_of(grouped)
    task = Task(signature, name, 1, ())
    bad = Choice(trace="[]")
    with Client(grouped.module, device(), TARGET) as client:
        rule, tile, _ = client.measure(task, (RULE, tiles[0], bad), 5)
        pool = next(one for one in tasks_of(grouped, TARGET) if "pool" in one.name)
        drawn = client.sketches(pool, 2, 1)
    assert len(rule) == 5
    assert 2 <= len(tile) <= 5
    assert all(choice.trace for choice in drawn)


WORKER = """
import json, os, sys, time
print(json.dumps({"ready": True}), flush=True)
sys.stdin.readline()
for line in sys.stdin:
    choices = json.loads(line)["choices"]
    for choice in choices:
        if choice["tile"] == [0]:
            os.abort()
        if choice["tile"] == [1]:
            time.sleep(600)
    with open(sys.argv[1], "a") as file:
        file.write(f"{os.getpid()}\\n")
    print(json.dumps({"results": [{"seconds": [1e-3]} for _ in choices]}), flush=True)
"""


@pytest.mark.parametrize("kind", [0, 1])
def test_a_crash_or_a_hang_loses_one_candidate(grouped: Grouped, tmp_path: Path, kind: int) -> None:
    name, signature, _ = conv_of(grouped)
    task = Task(signature, name, 1, ())
    script = tmp_path / "worker.py"
    script.write_text(WORKER, encoding="utf-8")
    seen = tmp_path / "seen"
    command = (sys.executable, str(script), str(seen))
    good, bad = Choice(tile=(9,)), Choice(tile=(kind,))
    with Client(grouped.module, device(), TARGET, command=command, patience_s=2.0) as client:
        assert client.measure(task, (RULE, good), 1) == ((1e-3,), (1e-3,))
        assert client.measure(task, (RULE, bad), 1) == ((1e-3,), ())
        assert client.measure(task, (RULE, good), 1) == ((1e-3,), (1e-3,))
    # One before, one after; a bad one answers nothing.
    assert len(set(seen.read_text(encoding="utf-8").split())) == 2


def test_whose_fault_a_crash_is(grouped: Grouped, tmp_path: Path) -> None:
    name, signature, _ = conv_of(grouped)
    task = Task(signature, name, 1, ())
    script = tmp_path / "worker.py"
    script.write_text(WORKER, encoding="utf-8")
    command = (sys.executable, str(script), str(tmp_path / "seen"))
    good, bad = Choice(tile=(9,)), Choice(tile=(0,))
    with Client(grouped.module, device(), TARGET, command=command) as client:
        assert client.measure(task, (RULE, bad, good), 1) == ((1e-3,), (), (1e-3,))
        with pytest.raises(TuningError, match=r"own kernel crashed \(exit status -6\)"):
            client.measure(task, (bad,), 1)


def test_a_process_that_does_not_start_is_said(grouped: Grouped) -> None:
    name, signature, _ = conv_of(grouped)
    command = (sys.executable, "-c", "raise SystemExit(3)")
    with (
        Client(grouped.module, device(), TARGET, command=command) as client,
        pytest.raises(TuningError, match=r"did not start \(crashed \(exit status 3\)\)"),
    ):
        client.measure(Task(signature, name, 1, ()), (RULE,), 1)
