"""A small network with everything that cutting must get right, measured once for all tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from partitioner import Partition, auto_partition
from partitioner.frontend import Grouped, group, load
from partitioner.host import allowed_cpus
from partitioner.runtime.build import BuildCache
from partitioner.tuning.records import Records

SECONDS = 0.05
"""Measuring time: figures are not judged here, so few runs do."""

Array = np.ndarray[Any, np.dtype[Any]]


def small_network(batch: int | str = 1, scale: float = 1.0) -> onnx.ModelProto:
    """Convolutions with a skip connection, a pool and a dense layer; two outputs; one input."""
    rng = np.random.default_rng(3)
    weights = {
        "w1": rng.standard_normal((8, 3, 3, 3)) * 0.4 * scale,
        "b1": rng.standard_normal(8) * 0.1,
        "w2": rng.standard_normal((8, 8, 3, 3)) * 0.2,
        "w3": rng.standard_normal((16, 8, 3, 3)) * 0.2,
        "w4": rng.standard_normal((16, 16, 1, 1)) * 0.4,
        "w5": rng.standard_normal((16 * 8 * 8, 10)) * 0.1,
        "b5": rng.standard_normal(10) * 0.1,
    }
    pads = {"pads": [1, 1, 1, 1]}
    nodes = [
        helper.make_node("Conv", ["picture", "w1", "b1"], ["c1"], name="stem", **pads),
        helper.make_node("Relu", ["c1"], ["r1"], name="stem_relu"),
        helper.make_node("Conv", ["r1", "w2"], ["c2"], name="block", **pads),
        helper.make_node("Add", ["c2", "r1"], ["s2"], name="skip"),
        helper.make_node("Relu", ["s2"], ["r2"], name="block_relu"),
        helper.make_node(
            "MaxPool", ["r2"], ["p2"], name="pool", kernel_shape=[2, 2], strides=[2, 2]
        ),
        helper.make_node("Conv", ["p2", "w3"], ["c3"], name="wide", **pads),
        helper.make_node("Relu", ["c3"], ["r3"], name="wide_relu"),
        helper.make_node("Conv", ["r3", "w4"], ["map"], name="head_map"),
        helper.make_node("Flatten", ["r3"], ["flat"], name="flatten"),
        helper.make_node("Gemm", ["flat", "w5", "b5"], ["logits"], name="head"),
    ]
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("picture", TensorProto.FLOAT, [batch, 3, 16, 16])],
        [
            helper.make_tensor_value_info("logits", TensorProto.FLOAT, [batch, 10]),
            helper.make_tensor_value_info("map", TensorProto.FLOAT, [batch, 16, 8, 8]),
        ],
        [numpy_helper.from_array(v.astype(np.float32), name) for name, v in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)])
    model.ir_version = 8
    onnx.checker.check_model(model)
    return model


@pytest.fixture(scope="session")
def network() -> onnx.ModelProto:
    """The small network."""
    return small_network()


@pytest.fixture(scope="session")
def make_network() -> Callable[..., onnx.ModelProto]:
    """The small network with another batch dimension or other weights."""
    return small_network


@pytest.fixture(scope="session")
def network_file(network: onnx.ModelProto, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small network as an ONNX file."""
    path = tmp_path_factory.mktemp("model") / "small.onnx"
    onnx.save(network, str(path))
    return path


@pytest.fixture(scope="session")
def grouped(network: onnx.ModelProto) -> Grouped:
    """The small network as ops."""
    return group(load(network))


@pytest.fixture(scope="session")
def cache_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What commands are given as XDG_CACHE_HOME, so that nothing leaks from or to the user's."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session")
def builds(cache_home: Path) -> BuildCache:
    """Compiled stages that all tests share; commands find the same ones.

    What the user of this machine has tuned is nothing to them.
    """
    return BuildCache(cache_home / "partitioner" / "builds", Records.shipped())


@pytest.fixture(scope="session")
def pair() -> list[str]:
    """Two one-core devices of this host."""
    cpus = allowed_cpus()
    if len(cpus) < 2:
        pytest.skip(f"two devices need two cores; this process may use {cpus}")
    return [f"cores:{cpu}" for cpu in cpus[:2]]


@pytest.fixture(scope="session")
def measured(grouped: Grouped, pair: list[str], builds: BuildCache) -> Partition:
    """The small network profiled on two cores and cut, whatever one core alone would cost."""
    return auto_partition(
        grouped, pair, strategy="pipeline", profile_seconds=SECONDS, builds=builds
    )


@pytest.fixture(scope="session")
def items(measured: Partition) -> list[dict[str, Array]]:
    """Inputs of the small network."""
    return measured.samples(6, seed=11)


@pytest.fixture(scope="session")
def expected(network: onnx.ModelProto, items: list[dict[str, Array]]) -> list[tuple[Array, ...]]:
    """ONNX Runtime's outputs, which must differ between the inputs or nothing is shown."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        network.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    results = [tuple(session.run(None, item)) for item in items]
    for column in zip(*results, strict=True):
        assert all(np.isfinite(array).all() for array in column)
        assert all(np.abs(array - column[0]).max() > 0.05 for array in column[1:])
    return results


@pytest.fixture(scope="session")
def profile_file(measured: Partition, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small network's times; copy it before anything writes to it."""
    path = tmp_path_factory.mktemp("profile") / "profile.json"
    measured.profile.save(path)
    return path
