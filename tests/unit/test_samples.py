from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from partitioner.graph import OpGraph, Tensor
from partitioner.samples import random_item, random_items


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int64", "int32", "bool"])
def test_shape_dtype_and_range(graph: OpGraph, dtype: str) -> None:
    typed = Tensor(0, "x", None, (0,), (4, 25), dtype, 100)
    item = random_item(replace(graph, tensors=(typed, *graph.tensors[1:])))
    assert item["x"].shape == (4, 25)
    assert item["x"].dtype == dtype
    assert item["x"].min() >= 0
    assert item["x"].max() <= 1
    assert len(np.unique(item["x"])) >= 2


def test_same_seed_same_item_and_items_differ(graph: OpGraph) -> None:
    first, second, third = random_items(graph, 3, seed=7)
    np.testing.assert_array_equal(first["x"], random_item(graph, 7)["x"])
    np.testing.assert_array_equal(second["x"], random_item(graph, 8)["x"])
    assert not np.array_equal(first["x"], second["x"])
    assert not np.array_equal(second["x"], third["x"])


def test_each_input_by_name(graph: OpGraph) -> None:
    second = Tensor(5, "mask", None, (3,), (), "int64", 8)
    item = random_item(replace(graph, tensors=(*graph.tensors, second), inputs=(5, 0)))
    assert list(item) == ["mask", "x"]
    assert item["mask"].shape == ()
