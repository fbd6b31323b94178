"""From every kind of model and device to the outputs of a running pipeline."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tvm
import tvm_ffi
from tvm import relax

from partitioner import Device, Machine, Partition, Plan, auto_partition
from partitioner.clusters import find_clusters
from partitioner.errors import DeviceError, InputError, PlanError
from partitioner.frontend import Grouped, load
from partitioner.host import allowed_cpus
from partitioner.plan_check import assignment_of
from partitioner.runtime.build import BuildCache

Array = np.ndarray[Any, np.dtype[Any]]
Cut = Callable[..., Partition]


@pytest.fixture
def cut(pair: list[str], builds: BuildCache) -> Cut:
    """Partition at once on guessed times; in two stages unless told otherwise."""

    def make(model: Any, devices: Any = None, **options: Any) -> Partition:
        options = {"strategy": "pipeline", "profile": "estimate", "builds": builds, **options}
        return auto_partition(model, pair if devices is None else devices, **options)

    return make


def tuples(results: Iterable[Any]) -> list[tuple[Array, ...]]:
    return [result if isinstance(result, tuple) else (result,) for result in results]


def outputs(part: Partition, items: Iterable[Any]) -> list[tuple[Array, ...]]:
    with part.pipeline(workers="thread") as pipe:
        return tuples(pipe.map(items))


def uncut(part: Partition, items: Iterable[Any]) -> list[tuple[Array, ...]]:
    with part.reference(workers="thread") as pipe:
        return tuples(pipe.map(items))


def bits(results: Iterable[tuple[Array, ...]]) -> list[list[bytes]]:
    return [[array.tobytes() for array in result] for result in results]


def assert_close(found: list[tuple[Array, ...]], wanted: list[tuple[Array, ...]]) -> None:
    for mine, other in zip(found, wanted, strict=True):
        for a, b in zip(mine, other, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3 * float(np.ptp(b)))


# Models


def _high_level(network: onnx.ModelProto, folder: Path) -> Any:
    return load(network).module


def _legalized(network: onnx.ModelProto, folder: Path) -> Any:
    return relax.transform.LegalizeOps()(load(network).module)


def _fused(network: onnx.ModelProto, folder: Path) -> Any:
    passes = [
        relax.transform.LegalizeOps(),
        relax.transform.AnnotateTIROpPattern(),
        relax.transform.FuseOps(),
        relax.transform.FuseTIR(),
    ]
    return tvm.transform.Sequential(passes)(load(network).module)


def _script(network: onnx.ModelProto, folder: Path) -> Any:
    path = folder / "small.py"
    path.write_text(load(network).module.script(show_meta=True), encoding="utf-8")
    return path


def _json(network: onnx.ModelProto, folder: Path) -> Any:
    path = folder / "small.json"
    path.write_text(tvm.ir.save_json(load(network).module), encoding="utf-8")
    return str(path)


def _file(network: onnx.ModelProto, folder: Path) -> Any:
    path = folder / "small.onnx"
    onnx.save(network, str(path))
    return str(path)


@pytest.mark.parametrize(
    "form", [_file, _high_level, _legalized, _fused, _script, _json], ids=lambda f: f.__name__[1:]
)
def test_every_form_of_a_model_runs_cut(
    form: Callable[[onnx.ModelProto, Path], Any],
    network: onnx.ModelProto,
    tmp_path: Path,
    cut: Cut,
    items: list[dict[str, Array]],
    expected: list[tuple[Array, ...]],
) -> None:
    part = cut(form(network, tmp_path))
    assert len(part.plan.stages) == 2
    found = outputs(part, items)
    assert bits(found) == bits(uncut(part, items))
    assert_close(found, expected)


def test_onnx_models_and_grouped_ones_are_the_same_model(
    network: onnx.ModelProto, network_file: Path, grouped: Grouped, cut: Cut
) -> None:
    hashes = {cut(model).plan.graph_hash for model in (network, network_file, grouped)}
    assert hashes == {grouped.graph.hash}


def test_open_dimensions_are_given(make_network: Callable[..., onnx.ModelProto], cut: Cut) -> None:
    part = cut(make_network(batch="n"), input_shapes={"picture": (1, 3, 16, 16)})
    assert part.graph.tensors[part.graph.inputs[0]].shape == (1, 3, 16, 16)


@pytest.mark.torch
def test_an_exported_program_runs_cut(cut: Cut) -> None:
    torch = pytest.importorskip("torch")
    network = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.Conv2d(4, 2, 3)
    ).eval()
    x = torch.rand(1, 3, 8, 8)
    part = cut(torch.export.export(network, (x,)))
    found = outputs(part, [(x.numpy(),)])
    assert_close(found, [(network(x).detach().numpy(),)])


PASSED = """
@I.ir_module
class Module:
    @R.function
    def main(x: R.Tensor((1, 8), "float32"), w: R.Tensor((8, 8), "float32"),
             v: R.Tensor((8, 3), "float32")):
        with R.dataflow():
            a = R.matmul(x, w)
            b = R.nn.relu(a)
            c = R.matmul(b, w)
            d = R.matmul(R.nn.relu(c), v)
            R.output(d)
        return d
"""


def test_parameters_may_be_passed_as_inputs(cut: Cut) -> None:
    part = cut(tvm.script.from_source(PASSED))
    rng = np.random.default_rng(5)
    x, w, v = (rng.standard_normal(s).astype(np.float32) for s in ((1, 8), (8, 8), (8, 3)))
    found = outputs(part, [(x, w, v), {"x": -x, "w": w, "v": v}])
    relu = lambda array: np.maximum(array, 0)  # noqa: E731
    assert_close(found, [(relu(relu(s * x @ w) @ w) @ v,) for s in (1, -1)])


WHOLE = """
@I.ir_module
class Module:
    @R.function(pure=False)
    def main(x: R.Tensor((4,), "float32"), flag: R.Tensor((), "bool")):
        a = R.exp(x)
        b = R.call_packed("vm.builtin.copy", a, ty_args=R.Tensor((4,), dtype="float32"))
        c = R.call_dps_packed(
            "runtime.TVMTensorCopyFromTo", (b,), out_ty=R.Tensor((4,), dtype="float32")
        )
        if flag:
            t = R.add(c, x)
            r = R.nn.relu(t)
        else:
            u = R.multiply(c, c)
            r = R.negative(u)
        z = R.sqrt(R.abs(r))
        return z
"""


def test_branches_and_opaque_calls_are_measured_and_run_as_one_op(
    builds: BuildCache, pair: list[str]
) -> None:
    part = auto_partition(
        tvm.script.from_source(WHOLE),
        pair[:1],
        profile_seconds=0.02,
        builds=builds,
    )
    kinds = [op.kind for op in part.graph.ops]
    assert kinds == ["exp", "vm_builtin_copy", "runtime_TVMTensorCopyFromTo", "if", "abs_sqrt"]
    assert all(row.median_s > 0 for row in part.profile.ops.values())
    split = auto_partition(
        tvm.script.from_source(WHOLE), pair, profile="estimate", strategy="pipeline", builds=builds
    )
    assert len(split.plan.stages) == 2
    x = np.array([1.0, -2.0, 0.5, 3.0], np.float32)
    items = [(x, np.array(flag)) for flag in (True, False)]
    found = outputs(split, items)
    assert bits(found) == bits(outputs(part, items))
    e = np.exp(x)
    wanted = [(np.sqrt(np.maximum(e + x, 0)),), (e,)]
    assert_close(found, wanted)


# Devices


def _cores(*lists: Iterable[int]) -> list[tuple[int, ...]]:
    return [tuple(cores) for cores in lists]


@pytest.mark.parametrize(
    "form", ["none", "cpu", "string", "strings", "machine", "device", "tvm device"]
)
def test_every_way_to_name_devices(form: str, grouped: Grouped, builds: BuildCache) -> None:
    first = allowed_cpus()[0]
    here = _cores(*(cluster.cpus for cluster in find_clusters().clusters))
    one = Device("mine", cpus=(first,), memory="near")
    devices, wanted = {
        "none": (None, here),
        "cpu": ("cpu", here),
        "string": (f"cores:{first}", _cores([first])),
        "strings": ([f"cores:{first}"], _cores([first])),
        "machine": (Machine("desk", (one,)), _cores([first])),
        "device": (one, _cores([first])),
        "tvm device": ([tvm.cpu()], here),
    }[form]
    part = auto_partition(
        grouped, devices, profile="estimate", strategy="single", max_stages=1, builds=builds
    )
    assert [device.cpus for device in part.machine.devices] == wanted
    assert len(part.plan.stages) == 1


def test_a_gpu_is_refused_before_the_model_is_even_read() -> None:
    with pytest.raises(DeviceError, match=r"'cuda:0'.*CPU devices only.*give cores"):
        auto_partition("absent.onnx", ["cores:0", "cuda:0"])


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the targets are of x86-64")
def test_devices_with_unequal_targets(
    grouped: Grouped, cut: Cut, items: list[dict[str, Array]], expected: list[tuple[Array, ...]]
) -> None:
    targets = ({"kind": "llvm", "mcpu": "x86-64"}, {"kind": "llvm", "mcpu": "nehalem"})
    devices = [
        Device(f"core {cpu}", cpus=(cpu,), target=json.dumps(target))
        for cpu, target in zip(allowed_cpus()[:2], targets, strict=True)
    ]
    part = cut(grouped, devices)
    assert {p.device for stage in part.plan.stages for p in stage.placements} == {
        device.name for device in devices
    }
    assert_close(outputs(part, items), expected)
    with pytest.raises(PlanError, match=r"different targets.*compare with a tolerance"):
        part.reference()
    checked = part.check(items[:1])
    assert 0 < checked.tolerance < 0.1
    assert checked.max_abs_diff <= checked.tolerance
    assert "NOT" not in checked.verdict


# Running


def test_processes_take_items_in_every_way_and_keep_their_order(
    measured: Partition, items: list[dict[str, Array]], expected: list[tuple[Array, ...]]
) -> None:
    with measured.pipeline() as pipe:
        mapped = list(pipe.map(iter(items)))
        assert len(pipe.pids) == len(measured.plan.stages) == 2
        picture = items[2]["picture"]
        for result in (
            pipe(picture),
            pipe(items[2]),
            pipe(picture=picture),
            pipe((picture,)),
            pipe.submit(picture).result(timeout=60),
        ):
            assert bits([result]) == bits([mapped[2]])
    assert [[array.shape for array in result] for result in mapped] == [
        [(1, 10), (1, 16, 8, 8)] for _ in items
    ]
    assert_close(mapped, expected)
    assert bits(mapped) == bits(uncut(measured, items))
    assert bits(mapped) == bits(outputs(measured, items))


def test_every_strategy_gives_the_same_bits(
    measured: Partition, pair: list[str], cut: Cut, items: list[dict[str, Array]]
) -> None:
    wanted = bits(uncut(measured, items))
    shapes = {}
    for strategy in ("best", "pipeline", "single", "replicas"):
        part = cut(
            Grouped(measured.graph, measured.module), profile=measured.profile, strategy=strategy
        )
        shapes[strategy] = [len(stage.placements) for stage in part.plan.stages]
        assert bits(outputs(part, items)) == wanted
    assert shapes["pipeline"] == [1, 1]
    assert shapes["single"] == [1]
    assert shapes["replicas"] == [2]
    assert shapes["best"] in ([1, 1], [1], [2])


def test_one_stage_at_most(grouped: Grouped, cut: Cut) -> None:
    assert len(cut(grouped, strategy="best", max_stages=1).plan.stages) == 1


def test_a_pinned_op_runs_where_it_was_pinned(
    grouped: Grouped, pair: list[str], cut: Cut, items: list[dict[str, Array]]
) -> None:
    part = cut(grouped, pins={"stem": pair[1], "head": pair[0]})
    where = {name: stage.placements[0].device for stage in part.plan.stages for name in stage.ops}
    assert where[part.graph.find_op("stem").name] == pair[1]
    assert where[part.graph.find_op("head").name] == pair[0]
    assert bits(outputs(part, items)) == bits(uncut(part, items))


# Stages


def _constants(module: Any) -> list[int]:
    """Sizes of the weights in a module's functions."""
    found: dict[int, int] = {}

    def visit(node: Any) -> None:
        if isinstance(node, tvm.ir.GenericConst) and node.value.shape:
            found[node.value.data_ptr()] = int(np.prod([int(n) for n in node.value.shape]))

    for _, function in module.functions_items():
        relax.analysis.post_order_visit(function, visit)
    return sorted(found.values())


def test_a_stage_is_a_module_of_its_own_ops_and_weights(measured: Partition) -> None:
    own = []
    for stage, module in zip(measured.plan.stages, measured.stages, strict=True):
        assert isinstance(module, tvm.IRModule)
        assert relax.analysis.check_well_formed(module)
        names = {variable.name_hint for variable in module.get_global_vars()}
        assert names == {*stage.ops, "main"}
        own.append(_constants(module))
    assert all(own)
    assert sorted(own[0] + own[1]) == _constants(measured.module)


def test_a_module_given_is_not_modified(network: onnx.ModelProto, cut: Cut) -> None:
    module = load(network).module
    before = tvm.ir.load_json(tvm.ir.save_json(module))
    part = cut(module)
    grouped = tvm_ffi.structural_hash(part.module)
    assert len(part.stages) == 2
    part.build()
    assert tvm_ffi.structural_equal(module, before)
    assert tvm_ffi.structural_hash(part.module) == grouped


# Plans


def test_an_edited_plan_runs(
    measured: Partition, tmp_path: Path, cut: Cut, items: list[dict[str, Array]]
) -> None:
    path = tmp_path / "plan.json"
    measured.plan.save(path)
    data = json.loads(path.read_text(encoding="utf-8"))
    first, second = (stage["ops"] for stage in data["stages"])
    # The border op may move to the other side without breaking the order.
    if len(first) > 1:
        second.insert(0, first.pop())
    else:
        first.append(second.pop(0))
    path.write_text(json.dumps(data), encoding="utf-8")
    assert Plan.load(path).predicted is None
    again = cut(Grouped(measured.graph, measured.module), profile=measured.profile, plan=path)
    assert [list(stage.ops) for stage in again.plan.stages] == [first, second]
    assert again.plan.predicted is not None
    assert again.plan.predicted.method == "given"
    assert again.plan.predicted.period_s >= measured.plan.predicted.period_s * (1 - 1e-6)
    assert bits(outputs(again, items)) == bits(outputs(measured, items))


def test_a_plan_survives_its_file(measured: Partition, tmp_path: Path, cut: Cut) -> None:
    measured.plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == measured.plan
    again = cut(Grouped(measured.graph, measured.module), plan=tmp_path / "plan.json")
    assert assignment_of(again.plan, again.graph) == assignment_of(measured.plan, measured.graph)


def test_the_plan_prints_where_everything_is(measured: Partition) -> None:
    text = str(measured.plan)
    for word in ("stem", "head", *measured.machine.to_data()["device"][0]["name"].split()):
        assert word in text
    assert "from measured op times" in text


# Report


def test_a_report_before_any_run_has_the_predictions(measured: Partition) -> None:
    data = measured.report.to_data()
    assert data["predicted"]["period_s"] == measured.plan.predicted.period_s
    assert 0 < data["op_sum"]["period_s"] <= data["predicted"]["period_s"]
    assert data["measured"] is None
    assert data["stage_measured"] == {"period_s": None}


@pytest.mark.parametrize("options", [{"items": []}, {"rounds": 0}])
def test_nothing_to_measure_is_said(measured: Partition, options: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="at least one of each"):
        measured.measure(**options)
