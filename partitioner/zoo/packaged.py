"""Trained networks that Python packages carry: PP-OCR and a YOLO-like detector."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import onnx

from partitioner.zoo.entry import Entry, Inputs, name_nodes, package_file
from partitioner.zoo.pictures import text_picture

__all__ = ["ENTRIES"]

RAPIDOCR = "rapidocr-onnxruntime==1.4.4"
DDDDOCR = "ddddocr==1.6.1"


@dataclass(frozen=True, slots=True)
class _File:
    """Where a network lies and what pictures it wants.

    Attributes
    ----------
    name : str
        Name in the zoo.
    package, path, pip : str
        Import name, file inside it, and what pip installs it from.
    input_name : str
        The picture input.
    height, width : int
        Fixed picture size.
    lines : int
        Rows of text that a realistic picture shows.
    offset, scale : float
        Pixels in [0, 1] are handed over as ``(pixel - offset) * scale``.
    """

    name: str
    package: str
    path: str
    pip: str
    input_name: str
    height: int
    width: int
    lines: int
    offset: float
    scale: float

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return (1, 3, self.height, self.width)


def _ocr(name: str, file: str, height: int, width: int, lines: int) -> _File:
    """Describe a PP-OCR network; they all take pixels in [-1, 1]."""
    folder = "rapidocr_onnxruntime"
    path = f"models/{file}"
    return _File(name, folder, path, RAPIDOCR, "x", height, width, lines, offset=0.5, scale=2.0)


_FILES = (
    _ocr("ppocr_det", "ch_PP-OCRv4_det_infer.onnx", 320, 320, 6),
    _ocr("ppocr_rec", "ch_PP-OCRv4_rec_infer.onnx", 48, 320, 1),
    _ocr("ppocr_cls", "ch_ppocr_mobile_v2.0_cls_infer.onnx", 48, 192, 1),
    _File("ddddocr_det", "ddddocr", "common_det.onnx", DDDDOCR, "images", 416, 416, 5, 0.0, 255.0),
)


def _draw(file: _File, rng: np.random.Generator) -> Inputs:
    pixels = text_picture(rng, file.height, file.width, file.lines)
    return {file.input_name: ((pixels[None] - file.offset) * file.scale).astype(np.float32)}


def _build(file: _File) -> Any:
    """Read the network, move constant nodes to initializers, fix its input, name its nodes."""
    model = onnx.load(package_file(file.package, file.path, file.pip))
    graph = model.graph
    _constants_to_initializers(graph)
    dims = next(i for i in graph.input if i.name == file.input_name).type.tensor_type.shape.dim
    for dim, size in zip(dims, file.shape, strict=True):
        dim.dim_value = size
    name_nodes(graph)
    return model


def _constants_to_initializers(graph: Any) -> None:
    """Replace the tensor ``Constant`` nodes of a graph by initializers, in place."""
    nodes = []
    for node in graph.node:
        if node.op_type == "Constant" and node.attribute[0].name == "value":
            tensor = node.attribute[0].t
            tensor.name = node.output[0]
            graph.initializer.append(tensor)
        else:
            nodes.append(node)
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(copies)


ENTRIES = tuple(
    Entry(
        name=file.name,
        input_shapes=((file.input_name, file.shape),),
        source=f"{file.package}/{file.path} ({file.pip})",
        trained=True,
        build=partial(_build, file),
        draw=partial(_draw, file),
    )
    for file in _FILES
)
