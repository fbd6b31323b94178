"""Items to and from .npz files: one array a model input or output, with a leading item axis."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from partitioner.errors import InputError
from partitioner.files import replacing
from partitioner.graph import OpGraph

__all__ = ["read_items", "write_items"]

Array = np.ndarray[Any, np.dtype[Any]]


def read_items(path: str | Path, graph: OpGraph) -> list[dict[str, Array]]:
    """Read items for a model's inputs.

    Raises
    ------
    InputError
        If the file cannot be read, or its arrays are not the model's inputs with an item axis.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise InputError(f"{path}: cannot read arrays: {error}; write it with np.savez") from error
    wanted = [graph.tensors[tensor] for tensor in graph.inputs]
    if set(arrays) != {tensor.name for tensor in wanted}:
        raise InputError(
            f"{path}: found arrays {sorted(arrays)}, needed one for each model input: "
            f"{', '.join(tensor.name for tensor in wanted)}"
        )
    counts = set()
    for tensor in wanted:
        array = arrays[tensor.name]
        if array.shape[1:] != tensor.shape or array.ndim == 0 or array.dtype != tensor.dtype:
            raise InputError(
                f"{path}: array {tensor.name!r} is {array.dtype}{list(array.shape)}, needed "
                f"{tensor.dtype}[items, {', '.join(map(str, tensor.shape))}]"
            )
        counts.add(len(array))
    if len(counts) != 1 or 0 in counts:
        raise InputError(f"{path}: arrays hold {sorted(counts)} items; all need the same, above 0")
    return [{name: array[item] for name, array in arrays.items()} for item in range(counts.pop())]


def write_items(
    path: str | Path, results: Sequence[Array | tuple[Array, ...]], graph: OpGraph
) -> None:
    """Write results, whole or not at all; one array a model output, named as the model has it.

    Raises
    ------
    InputError
        If the file cannot be written.
    """
    names = [graph.tensors[tensor].name for tensor in graph.outputs]
    columns = zip(*(r if isinstance(r, tuple) else (r,) for r in results), strict=True)
    arrays = {name: np.stack(column) for name, column in zip(names, columns, strict=True)}
    with replacing(path) as temporary, temporary.open("wb") as file:
        np.savez(file, allow_pickle=False, **arrays)
