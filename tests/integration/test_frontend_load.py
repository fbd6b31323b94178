"""Importing: what comes in, what is refused and how, and which source nodes it is named after."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import tvm
import tvm_ffi
from frontend_run import run
from onnx import TensorProto, helper, numpy_helper
from tvm import relax
from tvm.script import ir as I  # noqa: N812
from tvm.script import relax as R  # noqa: N812

from partitioner.errors import GraphError, ImportModelError
from partitioner.frontend import group, load
from partitioner.frontend.onnx_weights import pack_weights

_RNG = np.random.default_rng(7)


def _onnx(nodes, inputs, outputs, weights=None, opset=13):
    """A checked model; shapes as lists, outputs by name only."""
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in inputs.items()],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in outputs],
        [numpy_helper.from_array(value, name) for name, value in (weights or {}).items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    model.ir_version = 8
    return model


def _normalized_convolution(batch=1):
    """Convolution, batch normalization and activation, two of the three nodes named."""
    weights = {
        "w": _RNG.standard_normal((4, 3, 3, 3)).astype("float32"),
        "gamma": _RNG.uniform(0.5, 1.5, 4).astype("float32"),
        "beta": _RNG.standard_normal(4).astype("float32"),
        "mean": _RNG.standard_normal(4).astype("float32"),
        "variance": _RNG.uniform(0.5, 1.5, 4).astype("float32"),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], name="stem/conv", pads=[1, 1, 1, 1]),
        helper.make_node(
            "BatchNormalization", ["c", "gamma", "beta", "mean", "variance"], ["b"], name="stem/bn"
        ),
        helper.make_node("Relu", ["b"], ["y"]),
    ]
    return _onnx(nodes, {"x": [batch, 3, 8, 8]}, ["y"], weights)


def test_every_source_node_is_named_by_the_op_that_holds_it():
    graph = group(load(_normalized_convolution())).graph
    assert [op.sources for op in graph.ops] == [("stem/conv", "stem/bn", "Relu_2")]
    assert graph.find_op("stem/bn").kind == "conv2d_add_relu"
    assert [tensor.name for tensor in graph.tensors] == ["x", "y"]


def test_imported_and_grouped_modules_agree_with_onnx_runtime():
    model = _normalized_convolution()
    imported = load(model)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    expected = []
    for _ in range(2):
        x = _RNG.standard_normal((1, 3, 8, 8)).astype("float32")
        (want,) = session.run(None, {"x": x})
        (plain,), (grouped,) = run(imported.module, x), run(group(imported).module, x)
        np.testing.assert_allclose(plain, want, rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(grouped, plain)
        expected.append(want)
    assert np.abs(expected[0] - expected[1]).max() > 0.1


def test_simplification_that_fails_is_said_and_the_import_goes_on(monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("no such luck")

    monkeypatch.setattr("partitioner.frontend.onnx_import.onnxsim.simplify", fail)
    model = _normalized_convolution()
    imported = load(model)
    assert "no such luck" in imported.notes[0]
    # Without onnxsim the normalization arrives as such and is folded here.
    graph = group(imported).graph
    assert [op.kind for op in graph.ops] == ["conv2d_add_relu"]
    assert graph.ops[0].sources == ("stem/conv", "stem/bn", "Relu_2")
    x = _RNG.standard_normal((1, 3, 8, 8)).astype("float32")
    (want,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    np.testing.assert_allclose(run(imported.module, x)[0], want, rtol=1e-4, atol=1e-5)


def test_a_normalization_after_something_shared_is_one_multiply_and_one_add(monkeypatch):
    monkeypatch.setattr(
        "partitioner.frontend.onnx_import.onnxsim.simplify", lambda model, **_: (model, True)
    )
    model = _normalized_convolution()
    model.graph.output.append(helper.make_tensor_value_info("c", TensorProto.FLOAT, None))
    imported = load(model)
    x = _RNG.standard_normal((1, 3, 8, 8)).astype("float32")
    want = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    for found, expected in zip(run(imported.module, x), want, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    operators = [
        binding.value.op.name
        for block in imported.module["main"].body.blocks
        for binding in block.bindings
        if isinstance(binding.value, relax.Call)
    ]
    assert operators == ["relax.nn.conv2d", "relax.multiply", "relax.add", "relax.nn.relu"]


def test_weights_are_the_same_as_bytes():
    values = _RNG.standard_normal(1000).astype("float32")
    listed = helper.make_tensor("w", TensorProto.FLOAT, [10, 100], values.tolist())
    graph = helper.make_graph([], "g", [], [], [listed])
    pack_weights(graph)
    assert not graph.initializer[0].float_data
    np.testing.assert_array_equal(
        numpy_helper.to_array(graph.initializer[0]), values.reshape(10, 100)
    )


def test_an_onnx_model_is_not_modified():
    model = _normalized_convolution(batch="n")
    before = model.SerializeToString(deterministic=True)
    load(model, input_shapes={"x": (2, 3, 8, 8)})
    assert model.SerializeToString(deterministic=True) == before


def test_open_dimensions_are_fixed_by_input_shapes():
    graph = group(load(_normalized_convolution("n"), input_shapes={"x": (2, 3, 8, 8)})).graph
    assert graph.tensors[0].shape == (2, 3, 8, 8)


@pytest.mark.parametrize(
    ("shapes", "words"),
    [
        (None, ["'x'", "dimension 0 ('n')", "--input-shape x=1,3,224,224"]),
        ({"data": (1, 3, 8, 8)}, ["'data'", "its inputs are 'x'"]),
        ({"x": (1, 4, 8, 8)}, ["1,4,8,8", "'x'", "n,3,8,8"]),
        ({"x": (1, 3, 8)}, ["1,3,8", "n,3,8,8"]),
        ({"x": (0, 3, 8, 8)}, ["0,3,8,8", "positive"]),
    ],
)
def test_shapes_that_are_missing_or_do_not_fit_are_explained(shapes, words):
    with pytest.raises(ImportModelError) as caught:
        load(_normalized_convolution("n"), input_shapes=shapes)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_unsupported_operators_are_all_named_at_once():
    branch = helper.make_graph(
        [helper.make_node("Frobnicate", ["x"], ["t"], domain="odd")],
        "then",
        [],
        [helper.make_tensor_value_info("t", TensorProto.FLOAT, [2])],
    )
    other = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["e"])],
        "else",
        [],
        [helper.make_tensor_value_info("e", TensorProto.FLOAT, [2])],
    )
    nodes = [
        helper.make_node("ReduceSum", ["x"], ["s"], keepdims=0),
        helper.make_node("Cast", ["s"], ["flag"], to=TensorProto.BOOL),
        helper.make_node("If", ["flag"], ["i"], then_branch=branch, else_branch=other),
        helper.make_node("Quux", ["i"], ["q"], domain="odd"),
        helper.make_node("Quux", ["q"], ["y"], domain="odd"),
    ]
    model = _onnx(nodes, {"x": [2]}, ["y"])
    model.opset_import.append(helper.make_opsetid("odd", 1))
    with pytest.raises(ImportModelError, match=r"odd\.Frobnicate \(x1\), odd\.Quux \(x2\)"):
        load(model)


def test_files_that_are_no_model_are_refused(tmp_path):
    whole = _normalized_convolution().SerializeToString()
    cases = {
        "cut.onnx": (whole[: len(whole) // 2], "cut short"),
        "text.onnx": (b"not a model", "not an ONNX model"),
        "empty.onnx": (b"", "neither nodes nor outputs"),
        "cut.json": (b'{"root_index": 3,', "cut short"),
        "list.json": (b"[1, 2]", "not a module"),
        "prose.tvmscript": (b"once upon a time", "not TVMScript"),
        "model.bin": (b"", "'.bin' is not known"),
    }
    for name, (content, words) in cases.items():
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(ImportModelError) as caught:
            load(path)
        assert name in str(caught.value)
        assert words in str(caught.value)
    with pytest.raises(ImportModelError, match=r"absent\.onnx: cannot be read"):
        load(tmp_path / "absent.onnx")
    with pytest.raises(ImportModelError, match=r"builtins\.int"):
        load(3)


@I.ir_module
class _Symbolic:
    @R.function
    def main(x: R.Tensor(("n", 4), "float32"), w: R.Tensor((4, 4), "float32")):  # noqa: N805
        with R.dataflow():
            lv = R.matmul(x, w)
            lv1 = R.nn.relu(lv)
            R.output(lv1)
        return lv1


def test_relax_modules_bind_shapes_and_parameters_and_stay_as_they_are():
    before = tvm_ffi.structural_hash(_Symbolic)
    w = _RNG.standard_normal((4, 4)).astype("float32")
    x = _RNG.standard_normal((2, 4)).astype("float32")
    for params in ({"w": w}, [w]):
        imported = load(_Symbolic, input_shapes={"x": (2, 4)}, params=params, name="m")
        grouped = group(imported)
        (op,) = grouped.graph.ops
        assert (op.kind, op.sources) == ("matmul_relu", ("lv", "lv1"))
        assert [grouped.graph.tensors[i].name for i in grouped.graph.inputs] == ["x"]
        np.testing.assert_allclose(
            run(grouped.module, x)[0], np.maximum(x @ w, 0), rtol=1e-5, atol=1e-6
        )
    passed = group(load(_Symbolic, input_shapes={"x": (2, 4)})).graph
    assert [passed.tensors[i].name for i in passed.inputs] == ["x", "w"]
    assert tvm_ffi.structural_hash(_Symbolic) == before


def test_a_dimension_left_open_is_named_with_what_binds_it():
    with pytest.raises(GraphError, match="dimension 0 of input 'x' is n") as caught:
        group(load(_Symbolic))
    assert "--input-shape" in str(caught.value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"input_shapes": {"z": (1, 4)}}, "its inputs are 'x', 'w'"),
        ({"input_shapes": {"x": (1, 5)}}, "only its named dimensions"),
        ({"params": {"v": np.zeros(1)}}, "the function takes 'x', 'w'"),
        ({"params": {"w": np.zeros((4, 4))}}, "convert it"),
        ({"params": {"w": np.zeros((4, 5), "float32")}}, "convert it"),
        ({"params": [np.zeros(1)] * 3}, "give one value for each"),
    ],
)
def test_relax_options_that_do_not_fit_are_explained(options, words):
    with pytest.raises(ImportModelError) as caught:
        load(_Symbolic, **options)
    assert words in str(caught.value)


def test_a_module_without_an_entry_is_refused():
    module = tvm.IRModule()
    with pytest.raises(ImportModelError, match="no Relax function 'main'"):
        load(module)


def test_the_only_public_function_is_the_entry_whatever_its_name():
    module = tvm.IRModule({"forward": _Symbolic["main"].with_attr("global_symbol", "forward")})
    imported = load(module, input_shapes={"x": (1, 4)})
    assert [v.name_hint for v in imported.module.get_global_vars()] == ["main"]
    assert len(group(imported).graph.ops) == 1


def test_saved_modules_load_as_they_were(tmp_path):
    imported = load(_normalized_convolution())
    script, json = tmp_path / "m.py", tmp_path / "m.json"
    json.write_text(tvm.ir.save_json(imported.module))
    script.write_text("from tvm.script import relax as R\n" + _Symbolic.script(show_meta=True))
    assert group(load(json)).graph.hash == group(load(imported.module)).graph.hash
    assert load(json).name == "m"
    shapes = {"x": (1, 4)}
    found = group(load(script, input_shapes=shapes)).graph
    assert found.hash == group(load(_Symbolic, input_shapes=shapes)).graph.hash


def test_torch_is_not_imported_unless_it_is_given():
    code = "import sys, partitioner.frontend; sys.exit('torch' in sys.modules)"
    root = Path(__file__).parents[2]
    assert subprocess.run([sys.executable, "-c", code], cwd=root, check=False).returncode == 0


@pytest.mark.torch
def test_an_exported_program_imports_with_its_weights():
    torch = pytest.importorskip("torch")
    network = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.ReLU()).eval()
    x = torch.randn(2, 8, generator=torch.Generator().manual_seed(1))
    imported = load(torch.export.export(network, (x,)), name="mlp")
    grouped = group(imported)
    assert "relu" in grouped.graph.ops[-1].sources
    np.testing.assert_allclose(
        run(grouped.module, x.numpy())[0], network(x).detach().numpy(), rtol=1e-5, atol=1e-6
    )
