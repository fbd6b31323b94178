from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from partitioner.errors import PlanError
from partitioner.plan import Plan


def test_round_trip(plan: Plan, tmp_path: Path) -> None:
    plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == plan


def test_readable_by_a_person(plan: Plan, tmp_path: Path) -> None:
    plan.save(tmp_path / "plan.json")
    text = (tmp_path / "plan.json").read_text(encoding="utf-8")
    data = json.loads(text)
    assert [stage["ops"] for stage in data["stages"]] == [["conv_0", "relu_1"], ["conv_2", "add_3"]]
    assert [stage["placements"][0]["cpus"] for stage in data["stages"]] == ["0", "1"]
    assert data["sources"]["conv_2"] == ["Conv_2", "Bias_2"]
    assert max(map(len, text.splitlines())) < 120


def test_gap(plan: Plan) -> None:
    predicted = plan.predicted
    assert predicted is not None
    half = replace(predicted, period_s=4.0, latency_s=8.0, bound_s=2.0)
    assert half.gap("period") == 0.5
    assert half.gap("latency") == 0.75
    assert replace(half, bound_s=5.0).gap("period") == 0.0


def edited(plan: Plan, change: Callable[[dict[str, Any]], object]) -> Plan:
    data = json.loads(json.dumps(plan.to_data()))
    change(data)
    return Plan.from_data(data)


def move_conv_2(data: dict[str, Any]) -> None:
    first, second = data["stages"]
    first["ops"].append(second["ops"].pop(0))


def test_moving_an_op_drops_the_figures(plan: Plan) -> None:
    moved = edited(plan, move_conv_2)
    assert [stage.ops for stage in moved.stages] == [("conv_0", "relu_1", "conv_2"), ("add_3",)]
    assert moved.predicted is None
    assert moved.alternatives == moved.neighbours == ()
    for stage in moved.stages:
        assert stage.placements[0].busy_s is None
        assert stage.bytes is None
        assert stage.leaves == ()
    # What an edit does not touch stays.
    assert moved.sources == plan.sources
    assert moved.graph_hash == plan.graph_hash


def test_moving_there_and_back_keeps_them(plan: Plan) -> None:
    assert edited(plan, lambda data: None) == plan


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data["stages"][0]["placements"][0].update(device="cores:1", cpus="1"),
        lambda data: data["stages"][0]["placements"][0].update(share=0.5),
        lambda data: data["stages"].reverse(),
        lambda data: data.pop("assignment_hash"),
    ],
    ids=["device", "share", "order of stages", "hash removed"],
)
def test_other_edits_drop_the_figures_too(plan: Plan, change: Callable[..., object]) -> None:
    assert edited(plan, change).predicted is None


def test_an_edited_plan_can_be_saved_and_read_again(plan: Plan, tmp_path: Path) -> None:
    moved = edited(plan, move_conv_2)
    moved.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == moved


def place(data: dict[str, Any]) -> dict[str, Any]:
    return data["stages"][0]["placements"][0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.update(version=2), r"not a plan of version 1 \(found 2\); plan again"),
        (lambda d: d.pop("version"), r"not a plan of version 1 \(found None\)"),
        (lambda d: d.pop("graph_hash"), "the plan lacks the key 'graph_hash'"),
        (lambda d: d.pop("stages"), "the plan lacks the key 'stages'"),
        (lambda d: d["stages"].clear(), "no stages; it needs at least one"),
        (lambda d: d.update(stages={}), "no stages"),
        (lambda d: d.update(objective="speed"), "'speed'; it must be 'period' or 'latency'"),
        (lambda d: d["stages"][0].pop("ops"), "lacks the key 'ops'"),
        (lambda d: d["stages"][0].update(ops="conv_0"), "a list of names is needed"),
        (lambda d: d["stages"][0].update(colour=1), "malformed plan .*colour"),
        (lambda d: place(d).pop("cpus"), "lacks the key 'cpus'"),
        (lambda d: place(d).update(cpus=[0]), r"cpus of 'cores:0' are \[0\]; text such as"),
        (lambda d: place(d).update(cpus="0-"), "'0-' is no core list"),
        (lambda d: place(d).update(share="half"), r"stages\[0\]\.placements\[0\]\.share is 'half'"),
        (lambda d: place(d).update(share=0), "share is 0; a number above zero is needed"),
        (lambda d: place(d).update(share=None), "share is None; a number above zero"),
        (lambda d: place(d).update(busy_s=float("nan")), "busy_s is nan; a number zero or more"),
        (lambda d: d["predicted"].update(period_s=0.0), r"predicted\.period_s is 0\.0; a number"),
        (lambda d: d["predicted"].update(bound_s=-1), r"predicted\.bound_s is -1; a number zero"),
        (lambda d: d["predicted"].pop("status"), "malformed plan .*status"),
        (lambda d: d["alternatives"][0].update(latency_s="x"), r"alternatives\[0\]\.latency_s is"),
        (lambda d: d.update(sources=[]), "malformed plan"),
    ],
)
def test_malformed_plans(
    plan: Plan, tmp_path: Path, change: Callable[..., object], message: str
) -> None:
    data = json.loads(json.dumps(plan.to_data()))
    change(data)
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(data), encoding="utf-8")
    with pytest.raises(PlanError, match=f"plan.json: .*{message}"):
        Plan.load(path)


def test_truncated(plan: Plan, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    plan.save(path)
    path.write_text(path.read_text(encoding="utf-8")[:500], encoding="utf-8")
    with pytest.raises(PlanError, match=r"plan.json: not JSON \(.*\); restore it or plan again"):
        Plan.load(path)


@pytest.mark.parametrize("text", ["[]", "3", "null"])
def test_json_that_is_no_plan(tmp_path: Path, text: str) -> None:
    path = tmp_path / "plan.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(PlanError, match="not a plan of version 1"):
        Plan.load(path)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"cannot read the plan: No such file"):
        Plan.load(tmp_path / "absent.json")
    with pytest.raises(PlanError, match="cannot read the plan: Is a directory"):
        Plan.load(tmp_path)
