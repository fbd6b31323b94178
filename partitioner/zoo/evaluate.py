"""A small float64 evaluator for the convolutional operators that the topologies use.

It exists because calibration must give the same weights everywhere: in float64 the differences
between machines and thread counts stay far below the rounding that `calibrate` applies, and no
inference engine has to be installed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from partitioner.errors import ImportModelError

__all__ = ["attributes", "run_node"]

Array = NDArray[np.float64]
Attributes = dict[str, Any]


def attributes(node: Any) -> Attributes:
    """Return a node's attributes as Python values."""
    return {item.name: onnx.helper.get_attribute_value(item) for item in node.attribute}


def run_node(node: Any, inputs: Sequence[NDArray[Any]]) -> Array:
    """Evaluate one ONNX node's first output.

    Parameters
    ----------
    node : onnx.NodeProto
        The node.
    inputs : sequence of ndarray
        Its inputs, activations as (N, ...) in float64.

    Raises
    ------
    ImportModelError
        If the operator is not one of the known ones.
    """
    function = _OPERATORS.get(node.op_type)
    if function is None:
        raise ImportModelError(
            f"zoo: node {node.name!r} is a {node.op_type}, which the calibration cannot evaluate; "
            f"it knows {', '.join(sorted(_OPERATORS))}. Install the onnx version the zoo was made "
            f"for (onnx>=1.17)."
        )
    return function(attributes(node), *inputs)


def _padded(x: Array, attrs: Attributes, fill: float) -> Array:
    """Pad the last two axes of ``x`` (N, C, H, W) as the node's ``pads`` say."""
    top, left, bottom, right = attrs.get("pads", (0, 0, 0, 0))
    if not any((top, left, bottom, right)):
        return x
    return np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)), constant_values=fill)


def _windows(x: Array, attrs: Attributes) -> Array:
    """Return the windows of the padded ``x`` (C, H, W) as a view (C, OH, OW, KH, KW)."""
    down, across = attrs.get("strides", (1, 1))
    kernel = tuple(attrs["kernel_shape"])
    padded = _padded(x[None], attrs, 0.0)[0]
    return sliding_window_view(padded, kernel, axis=(1, 2))[:, ::down, ::across]


def _pool(attrs: Attributes, x: Array, fill: float, combine: Any) -> Array:
    """Combine the values of each window, one kernel position at a time."""
    down, across = attrs.get("strides", (1, 1))
    rows, columns = attrs["kernel_shape"]
    padded = _padded(x, attrs, fill)
    high, wide = padded.shape[2] - rows + 1, padded.shape[3] - columns + 1
    result: Array = padded[:, :, 0:high:down, 0:wide:across].copy()
    for row, column in list(np.ndindex(rows, columns))[1:]:
        part = padded[:, :, row : row + high : down, column : column + wide : across]
        combine(result, part, out=result)
    return result


def _conv(attrs: Attributes, x: Array, weight: Array, bias: Array | None = None) -> Array:
    groups = attrs.get("group", 1)
    filters = weight.reshape(groups, weight.shape[0] // groups, -1).astype(np.float64)
    results = []
    for item in x:  # One item at a time bounds the memory of the unfolded windows.
        windows = _windows(item, attrs)
        high, wide = windows.shape[1:3]
        unfolded = windows.transpose(0, 3, 4, 1, 2).reshape(groups, -1, high * wide)
        results.append((filters @ unfolded).reshape(-1, high, wide))
    y = np.stack(results)
    return y if bias is None else y + bias[:, None, None]


def _max_pool(attrs: Attributes, x: Array) -> Array:
    return _pool(attrs, x, -np.inf, np.maximum)


def _average_pool(attrs: Attributes, x: Array) -> Array:
    total = _pool(attrs, x, 0.0, np.add)
    if attrs.get("count_include_pad", 0):
        return total / float(np.prod(attrs["kernel_shape"]))
    # Where padding does not count, each window is divided by its own number of real values.
    return total / _pool(attrs, np.ones((1, 1, *x.shape[2:])), 0.0, np.add)


def _normalize(
    attrs: Attributes, x: Array, scale: Array, bias: Array, mean: Array, variance: Array
) -> Array:
    factor = scale / np.sqrt(variance.astype(np.float64) + attrs.get("epsilon", 1e-5))
    result: Array = (x - mean[:, None, None]) * factor[:, None, None] + bias[:, None, None]
    return result


def _local_response(attrs: Attributes, x: Array) -> Array:
    size = attrs["size"]
    before = (size - 1) // 2
    squares = np.pad(x * x, ((0, 0), (before, size - 1 - before), (0, 0), (0, 0)))
    channels = x.shape[1]
    total = sum((squares[:, k : k + channels] for k in range(1, size)), start=squares[:, :channels])
    alpha, beta = attrs.get("alpha", 1e-4), attrs.get("beta", 0.75)
    result: Array = x / (attrs.get("bias", 1.0) + alpha / size * total) ** beta
    return result


def _gemm(attrs: Attributes, a: Array, b: Array, c: Array) -> Array:
    if attrs.get("transA", 0):
        a = a.T
    # One block of rows of b at a time: the whole of b in float64 would be 800 MB for VGG.
    by_output = b if attrs.get("transB", 0) else b.T
    parts = [a @ part.T.astype(np.float64) for part in np.array_split(by_output, 8)]
    product = np.concatenate(parts, axis=1)
    result: Array = attrs.get("alpha", 1.0) * product + attrs.get("beta", 1.0) * c
    return result


def _reshape(_: Attributes, x: Array, shape: NDArray[np.int64]) -> Array:
    # The files are for one item; here the leading axis carries several.
    return x.reshape(x.shape[0], *(int(size) for size in shape[1:]))


_OPERATORS: dict[str, Callable[..., Array]] = {
    "Add": lambda _, a, b: a + b,
    "AveragePool": _average_pool,
    "BatchNormalization": _normalize,
    "Concat": lambda attrs, *parts: np.concatenate(parts, axis=attrs["axis"]),
    "Conv": _conv,
    "Dropout": lambda _, x: x,
    "Gemm": _gemm,
    "GlobalAveragePool": lambda _, x: x.mean(axis=(2, 3), keepdims=True),
    "LRN": _local_response,
    "MaxPool": _max_pool,
    "Mul": lambda _, a, b: a * b,
    "Relu": lambda _, x: np.maximum(x, 0.0),
    "Reshape": _reshape,
    "Sum": lambda _, *terms: sum(terms[1:], start=terms[0]),
    "Transpose": lambda attrs, x: x.transpose(attrs["perm"]),
}
