from __future__ import annotations

from dataclasses import replace

import pytest

from partitioner.plan import Plan
from partitioner.plan_table import format_bytes, format_seconds, plan_table, table


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"),
        (0.0, "0.00 us"),
        (2.5e-7, "0.25 us"),
        (1e-6, "1 us"),
        (9.996e-4, "1 ms"),
        (0.9994e-3, "999 us"),
        (2.3456e-3, "2.35 ms"),
        (0.9996, "1 s"),
        (12.34, "12.3 s"),
        (1234.5, "1234 s"),
    ],
)
def test_seconds(seconds: float | None, text: str) -> None:
    assert format_seconds(seconds) == text


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (None, "-"),
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1 kB"),
        (999_600, "1 MB"),
        (1_234_567, "1.23 MB"),
        (2.5e9, "2.5 GB"),
        (4.096e12, "4096 GB"),
    ],
)
def test_bytes(size: float | None, text: str) -> None:
    assert format_bytes(size) == text


def test_numbers_to_the_right_text_to_the_left() -> None:
    assert table(("name", "n", "by"), [("a", "1.5", "+3%"), ("long", "10", "-12%")]) == "\n".join(
        ["name    n    by", "----  ---  ----", "a     1.5   +3%", "long   10  -12%"]
    )


def test_a_table_without_rows_is_its_head() -> None:
    assert table(("a", "bc"), []) == "a  bc\n-  --"


def test_plan_says_everything(plan: Plan) -> None:
    assert str(plan) == plan_table(plan)
    lines = str(plan).splitlines()
    assert lines[0] == "pipeline plan of tiny for pair: 2 stages, least period"
    # Stage 0: two ops of 1 ms, one tensor in (100 B) and two out (400 B each), each 0.1 ms.
    # Its memory: 1000 B of constants, 900 B alive, the 100 B tensor in two queue slots.
    assert " ".join(lines[3].split()) == (
        "0 cores:0 0 100% 2 Conv_0 .. Relu_1 2 ms 300 us 2.3 ms 100 B 800 B 2.3 kB"
    )
    assert lines[4].split()[5:8] == ["Conv_2", "..", "Add_3"]
    text = str(plan)
    assert "predicted (from measured op times): period 2.3 ms (434.8 items/s), latency" in text
    assert "atomic, sync transfers), bottleneck stage" in text
    assert "OPTIMAL by" in text
    assert "gap 0.00%" in text
    for alternative in plan.alternatives:
        assert f"\n{alternative.name} " in text


def test_estimates_and_edits_are_marked(plan: Plan) -> None:
    assert plan.predicted is not None
    guessed = replace(plan, predicted=replace(plan.predicted, estimated=True))
    assert "predicted (estimated, not measured): period" in str(guessed)
    edited = str(plan.stripped())
    assert "predicted: nothing, the stages were edited" in edited
    assert "items/s" not in edited


def test_replicas_are_rows_of_one_stage(plan: Plan) -> None:
    first, second = (stage.placements[0] for stage in plan.stages)
    ops = tuple(op for stage in plan.stages for op in stage.ops)
    whole = replace(
        plan.stages[0],
        ops=ops,
        placements=(replace(first, share=0.25), replace(second, share=0.75)),
    )
    rows = str(replace(plan, stages=(whole,))).splitlines()
    assert rows[0].endswith("1 stage, least period")
    assert [row.split()[:4] for row in rows[3:5]] == [
        ["0.0", "cores:0", "0", "25%"],
        ["0.1", "cores:1", "1", "75%"],
    ]


def test_long_source_names_are_shortened_in_the_middle(plan: Plan) -> None:
    name = "/model/layer1/layer1.0/conv1/Conv"
    sources = (("conv_0", (name,)), *plan.sources[1:])
    text = str(replace(plan, sources=sources))
    assert name not in text
    assert f"{name[:13]}..{name[-13:]} .. Relu_1" in text


def test_ops_without_sources_go_by_their_own_names(plan: Plan) -> None:
    assert "conv_0 .. relu_1" in str(replace(plan, sources=()))
