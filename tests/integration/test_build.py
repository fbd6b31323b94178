"""Compiled stages are kept by content, within bounds, and a bad folder is said."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from partitioner import Machine, split
from partitioner.errors import BuildError
from partitioner.frontend import Grouped
from partitioner.runtime import build
from partitioner.runtime.build import BuildCache


def whole(grouped: Grouped) -> object:
    return split(grouped.module, grouped.graph, [0] * len(grouped.graph.ops))[0]


def test_nothing_is_compiled_twice(
    grouped: Grouped, pair: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = Machine.of(pair).devices[0]
    first = BuildCache(tmp_path).build(whole(grouped), device)
    monkeypatch.setattr(build.lowering, "lower", lambda *_: pytest.fail("compiled again"))
    assert BuildCache(tmp_path).build(whole(grouped), device) == first
    assert [name for name, _ in first.kernels] == [op.name for op in grouped.graph.ops]


def test_the_longest_unused_go_first(
    grouped: Grouped, pair: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for age, name in enumerate(("new", "old")):
        for suffix in (".so", ".json"):
            path = tmp_path / f"{name}{suffix}"
            path.write_bytes(b"x" * 100)
            os.utime(path, (1e9 - age, 1e9 - age))
    monkeypatch.setattr(build, "_MOST_BYTES", 150)
    built = BuildCache(tmp_path).build(whole(grouped), Machine.of(pair).devices[0])
    assert {path.stem for path in tmp_path.glob("*.so")} == {"new", built.path.stem}
    assert not (tmp_path / "old.json").exists()


def test_a_folder_that_cannot_be_is_said(grouped: Grouped, pair: list[str], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way", encoding="utf-8")
    with pytest.raises(BuildError, match=r"cannot keep compiled stages here.*XDG_CACHE_HOME"):
        BuildCache(tmp_path / "file").build(whole(grouped), Machine.of(pair).devices[0])
