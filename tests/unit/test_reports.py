from __future__ import annotations

import json
from dataclasses import replace

import pytest

from partitioner.errors import PlanError
from partitioner.graph import OpGraph
from partitioner.host import HostInfo
from partitioner.plan import Plan
from partitioner.profiling.table import Handover, Measurement, OpKey, Origin, ProfileTable
from partitioner.report import Baseline, Kernels, Measured, Outputs, Report
from partitioner.report.explain import explain
from partitioner.report.profile_report import profile_table
from partitioner.report.refinement import OptionFactor, Refinement, Round, Trial


@pytest.fixture
def report(plan: Plan, origin: Origin) -> Report:
    return Report(
        plan,
        origin.host,
        op_sum_s=2e-3,
        stage_measured_s=2.415e-3,
        measured=Measured(period_s=2.5e-3, latency_s=6e-3, items=400, spread=0.031),
        baselines=(Baseline("single cores:0", 12.5e-3, 12.5e-3, 12.2e-3, 5.0, 4.75, 5.25),),
        outputs=Outputs(checked=16, max_abs_diff=0.0),
    )


# What a run showed


def test_each_period_beside_the_one_before(report: Report) -> None:
    rows = [line.split() for line in str(report).splitlines()]
    found = {row[0]: row[1:] for row in rows if row}
    assert found["op_sum"] == ["2", "ms", "500.0"]
    assert found["predicted"] == ["2.3", "ms", "434.8", "+15.0%"]
    assert found["stage_measured"] == ["2.42", "ms", "414.1", "+5.0%"]
    assert ["measured", "2.5", "ms", "400.0", "+3.5%"] in rows
    text = str(report)
    assert "measured over 400 items a round, spread 3.1%; latency 6 ms" in text
    assert "outputs of 16 items: bitwise equal to the uncut model's, largest difference 0" in text
    assert [
        "single",
        "cores:0",
        "12.5",
        "ms",
        "12.2",
        "ms",
        "12.5",
        "ms",
        "4.75",
        "5.25",
        "5.00",
    ] in rows


def test_the_prediction_before_refining_beside_the_one_after(report: Report) -> None:
    predicted = report.plan.predicted
    assert predicted is not None
    before = replace(report.plan, predicted=replace(predicted, period_s=2.0e-3))
    told = Refinement(
        objective="period",
        rounds=(
            Round(
                (
                    Trial(0, "4 ops on cores:0", 2.1e-3, 2.8e-3, 0.01, 1.0, 1.0, 1.0),
                    Trial(1, "2 ops on cores:0 > 2 ops on cores:1", 2e-3, 2.5e-3, 0.2, 0.9, 0.8, 1),
                )
            ),
        ),
        repeats=3,
        factors=(
            OptionFactor("cores:0", 1.25, 1.5, workers=2),
            OptionFactor("cores:0-1", 1.25, 1.5, workers=0),
        ),
        chosen=1,
        before=before,
        stopped="these are as many rounds as were asked for",
    )
    text = str(replace(report, refinement=told))
    rows = [line.split() for line in text.splitlines()]
    assert ["predicted", "before", "2", "ms", "500.0", "+0.0%"] in rows
    assert ["predicted", "2.3", "ms", "434.8", "+15.0%"] in rows
    assert (
        "refined in 1 round of 3 repeats: plan 1 is kept; these are as many rounds as were asked "
        "for\ninconclusive: a spread above 10%"
    ) in text
    (row,) = (row for row in rows if row[:2] == ["1", "1"])
    assert row[-9:] == ["2", "ms", "2.5", "ms", "-20.0%", "20.0%", "0.900", "0.800", "1.000"]
    assert ["cores:0", "2", "1.25", "x", "1.50", "x"] in rows
    # What was not seen is not shown, but kept as data.
    assert not any(row[:1] == ["cores:0-1"] for row in rows)
    data = replace(report, refinement=told).to_data()["refinement"]
    assert [factor["option"] for factor in data["factors"]] == ["cores:0", "cores:0-1"]
    assert data["rounds"][0]["trials"][1]["ratio_low"] == 0.8


def test_how_kernels_are_made(report: Report) -> None:
    assert "kernels" not in str(report)
    assert report.to_data()["kernels"] is None
    shipped, own = "shipped for x86-64-avx2", "of /records"
    for sources, line in {
        (): "kernels: 0 ops by rule",
        ("", ""): "kernels: 2 ops by rule",
        (shipped, "", shipped): f"kernels: 2 of 3 ops from records ({shipped}), 1 by rule",
        (own, shipped, "", shipped): (
            f"kernels: 3 of 4 ops from records (2 {shipped}, 1 {own}), 1 by rule"
        ),
    }.items():
        made = replace(report, kernels=Kernels.of(sources))
        assert f"\n{line}\n" in str(made)
    assert made.to_data()["kernels"] == {
        "ops": 4,
        "recorded": 3,
        "sources": {shipped: 2, own: 1},
    }


def test_unequal_outputs_are_said(report: Report) -> None:
    wrong = replace(report, outputs=Outputs(16, 1e-4))
    assert "NOT equal to the uncut model's, largest difference 0.0001" in str(wrong)


def test_before_the_run(plan: Plan, origin: Origin) -> None:
    text = str(Report(plan, origin.host, op_sum_s=2e-3))
    assert "\npredicted " in text
    assert "stage_measured" not in text
    assert "outputs" not in text


def test_an_edited_plan_has_no_prediction(report: Report) -> None:
    edited = replace(report, plan=report.plan.stripped(), op_sum_s=None)
    assert edited.to_data()["predicted"] is None
    assert edited.to_data()["op_sum"] == {"period_s": None}
    periods = str(edited).partition("to the one above")[2]
    assert periods.split()[4] == "stage_measured"


def test_data_has_the_documented_keys(report: Report) -> None:
    data = json.loads(json.dumps(report.to_data(), allow_nan=False))
    assert data["schema"] == 1
    assert data["model"] == "tiny"
    assert data["plan"] == json.loads(json.dumps(report.plan.to_data()))
    assert data["predicted"].keys() == {"period_s", "latency_s"}
    assert data["op_sum"] == {"period_s": 2e-3}
    assert data["stage_measured"] == {"period_s": 2.415e-3}
    assert data["measured"] == {
        "period_s": 2.5e-3,
        "latency_s": 6e-3,
        "items": 400,
        "spread": 0.031,
    }
    assert {"name", "period_s", "latency_s"} <= data["baselines"][0].keys()
    assert data["outputs"] == {"checked": 16, "max_abs_diff": 0.0, "tolerance": 0.0}
    assert HostInfo(**data["host"]) == report.host


def test_data_before_the_run(plan: Plan, origin: Origin) -> None:
    data = Report(plan, origin.host).to_data()
    assert data["measured"] is data["outputs"] is None
    assert data["baselines"] == []


# Why a plan is as it is


def test_explanation(plan: Plan) -> None:
    text = explain(plan)
    lines = text.splitlines()
    assert lines[0] == (
        "pipeline plan of tiny: period 2.3 ms, OPTIMAL (no such plan is below 2.3 ms)"
    )
    assert lines[1] == f"bottleneck: {plan.predicted and plan.predicted.bottleneck}"
    assert lines[4].split() == ["0", "cores:0", "2.3", "ms", "100%", "2", "ms", "300", "us"]
    assert (
        "cut 0|1: after relu_1, before conv_2; stage 0 hands over skip (400 B), mid (400 B)"
        in lines
    )
    assert text.index("one step away:") < text.index("simple alternatives:")
    # 12.2 ms against 2.3 ms.
    assert any(line.split() == ["single", "cores:0", "12.2", "ms", "+430.4%"] for line in lines)


def test_what_the_next_best_costs(plan: Plan) -> None:
    nearest = plan.neighbours[0]
    rows = explain(plan).partition("one step away:\n")[2].splitlines()
    assert rows[2].startswith(nearest.name)
    assert plan.predicted is not None
    assert rows[2].endswith(f"{nearest.period_s / plan.predicted.period_s - 1:+.1%}")


def test_an_uncut_plan_has_no_cuts(plan: Plan) -> None:
    whole = replace(
        plan.stages[0], ops=tuple(op for stage in plan.stages for op in stage.ops), leaves=()
    )
    assert "cut 0" not in explain(replace(plan, stages=(whole,)))


def test_stages_side_by_side_hand_over_nothing(plan: Plan) -> None:
    apart = (replace(plan.stages[0], leaves=()), plan.stages[1])
    assert "stage 0 hands over nothing" in explain(replace(plan, stages=apart))


def test_an_edited_plan_cannot_be_explained(plan: Plan) -> None:
    with pytest.raises(PlanError, match=r"were edited.*`partitioner plan MODEL --plan FILE -o"):
        explain(plan.stripped())


# A profile


def test_longest_ops_first_and_sums(graph: OpGraph, profile: ProfileTable) -> None:
    lines = profile_table(profile, graph).splitlines()
    assert lines[0].split("  ")[0] == "op"
    for header in ("first source node", "cores:0 x1", "cores:0-1 x2", "cores:1 x1"):
        assert header in lines[0]
    # Each op takes 5 ms on one of the cores, so they stay in module order.
    assert [line.split()[0] for line in lines[2:]] == [
        "conv_0",
        "relu_1",
        "conv_2",
        "add_3",
        "sum",
        "hand-over:",
    ]
    assert lines[4].split() == ["conv_2", "Conv_2", "5", "ms", "2", "ms", "1", "ms"]
    assert lines[6].split() == ["sum", "12", "ms", "8", "ms", "12", "ms"]


def test_order_is_by_the_longest_time(graph: OpGraph, profile: ProfileTable) -> None:
    slow = OpKey("k3", "cores:0-1", 2)
    table = replace(profile, ops={**profile.ops, slow: Measurement(0.009)})
    assert profile_table(table, graph).splitlines()[2].startswith("add_3")


def test_handover_counts_both_ends(graph: OpGraph, profile: ProfileTable) -> None:
    table = replace(profile, handover=Handover(1e-5, 1e-10, 2e-5, 3e-10))
    assert "hand-over: 30 us a hop and 0.400 s a GB" in profile_table(table, graph)


def test_ops_with_kernels_of_records_are_counted(graph: OpGraph, profile: ProfileTable) -> None:
    assert "kernels" not in profile_table(profile, graph)
    ops = dict(profile.ops)
    for key in (OpKey("k0", "cores:0", 1), OpKey("k0", "cores:1", 1), OpKey("k2", "cores:1", 1)):
        ops[key] = replace(ops[key], kernel="abc")
    text = profile_table(replace(profile, ops=ops), graph)
    assert "kernels: 2 of 4 ops from records of tuning, 2 by rule" in text


def test_what_was_not_measured_is_a_dash(graph: OpGraph, profile: ProfileTable) -> None:
    ops = {key: row for key, row in profile.ops.items() if key != OpKey("k0", "cores:1", 1)}
    (row,) = (
        line
        for line in profile_table(replace(profile, ops=ops), graph).splitlines()
        if line.startswith("conv_0")
    )
    assert row.split() == ["conv_0", "Conv_0", "1", "ms", "2", "ms", "-"]


def test_only_the_longest_are_listed(graph: OpGraph, profile: ProfileTable) -> None:
    many = replace(
        graph,
        ops=tuple(
            replace(graph.ops[0], id=i, name=f"op_{i}", signature=f"k{i % 4}") for i in range(23)
        ),
    )
    lines = profile_table(profile, many).splitlines()
    assert len([line for line in lines if line.startswith("op_")]) == 20
    (rest,) = (line for line in lines if line.startswith("3 others"))
    # Every op takes 5 ms on one of the cores, so the last three are left: k0, k1 and k2.
    assert rest.split() == ["3", "others", "7", "ms", "6", "ms", "11", "ms"]


def test_noise_is_said(graph: OpGraph, profile: ProfileTable) -> None:
    assert "warning" not in profile_table(profile, graph)
    noisy = {
        OpKey("k0", "cores:1", 1): Measurement(5e-3, 2e-3, 9),
        OpKey("k1", "cores:1", 1): Measurement(4e-3, 3e-3, 9),
    }
    text = profile_table(replace(profile, ops={**profile.ops, **noisy}), graph)
    assert "warning: 2 of 12 times vary by more than 15%" in text
    assert "the longest 5 ms by 40%" in text


def test_noise_of_what_takes_no_time(graph: OpGraph, profile: ProfileTable) -> None:
    nothing = {OpKey("k0", "cores:1", 1): Measurement(0.0, 1e-9, 9)}
    text = profile_table(replace(profile, ops={**profile.ops, **nothing}), graph)
    assert "warning: 1 of 12 times" in text


def test_interpolated_times_are_marked(graph: OpGraph, profile: ProfileTable) -> None:
    between = OpKey("k2", "cores:0-1", 2)
    ops = {**profile.ops, between: Measurement(0.002, interpolated=True)}
    lines = profile_table(replace(profile, ops=ops), graph).splitlines()
    assert lines[4].split() == ["conv_2", "Conv_2", "5", "ms", "2", "ms*", "1", "ms"]
    assert lines[6].split() == ["sum", "12", "ms", "8", "ms*", "12", "ms"]
    assert lines[7] == "* interpolated between measured numbers of threads (1 of 12 times)"
    assert "*" not in profile_table(profile, graph)


def test_slowdown_beside_busy_cores(graph: OpGraph, profile: ProfileTable) -> None:
    assert "busy" not in profile_table(profile, graph)
    contended = {
        OpKey(f"k{number}", "cores:0", 1): Measurement(ms * 1e-3)
        for number, ms in enumerate((1.5, 2.0, 6.0, 5.0))
    }
    lines = profile_table(replace(profile, contended=contended), graph).splitlines()
    row = lines[lines.index("while the other cores are busy:") + 3]
    assert row.split() == ["cores:0", "x1", "all", "4", "100%", "1.21", "1.15", "to", "1.62"]


def test_notes_are_said(graph: OpGraph, profile: ProfileTable) -> None:
    lines = profile_table(replace(profile, notes=("core 1 slowed down",)), graph).splitlines()
    assert lines[-1] == "note: core 1 slowed down"
