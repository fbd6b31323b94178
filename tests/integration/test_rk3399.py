"""The example on published times: plans beat the published clusters, and contention costs."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

FILE = Path(__file__).parents[2] / "examples" / "rk3399.py"


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("rk3399", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_plans_on_published_times(
    example: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "out.json"
    found = {}
    for contention in ("1.0", "1.3"):
        options = ["--networks", "squeezenet", "--contention", contention, "--json", str(path)]
        assert example.main(options) == 0
        assert "published: Firefly-RK3399, ncnn" in capsys.readouterr().out
        rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
        found[contention] = {row["plan"]: row["period_s"] for row in rows}
    quiet, busy = found["1.0"], found["1.3"]
    assert quiet["published"] == busy["published"] == pytest.approx(0.05306)
    # Two clusters work where one was measured.
    assert quiet["best"] <= quiet["stages"] < quiet["published"]
    for plan in ("stages", "best"):
        assert 1.1 * quiet[plan] < busy[plan] < 1.35 * quiet[plan]
