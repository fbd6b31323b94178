"""Items to and from .npz files: one array a model input or output, with a leading item axis."""

from __future__ import annotations

import zipfile
import zlib
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
        # Opened here because numpy leaves the file open when it is no archive.
        with Path(path).open("rb") as file:
            loaded = np.load(file, allow_pickle=False)
            if not isinstance(loaded, np.lib.npyio.NpzFile):
                raise InputError(f"{path}: holds one array without a name; write it with np.savez")
            arrays = {name: loaded[name] for name in loaded.files}
    except (OSError, EOFError, ValueError, zipfile.BadZipFile, zlib.error) as error:
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
        raise InputError(
            f"{path}: its arrays hold {' or '.join(map(str, sorted(counts)))} items; all need the "
            "same number, above 0"
        )
    return [{name: array[item] for name, array in arrays.items()} for item in range(counts.pop())]


def write_items(
    path: str | Path, results: Sequence[Array | tuple[Array, ...]], graph: OpGraph
) -> None:
    """Write results, whole or not at all; one array a model output, named as the model has it.

    Raises
    ------
    InputError
        If there are no results or the file cannot be written.
    """
    if not results:
        raise InputError(f"{path}: there are no results to write; run at least one item")
    names = [graph.tensors[tensor].name for tensor in graph.outputs]
    columns = zip(*(r if isinstance(r, tuple) else (r,) for r in results), strict=True)
    arrays = {name: np.stack(column) for name, column in zip(names, columns, strict=True)}
    # np.savez takes names as keyword arguments, and a model may call an output "file".
    with replacing(path) as temporary, zipfile.ZipFile(temporary, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)
