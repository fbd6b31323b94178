"""Real topologies whose files hold shapes but no weights: the ``light`` models of ``onnx``."""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from partitioner.zoo import calibrate as calibration
from partitioner.zoo import entry, evaluate, pictures
from partitioner.zoo.calibrate import calibrate
from partitioner.zoo.entry import Entry, Inputs, add_initializer, package_file
from partitioner.zoo.pictures import picture
from partitioner.zoo.store import cached

__all__ = ["ENTRIES", "build"]

_SIZE = 224
_SEED = 20_240_229
# More pictures make the statistics firmer and the calibration slower.
_PICTURES = 6
_FOLDER = "backend/test/data/light"

# What, besides this file, the weights come from: a change there makes cached networks stale.
_WEIGHT_CODE = tuple(
    module.__file__ for module in (calibration, entry, evaluate, pictures) if module.__file__
)

# Zoo name: (file, name of its input).
_FILES = {
    "squeezenet": ("light_squeezenet.onnx", "data_0"),
    "shufflenet": ("light_shufflenet.onnx", "gpu_0/data_0"),
    "resnet50": ("light_resnet50.onnx", "gpu_0/data_0"),
    "inception_v1": ("light_inception_v1.onnx", "data_0"),
    "densenet121": ("light_densenet121.onnx", "data_0"),
    "inception_v2": ("light_inception_v2.onnx", "data_0"),
    "alexnet": ("light_bvlc_alexnet.onnx", "data_0"),
    "zfnet512": ("light_zfnet512.onnx", "gpu_0/data_0"),
    "vgg19": ("light_vgg19.onnx", "data_0"),
}


def _photograph(rng: np.random.Generator) -> NDArray[np.float64]:
    """Draw a picture and shift it to about zero mean and unit deviation, (1, 3, 224, 224)."""
    return (picture(rng, _SIZE, _SIZE)[None] - 0.45) / 0.225


def _draw(input_name: str, rng: np.random.Generator) -> Inputs:
    return {input_name: _photograph(rng).astype(np.float32)}


def _plain(graph: Any) -> tuple[list[Any], dict[str, NDArray[Any]]]:
    """Fold generated constants, and what only reshapes them.

    Returns
    -------
    nodes : list of NodeProto
        The nodes that compute something.
    parameters : dict of str to ndarray
        What they read besides activations; float ones are placeholders that take no memory.
    """
    parameters = {item.name: onnx.numpy_helper.to_array(item) for item in graph.initializer}
    nodes: list[Any] = []
    for node in graph.node:
        source, result = node.input[0], node.output[0]
        if node.op_type == "ConstantOfShape":
            parameters[result] = np.broadcast_to(np.float32(0.0), tuple(parameters[source]))
        elif node.op_type == "Unsqueeze" and source in parameters:
            axes = onnx.helper.get_attribute_value(node.attribute[0])
            parameters[result] = np.expand_dims(parameters[source], tuple(axes))
        elif node.op_type == "Reshape" and source in parameters:
            parameters[result] = parameters[source].reshape(parameters[node.input[1]])
        else:
            nodes.append(node)
    read = {name for node in nodes for name in node.input}
    return nodes, {name: values for name, values in parameters.items() if name in read}


def _entitle(nodes: list[Any], parameters: Collection[str]) -> None:
    """Name nodes after their weights, and the others after the layer that they follow, in place."""
    layer_of: dict[str, str] = {}
    taken: set[str] = set()
    for node in nodes:
        stem = layer_of.get(node.input[0], "input")
        name = f"{stem}.{node.op_type.lower()}"
        if node.op_type in ("Conv", "Gemm", "BatchNormalization") and node.input[1] in parameters:
            stem = re.sub(r"_(w|s|scale)_\d+$", "", node.input[1].removeprefix("gpu_0/"))
            name = stem
        base, count = name, 1
        while name in taken:
            count += 1
            name = f"{base}:{count}"
        taken.add(name)
        node.name = name
        for output in node.output:
            layer_of[output] = stem


def _load(name: str, file: str, input_name: str) -> Any:
    """Return the network, from the cache where it holds this very one."""
    topology = package_file("onnx", f"{_FOLDER}/{file}", "onnx")
    code = (Path(module) for module in (__file__, *_WEIGHT_CODE))
    return cached(name, (topology, *code), partial(build, topology, input_name))


def build(topology: Path, input_name: str) -> Any:
    """Read a topology and give it seeded, calibrated weights.

    Parameters
    ----------
    topology : Path
        One of the ``light`` files.
    input_name : str
        Name of its picture input.

    Returns
    -------
    onnx.ModelProto
        The network with float32 initializers.
    """
    source = onnx.load(topology)
    nodes, parameters = _plain(source.graph)
    _entitle(nodes, parameters)
    rng = np.random.default_rng(_SEED)
    photographs = np.concatenate([_photograph(rng) for _ in range(_PICTURES)])
    weights = calibrate(nodes, parameters, input_name, photographs, _SEED)
    # Version 3 of the format wants every initializer listed among the inputs too; 8 does not.
    model = onnx.ModelProto(ir_version=8, producer_name="partitioner.zoo")
    model.opset_import.extend(source.opset_import)
    graph = model.graph
    graph.name = source.graph.name
    graph.node.extend(nodes)
    graph.input.extend(item for item in source.graph.input if item.name == input_name)
    graph.output.extend(source.graph.output)
    for name in sorted(weights):
        add_initializer(graph, name, weights[name])
    return model


ENTRIES = tuple(
    Entry(
        name=name,
        input_shapes=((input_name, (1, 3, _SIZE, _SIZE)),),
        source=f"onnx/{_FOLDER}/{file}",
        trained=False,
        build=partial(_load, name, file, input_name),
        draw=partial(_draw, input_name),
    )
    for name, (file, input_name) in _FILES.items()
)
