"""Weights of an ONNX model, from lists of numbers to bytes."""

from __future__ import annotations

from typing import Any

from onnx import TensorProto

__all__ = ["pack_weights"]

_FLOAT_BYTES = 4


def pack_weights(graph: Any) -> None:
    """Store a graph's float weights as bytes, in place.

    Reading a protobuf list into an array goes number by number, 30 ms a million; onnxsim writes
    such lists. The wire format of a packed list of floats is the little-endian array itself,
    after a tag and a length (Protocol Buffers, "Encoding", packed repeated fields), which is what
    ``raw_data`` holds.

    Parameters
    ----------
    graph : onnx.GraphProto
        Modified: the same weights, stored otherwise.
    """
    for tensor in graph.initializer:
        count = len(tensor.float_data)
        if tensor.data_type != TensorProto.FLOAT or not count:
            continue
        alone = TensorProto()
        alone.CopyFrom(tensor)
        for field, _ in alone.ListFields():
            if field.name != "float_data":
                alone.ClearField(field.name)
        tensor.ClearField("float_data")
        tensor.raw_data = alone.SerializeToString()[-_FLOAT_BYTES * count :]
