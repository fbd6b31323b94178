"""Seeded random inputs for profiling and for runs without given ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from partitioner.graph import OpGraph, Tensor

__all__ = ["random_item", "random_items"]

Array = np.ndarray[Any, np.dtype[Any]]


def random_items(graph: OpGraph, count: int, seed: int = 0) -> Iterator[dict[str, Array]]:
    """`count` items, one array for each model input."""
    for item in range(count):
        yield random_item(graph, seed + item)


def random_item(graph: OpGraph, seed: int = 0) -> dict[str, Array]:
    """One array for each model input, by name.

    Floats are uniform in [0, 1), as a scaled picture is. Integers are 0 or 1, which every look-up
    table has.
    """
    generator = np.random.default_rng(seed)
    return {
        graph.tensors[tensor].name: _random(generator, graph.tensors[tensor])
        for tensor in graph.inputs
    }


def _random(generator: np.random.Generator, tensor: Tensor) -> Array:
    dtype = np.dtype(tensor.dtype)
    if dtype.kind in "iub":
        return generator.integers(0, 2, tensor.shape).astype(dtype)
    return generator.random(tensor.shape, dtype=np.float32).astype(dtype)
