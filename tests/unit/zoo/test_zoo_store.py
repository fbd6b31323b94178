"""The disk cache: read when it holds the very network, never in the way."""

import pytest
from onnx import helper

from partitioner.zoo import store


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "partitioner" / "zoo"


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "source"
    path.write_text("one")
    return path


class Builder:
    """Makes a model and counts how often it was asked."""

    def __init__(self):
        self.calls = 0

    def __call__(self):
        self.calls += 1
        node = helper.make_node("Relu", ["x"], ["y"], f"call{self.calls}")
        return helper.make_model(helper.make_graph([node], "g", [], []))


def test_second_call_reads_the_file(cache, source):
    build = Builder()
    first = store.cached("net", [source], build)
    assert store.cached("net", [source], build) == first
    assert build.calls == 1
    assert [path.name for path in cache.iterdir()] == [f"net-{store.key([source])}.onnx"]


def test_changed_source_builds_anew_and_drops_the_old_file(cache, source):
    build = Builder()
    store.cached("net", [source], build)
    store.cached("network", [source], build)
    source.write_text("two")
    assert store.cached("net", [source], build).graph.node[0].name == "call3"
    assert sorted(path.name.split("-")[0] for path in cache.iterdir()) == ["net", "network"]


@pytest.mark.parametrize("content", [b"", b"\xff\xff\xff"])
def test_damaged_file_is_replaced(cache, source, content):
    build = Builder()
    store.cached("net", [source], build)
    (path,) = cache.iterdir()
    path.write_bytes(content)
    assert store.cached("net", [source], build).graph.node[0].name == "call2"
    assert store.cached("net", [source], build).graph.node[0].name == "call2"
    assert build.calls == 2


def test_unusable_directory_only_costs_time(cache, source):
    cache.parent.parent.write_text("a file where the cache directory should be")
    build = Builder()
    assert store.cached("net", [source], build).graph.node[0].name == "call1"
    assert store.cached("net", [source], build).graph.node[0].name == "call2"


def test_failed_write_leaves_no_file(cache, source, monkeypatch):
    def refuse(descriptor):
        raise OSError("disk full")

    monkeypatch.setattr(store.os, "fsync", refuse)
    assert store.cached("net", [source], Builder()).graph.node
    assert list(cache.iterdir()) == []


def test_directory_without_the_variable(monkeypatch, tmp_path):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert store.folder() == tmp_path / ".cache" / "partitioner" / "zoo"
