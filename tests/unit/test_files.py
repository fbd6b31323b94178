from __future__ import annotations

import json
from pathlib import Path

import pytest

from partitioner.errors import InputError
from partitioner.files import replacing, write_json, write_text


def test_writes_and_replaces(tmp_path: Path) -> None:
    path = tmp_path / "data.json"
    write_json(path, {"a": [1, 2]})
    write_json(path, {"a": [3]})
    assert json.loads(path.read_text(encoding="utf-8")) == {"a": [3]}
    assert list(tmp_path.iterdir()) == [path]


def test_an_error_inside_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "table.txt"
    write_text(path, "old")

    def fail() -> None:
        with replacing(path) as temporary:
            temporary.write_text("half", encoding="utf-8")
            raise ArithmeticError("boom")

    with pytest.raises(ArithmeticError, match="boom"):
        fail()
    assert path.read_text(encoding="utf-8") == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_the_old_file_stays_until_the_block_ends(tmp_path: Path) -> None:
    path = tmp_path / "table.txt"
    write_text(path, "old")
    with replacing(path) as temporary:
        temporary.write_text("new", encoding="utf-8")
        assert path.read_text(encoding="utf-8") == "old"
    assert path.read_text(encoding="utf-8") == "new"


def test_permissions_are_those_of_a_plain_file(tmp_path: Path) -> None:
    plain, written = tmp_path / "plain", tmp_path / "written"
    plain.write_text("x", encoding="utf-8")
    write_text(written, "x")
    assert written.stat().st_mode == plain.stat().st_mode


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"absent/plan.json: cannot write here: No such file"):
        write_text(tmp_path / "absent" / "plan.json", "x")


def test_a_folder_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    with pytest.raises(InputError, match="taken: cannot write here"):
        write_text(tmp_path / "taken", "x")
    assert [entry.name for entry in tmp_path.iterdir()] == ["taken"]


def test_json_refuses_nan_and_writes_nothing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "nan.json", {"a": float("nan")})
    assert list(tmp_path.iterdir()) == []
