from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from partitioner.arrays import read_items, write_items
from partitioner.errors import InputError
from partitioner.graph import OpGraph, Tensor


def test_items_are_the_leading_axis(graph: OpGraph, tmp_path: Path) -> None:
    path = tmp_path / "in.npz"
    x = np.arange(75, dtype=np.float32).reshape(3, 25)
    np.savez(path, x=x)
    items = read_items(path, graph)
    assert len(items) == 3
    for item, row in zip(items, x, strict=True):
        assert item.keys() == {"x"}
        np.testing.assert_array_equal(item["x"], row)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"z": np.zeros((1, 25), np.float32)}, r"found arrays \['z'\], needed one for each.*: x"),
        ({}, r"found arrays \[\], needed"),
        ({"x": np.zeros(25, np.float32)}, r"float32\[25\], needed float32\[items, 25\]"),
        ({"x": np.zeros((2, 24), np.float32)}, r"float32\[2, 24\], needed float32\[items, 25\]"),
        ({"x": np.zeros((2, 25))}, r"'x' is float64\[2, 25\], needed float32"),
        ({"x": np.float32(1)}, r"'x' is float32\[\], needed"),
        ({"x": np.zeros((0, 25), np.float32)}, "hold 0 items"),
    ],
)
def test_arrays_that_do_not_fit(
    graph: OpGraph, tmp_path: Path, arrays: dict[str, np.ndarray], message: str
) -> None:
    path = tmp_path / "in.npz"
    np.savez(path, **arrays)
    with pytest.raises(InputError, match=message):
        read_items(path, graph)


def test_inputs_with_unequal_numbers_of_items(graph: OpGraph, tmp_path: Path) -> None:
    second = Tensor(5, "mask", None, (3,), (1,), "bool", 1)
    two = replace(graph, tensors=(*graph.tensors, second), inputs=(0, 5))
    path = tmp_path / "in.npz"
    np.savez(path, x=np.zeros((2, 25), np.float32), mask=np.zeros((3, 1), bool))
    with pytest.raises(InputError, match="hold 2 or 3 items; all need the same number"):
        read_items(path, two)


@pytest.mark.parametrize("content", [b"", b"text, no arrays", b"PK\x03\x04 cut short"])
def test_files_that_are_no_arrays(graph: OpGraph, tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "in.npz"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"in\.npz: cannot read arrays.*np\.savez"):
        read_items(path, graph)


def test_truncated_archive(graph: OpGraph, tmp_path: Path) -> None:
    path = tmp_path / "in.npz"
    np.savez(path, x=np.zeros((2, 25), np.float32))
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(InputError, match="cannot read arrays"):
        read_items(path, graph)


def test_a_single_unnamed_array(graph: OpGraph, tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    np.save(path, np.zeros((2, 25), np.float32))
    with pytest.raises(InputError, match=r"one array without a name; write it with np\.savez"):
        read_items(path, graph)


def test_pickled_objects_are_refused(graph: OpGraph, tmp_path: Path) -> None:
    path = tmp_path / "in.npz"
    np.savez(path, x=np.array([{"a": 1}], dtype=object))
    with pytest.raises(InputError, match="cannot read arrays"):
        read_items(path, graph)


def test_no_file(graph: OpGraph, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        read_items(tmp_path / "absent.npz", graph)


def named_outputs(graph: OpGraph, *names: str) -> OpGraph:
    made = [Tensor(4 + i, name, 3, (), (50,), "float32", 200) for i, name in enumerate(names)]
    outputs = tuple(tensor.id for tensor in made)
    return replace(graph, tensors=(*graph.tensors[:4], *made), outputs=outputs)


def test_one_output_a_result(graph: OpGraph, tmp_path: Path) -> None:
    results = [np.full(50, i, np.float32) for i in range(3)]
    write_items(tmp_path / "out.npz", results, graph)
    with np.load(tmp_path / "out.npz", allow_pickle=False) as file:
        assert file.files == ["y"]
        np.testing.assert_array_equal(file["y"], np.stack(results))


def test_output_names_are_free(graph: OpGraph, tmp_path: Path) -> None:
    names = ("file", "allow_pickle", "/head/out:0")
    results = [tuple(np.full(50, 10 * i + k, np.float32) for k in range(3)) for i in range(2)]
    write_items(tmp_path / "out.npz", results, named_outputs(graph, *names))
    with np.load(tmp_path / "out.npz", allow_pickle=False) as file:
        assert set(file.files) == set(names)
        for k, name in enumerate(names):
            np.testing.assert_array_equal(file[name][:, 0], [k, 10 + k])


def test_nothing_to_write(graph: OpGraph, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no results"):
        write_items(tmp_path / "out.npz", [], graph)
    assert list(tmp_path.iterdir()) == []
