"""What a user may get wrong: one paragraph that says what to do, and nothing left behind."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from partitioner import Partition, Pipeline, auto_partition
from partitioner.cli import main
from partitioner.errors import (
    DeviceError,
    GraphError,
    ImportModelError,
    InfeasibleError,
    InputError,
    PartitionerError,
    PlanError,
    ProfileError,
)
from partitioner.frontend import Grouped
from partitioner.host import CpuSets, allowed_cpus
from partitioner.machine import Device, Machine
from partitioner.profiling import collect
from partitioner.runtime.build import BuildCache

Array = np.ndarray[Any, np.dtype[Any]]

# An error that takes long is a hang; what is set up before does not count.
pytestmark = pytest.mark.timeout(60, func_only=True)


@pytest.fixture(autouse=True)
def nothing_measured(monkeypatch: pytest.MonkeyPatch, cache_home: Path) -> None:
    """Mistakes are found before minutes are spent."""

    def measure(*args: Any, **options: Any) -> None:
        raise AssertionError("something was measured before the mistake was found")

    monkeypatch.setattr(collect, "measure_in_place", measure)
    monkeypatch.setattr(collect, "measure_handover", measure)
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache_home))


class Refused:
    """Gives a mistake to the function and to the command, which must say the same."""

    def __init__(
        self, builds: BuildCache, folder: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self._builds = builds
        self._folder = folder
        self._capsys = capsys

    def __call__(
        self, kind: type[PartitionerError], *words: str, model: Any, **options: Any
    ) -> None:
        before = self._files()
        with pytest.raises(kind) as caught:
            auto_partition(model, builds=self._builds, **options)
        assert type(caught.value) is kind
        said = str(caught.value)
        assert "\n" not in said
        for word in words:
            assert word in said
        output = self._folder / "output.json"
        assert main(["plan", str(model), *_as_arguments(options), "-o", str(output)]) == 1
        assert self._capsys.readouterr() == ("", f"error: {said}\n")
        assert self._files() == before

    def _files(self) -> dict[Path, bytes]:
        return {p: p.read_bytes() for p in sorted(self._folder.rglob("*")) if p.is_file()}


def _as_arguments(options: dict[str, Any]) -> list[str]:
    """Keyword arguments of `auto_partition` as the command takes them."""
    argv: list[str] = []
    for name, value in options.items():
        option = {"memory_budgets": "--memory", "pins": "--pin", "input_shapes": "--input-shape"}
        if name == "devices":
            argv += ["--devices", *value]
        elif value == "estimate":
            argv += ["--estimate"]
        elif value is True:
            argv += [f"--{name.replace('_', '-')}"]
        elif isinstance(value, dict):
            for key, item in value.items():
                text = ",".join(map(str, item)) if isinstance(item, tuple) else str(item)
                argv += [option[name], f"{key}={text}"]
        else:
            argv += [f"--{name.replace('_', '-')}", str(value)]
    return argv


@pytest.fixture
def refused(builds: BuildCache, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Refused:
    return Refused(builds, tmp_path, capsys)


# Models


@pytest.mark.parametrize("part", [0.0, 0.01, 0.5, 0.9, 0.999])
def test_truncated_onnx(part: float, network_file: Path, tmp_path: Path, refused: Refused) -> None:
    whole = network_file.read_bytes()
    path = tmp_path / "cut.onnx"
    path.write_bytes(whole[: int(len(whole) * part)])
    refused(ImportModelError, str(path), "cut short", model=path)


def test_a_file_that_is_no_onnx(tmp_path: Path, refused: Refused) -> None:
    path = tmp_path / "letter.onnx"
    path.write_text("Dear reader,\nthis is no network.\n", encoding="utf-8")
    refused(ImportModelError, "letter.onnx: not an ONNX model", "export it again", model=path)


@pytest.mark.parametrize("name", ["absent.onnx", "absent.json", "absent"])
def test_a_missing_file(name: str, tmp_path: Path, refused: Refused) -> None:
    refused(ImportModelError, name, "no such file", "zoo:NAME", model=tmp_path / name)


def test_a_folder(tmp_path: Path, refused: Refused) -> None:
    for name in ("model", "model.onnx", "model.json"):
        (tmp_path / name).mkdir()
        refused(ImportModelError, name, model=tmp_path / name)


def test_a_file_of_another_kind(tmp_path: Path, refused: Refused) -> None:
    (tmp_path / "net.pt").write_bytes(b"\x80\x02")
    refused(ImportModelError, "'.pt' is not known", ".onnx", model=tmp_path / "net.pt")


def test_a_broken_module(tmp_path: Path, refused: Refused) -> None:
    (tmp_path / "net.json").write_text('{"nodes": [', encoding="utf-8")
    refused(ImportModelError, "save it again", model=tmp_path / "net.json")
    (tmp_path / "net.py").write_text("import os\nprint(1)\n", encoding="utf-8")
    refused(ImportModelError, "not TVMScript", model=tmp_path / "net.py")


def test_an_unknown_network(refused: Refused) -> None:
    refused(ImportModelError, "nosuchnet", "squeezenet", model="zoo:nosuchnet")


def test_something_that_is_no_model() -> None:
    with pytest.raises(ImportModelError, match=r"type builtins\.int was given"):
        auto_partition(7)


@pytest.fixture
def dynamic(make_network: Callable[..., onnx.ModelProto], tmp_path: Path) -> Path:
    path = tmp_path / "dynamic.onnx"
    onnx.save(make_network(batch="batch"), str(path))
    return path


def test_missing_shapes(dynamic: Path, refused: Refused) -> None:
    refused(ImportModelError, "dimension 0 ('batch') open", "--input-shape picture=", model=dynamic)


def test_wrong_shapes(dynamic: Path, refused: Refused) -> None:
    wrong = {"image": (1, 3, 16, 16)}
    refused(ImportModelError, "'image'", "'picture'", model=dynamic, input_shapes=wrong)
    for shape in ((1, 3, 16), (1, 4, 16, 16), (0, 3, 16, 16), (-1, 3, 16, 16)):
        refused(ImportModelError, "'picture'", model=dynamic, input_shapes={"picture": shape})


@pytest.mark.parametrize("text", ["picture", "=1,3", "picture=1,x", "picture="])
def test_shapes_that_are_no_shapes(
    text: str, dynamic: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", str(dynamic), "--estimate", "--input-shape", text]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert "picture=1,3,224,224" in err or "data=1,3,224,224" in err


# Devices


@pytest.mark.parametrize(
    ("devices", "words"),
    [
        (["gpu"], ["unknown device 'gpu'", "cores:0-3"]),
        (["core:0"], ["unknown device 'core:0'"]),
        (["cores:"], ["'' is no core list"]),
        (["cores:a-b"], ["'a-b' is no core list"]),
        (["cores:0", "cores:0"], ["two devices named 'cores:0'"]),
        (["cores:0-1", "cores:1-2"], ["core 1 belongs to both 'cores:0-1' and 'cores:1-2'"]),
        (["cores:4095"], ["this host has no core 4095", "plan for cores out of"]),
        (["cuda:0"], ["'cuda:0'", "CPU devices only", "give cores"]),
    ],
)
def test_devices(
    devices: list[str], words: list[str], network_file: Path, refused: Refused
) -> None:
    refused(DeviceError, *words, model=network_file, devices=devices)


def test_cores_that_the_process_may_not_use(
    network_file: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, last = allowed_cpus()[0], allowed_cpus()[-1]
    if first == last:
        pytest.skip("one core cannot be both allowed and forbidden")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {first})
    refused(
        DeviceError,
        f"may not use core {last}; widen its CPU set",
        f"or plan for cores out of {first}",
        model=network_file,
        devices=[f"cores:{last}"],
    )


def test_a_machine_file_with_cores_that_are_offline(
    network_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "board.toml").write_text(
        'name = "board"\n[[device]]\nname = "big"\ncpus = "0-3"\n', encoding="utf-8"
    )
    sets = CpuSets(present=(0, 1, 2, 3), online=(0, 1), allowed=(0, 1))
    monkeypatch.setattr("partitioner.machine.cpu_sets", lambda: sets)
    with pytest.raises(
        DeviceError, match=r"device 'big': core 2-3 is offline; switch it on in .*/cpu2/online, or"
    ):
        auto_partition(network_file, Machine.load(tmp_path / "board.toml"))


def test_a_cpu_set_that_shrinks_between_plan_and_run(
    measured: Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, last = (device.cpus[0] for device in measured.machine.devices)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {first})
    for run in (measured.pipeline, measured.measure):
        with pytest.raises(
            DeviceError, match=f"may not use core {last}; widen its CPU set .* plan for cores out"
        ):
            run()


def test_a_plan_for_more_cores_than_the_host_has(grouped: Grouped) -> None:
    """On its own machine the plan is right, but that machine is not here; on this one it is not."""
    bigger = Machine("bigger", (Device("cores:4094-4095", cpus=(4094, 4095)),))
    plan = auto_partition(grouped, bigger, profile="estimate").plan
    there = auto_partition(grouped, bigger, plan=plan)
    with pytest.raises(DeviceError, match="this host has no core 4094"):
        there.pipeline()
    with pytest.raises(PlanError, match=r"no device 'cores:4094-4095'; it has .*; plan again for"):
        auto_partition(grouped, plan=plan)


def test_things_that_name_no_device(network: onnx.ModelProto) -> None:
    for devices in ([3], [], [None]):
        with pytest.raises(DeviceError, match=r"name at least one|names no device"):
            auto_partition(network, devices)


# Options


def test_an_unknown_strategy_or_objective(network: onnx.ModelProto) -> None:
    with pytest.raises(PartitionerError, match=r"unknown strategy 'luck'; known are best"):
        auto_partition(network, strategy="luck")
    with pytest.raises(InputError, match=r"unknown objective 'fame'; known are"):
        auto_partition(network, objective="fame")
    with pytest.raises(InputError, match=r"unknown objective 'copies'; known are period, latency"):
        auto_partition(network, objective="copies")
    with pytest.raises(InputError, match=r"unknown objective 'fame'; known are .*, devices"):
        auto_partition(network, second="fame", profile="estimate")


def test_wrong_pins_and_budgets(network_file: Path, pair: list[str], refused: Refused) -> None:
    given = {"model": network_file, "devices": pair}
    refused(GraphError, "no op or source node 'tail'", pins={"tail": pair[0]}, **given)
    refused(GraphError, "pinned to 'npu'", *pair, pins={"stem": "npu"}, **given)
    refused(DeviceError, "'disk'", "the pools are host", memory_budgets={"disk": 1}, **given)


def test_too_little_memory(network_file: Path, pair: list[str], refused: Refused) -> None:
    refused(
        InfeasibleError,
        "alone needs",
        "all memory budgets together are 1000, short by",
        "raise a budget",
        model=network_file,
        devices=pair,
        profile="estimate",
        memory_budgets={"host": 1000},
    )


# Profiles and plans


def test_a_profile_that_lacks_ops(
    profile_file: Path, network_file: Path, pair: list[str], tmp_path: Path, refused: Refused
) -> None:
    data = json.loads(profile_file.read_text(encoding="utf-8"))
    del data["ops"][0]
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(data), encoding="utf-8")
    refused(
        ProfileError,
        "the profile lacks 1 of the times that 'small' needs",
        "profile this model on these devices",
        model=network_file,
        devices=pair,
        profile=path,
        allow_foreign_profile=True,
    )


def test_a_profile_from_another_host(
    profile_file: Path, network_file: Path, pair: list[str], tmp_path: Path, refused: Refused
) -> None:
    data = json.loads(profile_file.read_text(encoding="utf-8"))
    data["origin"]["host"]["cpu"] = "Other CPU"
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(data), encoding="utf-8")
    refused(
        ProfileError,
        "not made here: cpu: Other CPU, here ",
        "--allow-foreign-profile",
        model=network_file,
        devices=pair,
        profile=path,
    )


@pytest.fixture
def plan_data(measured: Partition) -> dict[str, Any]:
    """The plan as a person finds it in its file."""
    return json.loads(json.dumps(measured.plan.to_data()))


def _swapped(data: dict[str, Any]) -> None:
    first, second = data["stages"]
    first["ops"], second["ops"] = second["ops"], first["ops"]


def _dropped(data: dict[str, Any]) -> None:
    data["stages"][1]["ops"].pop()


def _twice(data: dict[str, Any]) -> None:
    data["stages"][0]["ops"].append(data["stages"][1]["ops"][0])


def _unknown_op(data: dict[str, Any]) -> None:
    data["stages"][0]["ops"].append("conv_99")


def _same_core(data: dict[str, Any]) -> None:
    data["stages"][1]["placements"] = data["stages"][0]["placements"]


def _absent_device(data: dict[str, Any]) -> None:
    data["stages"][1]["placements"][0]["device"] = "cores:9"


def _no_placement(data: dict[str, Any]) -> None:
    data["stages"][1]["placements"] = []


def _no_stages(data: dict[str, Any]) -> None:
    data["stages"] = []


def _cpus_as_number(data: dict[str, Any]) -> None:
    data["stages"][1]["placements"][0]["cpus"] = 1


def _no_key(data: dict[str, Any]) -> None:
    del data["graph_hash"]


def _other_version(data: dict[str, Any]) -> None:
    data["version"] = 99


def _other_model(data: dict[str, Any]) -> None:
    data["graph_hash"], data["model"] = "0123456789ab", "large"


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (_swapped, ["in the earlier stage 0", "move one so that no edge goes back"]),
        (_dropped, ["1 of 7 ops are in no stage", "add each to one"]),
        (_twice, ["and again in stage 1", "list each op once"]),
        (_unknown_op, ["lists op 'conv_99', which the model does not have"]),
        (_same_core, ["a core serves one replica of one stage"]),
        (_absent_device, ["has no device 'cores:9'"]),
        (_no_placement, ["stage 1 has no placement"]),
        (_no_stages, ["the plan has no stages"]),
        (_cpus_as_number, ["cpus", "text such as"]),
        (_no_key, ["lacks the key 'graph_hash'"]),
        (_other_version, ["not a plan of version 1 (found 99)"]),
        (_other_model, ["the plan is for model 'large'", "plan again for this model"]),
    ],
    ids=lambda value: value.__name__[1:] if callable(value) else "",
)
def test_a_plan_that_was_edited_wrongly(
    edit: Callable[[dict[str, Any]], None],
    words: list[str],
    plan_data: dict[str, Any],
    network_file: Path,
    pair: list[str],
    tmp_path: Path,
    refused: Refused,
) -> None:
    edit(plan_data)
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(plan_data), encoding="utf-8")
    refused(PlanError, *words, model=network_file, devices=pair, plan=path)


def test_a_plan_for_another_model(
    measured: Partition,
    make_network: Callable[..., onnx.ModelProto],
    pair: list[str],
    tmp_path: Path,
    refused: Refused,
) -> None:
    other, plan = tmp_path / "double.onnx", tmp_path / "plan.json"
    onnx.save(make_network(batch=2), str(other))
    measured.plan.save(plan)
    refused(PlanError, "the plan is for model 'small'", model=other, devices=pair, plan=plan)


def test_an_edited_plan_that_does_not_fit_in_memory(
    measured: Partition, profile_file: Path, network_file: Path, pair: list[str], tmp_path: Path
) -> None:
    plan = tmp_path / "plan.json"
    measured.plan.save(plan)
    profile = shutil.copy(profile_file, tmp_path / "profile.json")
    needed = int(sum(stage.bytes or 0 for stage in measured.plan.stages))
    with pytest.raises(PlanError, match=rf"needs {needed} bytes; its budget is {needed - 1}"):
        auto_partition(
            network_file,
            pair,
            plan=plan,
            profile=profile,
            memory_budgets={"host": needed - 1},
        )


# Run-time inputs


@pytest.fixture(scope="module")
def pipe(grouped: Grouped, pair: list[str], builds: BuildCache) -> Iterator[Pipeline]:
    part = auto_partition(grouped, pair, profile="estimate", strategy="pipeline", builds=builds)
    with part.pipeline(workers="thread") as running:
        yield running


GOOD = np.zeros((1, 3, 16, 16), np.float32)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ((), ["found 0, needed 1", "picture"]),
        ((GOOD, GOOD), ["found 2, needed 1"]),
        (({"image": GOOD},), ["not expected ['image']", "missing ['picture']"]),
        (({"picture": GOOD, "more": GOOD},), ["not expected ['more']"]),
        ((GOOD[0],), ["found float32[3, 16, 16], needed float32[1, 3, 16, 16]"]),
        ((GOOD.astype(np.float64),), ["found float64[1, 3, 16, 16]", "cast it first"]),
        (([[1.0, 2.0], [3.0]],), ["found 2, needed 1"]),
        ((([[1.0, 2.0], [3.0]],),), ["'picture': found a list that is no array"]),
        (("a picture",), ["'picture'", "needed float32"]),
        ((None,), ["'picture'"]),
    ],
)
def test_wrong_items_are_refused_and_the_pipeline_goes_on(
    args: tuple[Any, ...], words: list[str], pipe: Pipeline
) -> None:
    for run in (pipe, pipe.submit):
        with pytest.raises(InputError) as caught:
            run(*args)
        for word in words:
            assert word in str(caught.value)
    if len(args) == 1:
        with pytest.raises(InputError):
            list(pipe.map([GOOD, args[0]]))
    assert pipe(GOOD)[0].shape == (1, 10)


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"image": GOOD[None]}, "found arrays ['image'], needed one for each model input: picture"),
        ({"picture": GOOD}, "needed float32[items, 1, 3, 16, 16]"),
        ({"picture": GOOD[None].astype(np.float64)}, "is float64"),
        ({"picture": GOOD[None][:0]}, "hold 0 items"),
    ],
)
def test_wrong_item_files(
    arrays: dict[str, Array],
    words: str,
    network_file: Path,
    pair: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "in.npz"
    np.savez(path, **arrays)
    _run_refuses(path, words, network_file, pair, capsys)


def test_a_file_that_holds_no_items(
    network_file: Path, pair: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "in.npz"
    for content in (b"", b"no archive", b"PK\x03\x04 cut"):
        path.write_bytes(content)
        _run_refuses(path, "cannot read arrays", network_file, pair, capsys)
    _run_refuses(tmp_path / "absent.npz", "No such file", network_file, pair, capsys)


def _run_refuses(
    path: Path, words: str, model: Path, pair: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    output = path.with_name("out.npz")
    argv = ["run", str(model), "--estimate", "--devices", *pair, "--input", str(path)]
    assert main([*argv, "--output", str(output)]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"error: {path}: ")
    assert err.count("\n") == 1
    assert words in err
    assert not output.exists()
