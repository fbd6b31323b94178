from __future__ import annotations

from dataclasses import replace

import pytest

from partitioner.cost import build_problem
from partitioner.cost.interference import contended, contention_factors, op_class
from partitioner.errors import ProfileError
from partitioner.evaluation import evaluate
from partitioner.graph import OpGraph
from partitioner.machine import Machine
from partitioner.profiling.table import Measurement, OpKey, ProfileTable

TIMES_MS = {"k0": 1.5, "k1": 2.0, "k2": 6.0, "k3": 5.0}
"""Of each kernel on core 0 beside a busy core 1; alone they take 1, 1, 5 and 5 ms."""


@pytest.fixture
def beside(profile: ProfileTable) -> ProfileTable:
    rows = {OpKey(name, "cores:0", 1): Measurement(ms * 1e-3) for name, ms in TIMES_MS.items()}
    return replace(profile, contended=rows, contended_host_s={("cores:0", 1): 5e-6})


def test_a_table_of_contended_times(
    graph: OpGraph, machine: Machine, profile: ProfileTable, beside: ProfileTable
) -> None:
    busy = contended(beside)
    for key, row in profile.ops.items():
        wanted = TIMES_MS[key.signature] * 1e-3 if key.device == "cores:0" else row.median_s
        assert busy.time_s(key) == wanted
    assert busy.host_s == {("cores:0", 1): 5e-6}
    assert beside.ops == profile.ops
    # Stage 0: 1.5 + 2 ms, twice 5 us of dispatch, and three ends of hops.
    cut = evaluate(build_problem(graph, busy, machine), (0, 0, 1, 1), ((0,), (1,)))
    assert cut.period_s == pytest.approx(3.5e-3 + 2 * 5e-6 + 3e-4)


def test_a_table_without_them(profile: ProfileTable, graph: OpGraph) -> None:
    with pytest.raises(ProfileError, match=r"no times taken while .* busy; .*--contended"):
        contended(profile)
    assert contention_factors(profile, graph) == ()


def test_classes(graph: OpGraph) -> None:
    # conv_0 touches 100 B and 400 B of tensors and 1000 B of weights.
    conv, relu = graph.ops[:2]
    assert op_class(replace(conv, kind="conv2d_add_relu", flops=5 * 1500), graph) == "conv"
    assert op_class(replace(conv, kind="conv2d_add_relu", flops=5 * 1500 - 1), graph) == (
        "light conv"
    )
    assert op_class(replace(relu, kind="matmul_add"), graph) == "product"
    assert op_class(relu, graph) == "other"


def test_factors_by_class(graph: OpGraph, beside: ProfileTable) -> None:
    heavy = replace(graph, ops=(*graph.ops[:2], replace(graph.ops[2], flops=1e6), *graph.ops[3:]))
    rows = contention_factors(beside, heavy)
    assert [(row.device, row.threads, row.kind, row.ops) for row in rows] == [
        ("cores:0", 1, "all", 4),
        ("cores:0", 1, "other", 2),
        ("cores:0", 1, "conv", 1),
        ("cores:0", 1, "light conv", 1),
    ]
    # Sums 14.5 of 12 ms, 7 of 6, 6 of 5, 1.5 of 1; the ops' own factors 1.5, 2, 1.2 and 1.
    assert [row.factor for row in rows] == pytest.approx([14.5 / 12, 7 / 6, 1.2, 1.5])
    assert [row.low for row in rows] == pytest.approx([1.15, 1.25, 1.2, 1.5])
    assert [row.high for row in rows] == pytest.approx([1.625, 1.75, 1.2, 1.5])
    assert [row.share for row in rows] == pytest.approx([1.0, 0.5, 5 / 12, 1 / 12])


def test_only_measured_times_count(graph: OpGraph, beside: ProfileTable) -> None:
    key = OpKey("k0", "cores:0", 1)
    guess = replace(beside, contended={key: Measurement(1.0, interpolated=True)})
    assert contention_factors(guess, graph) == ()
    nothing = replace(beside, ops={**beside.ops, key: Measurement(0.0)})
    assert [row.ops for row in contention_factors(nothing, graph) if row.kind == "all"] == [3]
