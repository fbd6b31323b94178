"""What a wheel has in it besides modules."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from partitioner.lowering import Choice, host_target
from partitioner.lowering.isa import kind_of
from partitioner.tuning.database import Database, Row
from partitioner.tuning.records import CONFIRMED

ROOT = Path(__file__).parents[2]
BUILD = "from setuptools import build_meta; print(build_meta.build_wheel('.'))"
LOOK_UP = """
from partitioner.lowering import host_target
from partitioner.tuning.records import Records
records = Records.shipped()
print(records.folder, records.choice("of a test", host_target(1), 1).tile)
"""


def test_a_wheel_carries_the_shipped_records(tmp_path: Path) -> None:
    pytest.importorskip("setuptools", minversion="77")
    tree, site = tmp_path / "tree", tmp_path / "site"
    shutil.copytree(ROOT / "partitioner", tree / "partitioner")
    shutil.copytree(ROOT / "profiles", tree / "profiles")
    for name in ("pyproject.toml", "setup.py", "README.md"):
        shutil.copy(ROOT / name, tree)
    database = Database(tree / "profiles" / kind_of(host_target(1)))
    for choice, seconds in ((Choice(), 2.0), (Choice(tile=(8, 3)), 1.0)):
        database.add(Row("of a test", 1, choice, (seconds,) * CONFIRMED), host_target(1))

    def python(code: str, cwd: Path, **variables: str) -> str:
        return subprocess.run(
            [sys.executable, "-W", "ignore", "-c", code],
            cwd=cwd,
            env={**os.environ, **variables},
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        ).stdout.splitlines()[-1]

    with zipfile.ZipFile(tree / python(BUILD, tree)) as wheel:
        wheel.extractall(site)
    assert not list(site.glob("partitioner/profiles/*/machine.toml"))  # boards are examples
    found = python(LOOK_UP, tmp_path, PYTHONPATH=str(site))
    assert found == f"{site / 'partitioner' / 'profiles'} (8, 3)"
