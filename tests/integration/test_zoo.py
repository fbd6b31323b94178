"""Built networks: seeded weights that mean something, unique names, one answer everywhere."""

import hashlib
import math
import os
import subprocess
import sys

import numpy as np
import onnx
import onnxsim
import pytest
from scipy.special import erf

from partitioner import zoo
from partitioner.zoo.minilm import read_safetensors, weights_file

ort = pytest.importorskip("onnxruntime")

SEEDED = ("squeezenet", "shufflenet", "resnet50", "inception_v1", "densenet121", "inception_v2")
LARGE = ("alexnet", "zfnet512", "vgg19")
TRAINED = ("ppocr_det", "ppocr_rec", "ppocr_cls", "ddddocr_det", "minilm")


def parameters(names):
    return [*names, *(pytest.param(name, marks=pytest.mark.slow) for name in LARGE)]


@pytest.fixture(scope="module", params=parameters((*SEEDED, *TRAINED)))
def network(request):
    return zoo.load(request.param)


def run(model, items, outputs=None):
    options = ort.SessionOptions()
    options.intra_op_num_threads = 2
    options.log_severity_level = 3
    session = ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return [session.run(outputs, item) for item in items]


def test_model_is_valid_and_its_names_are_unique(network):
    onnx.checker.check_model(network.model)
    graph = network.model.graph
    node_names = [node.name for node in graph.node]
    assert all(node_names)
    assert len(set(node_names)) == len(node_names)
    assert not {node.op_type for node in graph.node} & {"Constant", "ConstantOfShape"}
    held = {item.name for item in graph.initializer}
    shapes = tuple(
        (item.name, tuple(dim.dim_value for dim in item.type.tensor_type.shape.dim))
        for item in graph.input
        if item.name not in held
    )
    assert shapes == network.input_shapes
    assert network.trained == (network.name in TRAINED)


def test_outputs_are_finite_and_differ_between_inputs(network):
    results = run(network.model, zoo.inputs(network.name, 3))
    for first, *others in zip(*results, strict=True):
        assert np.isfinite(first).all()
        for other in others:
            assert np.isfinite(other).all()
            # A tolerance of 1e-3 of the spread must be able to tell two inputs apart.
            assert np.abs(first - other).max() > 0.1 * first.std()


def test_simplified_model_imports_into_relax(network):
    from tvm.relax.frontend.onnx import from_onnx

    shapes = {name: list(shape) for name, shape in network.input_shapes}
    simple, checked = onnxsim.simplify(network.model, overwrite_input_shapes=shapes)
    assert checked
    module = from_onnx(simple, keep_params_in_input=False)
    assert [p.name for p in module["main"].params] == [name for name, _ in network.input_shapes]


@pytest.mark.parametrize("network", parameters(SEEDED), indirect=True, scope="module")
def test_seeded_activations_neither_die_nor_saturate(network):
    model = network.model
    rectified = [node.output[0] for node in model.graph.node if node.op_type == "Relu"]
    probe = onnx.ModelProto.FromString(model.SerializeToString())
    probe.graph.output.extend(onnx.ValueInfoProto(name=tensor) for tensor in rectified)
    items = run(probe, zoo.inputs(network.name, 4, seed=11))
    outputs = np.stack([item[0].ravel() for item in items])
    for index, tensor in enumerate(rectified, start=1):
        values = np.stack([item[index] for item in items])
        assert 0.05 < (values > 0.0).mean() < 0.95, tensor
        assert 0.02 < values.std() < 100.0, tensor
    if model.graph.node[-1].op_type == "Softmax":
        best = outputs.max(axis=1)
        assert best.max() < 0.9999
        assert best.min() > 5.0 / outputs.shape[1]


@pytest.mark.parametrize("name", ["squeezenet", "shufflenet"])
def test_weights_are_the_same_for_every_number_of_threads(tmp_path, monkeypatch, name):
    code = (
        "import hashlib, sys; from partitioner import zoo;"
        "model = zoo.load(sys.argv[1]).model.SerializeToString(deterministic=True);"
        "print(hashlib.sha256(model).hexdigest())"
    )
    # Empty caches, so that both sides calibrate.
    environment = {
        **os.environ,
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
        "XDG_CACHE_HOME": str(tmp_path / "there"),
    }
    done = subprocess.run(
        [sys.executable, "-c", code, name],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "here"))
    here = zoo.load(name).model.SerializeToString(deterministic=True)
    assert done.stdout.strip() == hashlib.sha256(here).hexdigest()


def encode(weights, ids, mask):
    """Run the encoder in numpy, float64, from the architecture's description alone."""

    def dense(name, x):
        return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]

    def norm(name, x):
        centred = x - x.mean(axis=-1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-12)
        return scaled * weights[f"{name}.weight"] + weights[f"{name}.bias"]

    def heads(x):
        return x.reshape(len(x), 12, 32).swapaxes(0, 1)

    used = mask[0].astype(bool)
    x = weights["embeddings.word_embeddings.weight"][ids[0]]
    x = x + weights["embeddings.position_embeddings.weight"][: len(x)]
    x = norm("embeddings.LayerNorm", x + weights["embeddings.token_type_embeddings.weight"][0])
    for layer in (f"encoder.layer.{index}" for index in range(6)):
        parts = (heads(dense(f"{layer}.attention.self.{p}", x)) for p in ("query", "key", "value"))
        query, key, value = parts
        scores = np.where(used, query @ key.swapaxes(1, 2) / math.sqrt(32), -np.inf)
        attention = np.exp(scores - scores.max(axis=-1, keepdims=True))
        attention /= attention.sum(axis=-1, keepdims=True)
        context = (attention @ value).swapaxes(0, 1).reshape(len(x), 384)
        x = norm(
            f"{layer}.attention.output.LayerNorm",
            x + dense(f"{layer}.attention.output.dense", context),
        )
        wide = dense(f"{layer}.intermediate.dense", x)
        wide = 0.5 * wide * (1.0 + erf(wide / math.sqrt(2.0)))
        x = norm(f"{layer}.output.LayerNorm", x + dense(f"{layer}.output.dense", wide))
    mean = x[used].mean(axis=0)
    return x, mean / np.linalg.norm(mean)


def test_minilm_agrees_with_an_independent_implementation():
    items = zoo.inputs("minilm", 4)
    weights = {
        name: values.astype(np.float64) for name, values in read_safetensors(weights_file()).items()
    }
    for item, (hidden, sentence) in zip(items, run(zoo.load("minilm").model, items), strict=True):
        expected, pooled = encode(weights, item["input_ids"], item["attention_mask"])
        np.testing.assert_allclose(hidden[0], expected, rtol=0, atol=1e-4)
        np.testing.assert_allclose(sentence[0], pooled, rtol=0, atol=1e-5)


def test_ppocr_detector_finds_the_text_that_inputs_show():
    items = zoo.inputs("ppocr_det", 2)
    for item, (score,) in zip(items, run(zoo.load("ppocr_det").model, items), strict=True):
        dark = (item["x"] < 0.0).all(axis=1)[0]
        assert score[0, 0][dark].mean() > 0.3
        assert score[0, 0].mean() < 0.5
