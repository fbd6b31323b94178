from __future__ import annotations

from pathlib import Path

import pytest

from partitioner.profiling.throttle import throttle_count


@pytest.fixture
def groups(tmp_path: Path) -> Path:
    return tmp_path / "cgroup"


def count(root: Path, group: str, times: int) -> None:
    folder = root / group
    folder.mkdir(parents=True, exist_ok=True)
    text = f"nr_periods 9\nnr_throttled {times}\nthrottled_time 123456\n"
    (folder / "cpu.stat").write_text(text, encoding="ascii")


def test_the_own_group_and_those_around_it(tmp_path: Path, groups: Path) -> None:
    count(tmp_path, "cpu,cpuacct/outer/inner", 5)
    count(tmp_path, "cpu,cpuacct/outer", 2)
    count(tmp_path, "cpu,cpuacct", 0)
    count(tmp_path, "cpu,cpuacct/outer/other", 70)
    count(tmp_path, "memory/outer/inner", 900)
    groups.write_text("4:cpu,cpuacct:/outer/inner\n3:memory:/outer/inner\n0::/\n", encoding="ascii")
    assert throttle_count(groups, tmp_path) == 7


def test_the_unified_tree(tmp_path: Path, groups: Path) -> None:
    count(tmp_path / "fs", "box", 3)
    count(tmp_path / "fs", "", 1)
    count(tmp_path, "", 900)
    groups.write_text("0::/box\n", encoding="ascii")
    assert throttle_count(groups, tmp_path / "fs") == 4


def test_nothing_counts(tmp_path: Path, groups: Path) -> None:
    assert throttle_count(groups, tmp_path) == 0
    groups.write_text("1:cpu:/a\n", encoding="ascii")
    assert throttle_count(groups, tmp_path) == 0
    (tmp_path / "cpu" / "a").mkdir(parents=True)
    (tmp_path / "cpu" / "a" / "cpu.stat").write_text("usage_usec 5\n", encoding="ascii")
    assert throttle_count(groups, tmp_path) == 0
