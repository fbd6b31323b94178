from __future__ import annotations

from dataclasses import replace

import pytest

from partitioner.graph import OpGraph
from partitioner.machine import Device
from partitioner.profiling.counts import (
    chosen_counts,
    optimistic,
    rests_on,
    to_measure,
    with_interpolated,
    with_own_kernels,
)
from partitioner.profiling.table import Measurement, OpKey, Origin, ProfileTable

BIG = tuple(Device("big", cpus=tuple(range(k))) for k in range(1, 9))
LITTLE = tuple(Device("little", cpus=tuple(range(8, 8 + k))) for k in range(1, 3))
ALL = Device("cores:0-9", cpus=tuple(range(10)))
PLACEMENTS = (*BIG, *LITTLE, ALL)


def amdahl(serial_s: float, parallel_s: float, k: int) -> Measurement:
    return Measurement(serial_s + parallel_s / k, 1e-4 / k, 10)


@pytest.fixture
def table(graph: OpGraph, origin: Origin) -> ProfileTable:
    """Op number i takes i ms serially and 8 ms in parallel; all chosen numbers are measured."""
    return ProfileTable(
        origin,
        {
            OpKey(op.signature, device.name, device.threads): amdahl(
                op.id * 1e-3, 8e-3, device.threads
            )
            for device in to_measure(PLACEMENTS)
            for op in graph.ops
        },
        {(device.name, device.threads): 1e-6 for device in to_measure(PLACEMENTS)},
    )


@pytest.mark.parametrize(
    ("cores", "counts"),
    [(1, (1,)), (3, (1, 2, 3)), (4, (1, 2, 3, 4)), (5, (1, 2, 4, 5)), (8, (1, 2, 4, 8)),
     (9, (1, 2, 4, 8, 9)), (16, (1, 2, 4, 8, 16))],
)  # fmt: skip
def test_counts_of_a_cluster(cores: int, counts: tuple[int, ...]) -> None:
    assert chosen_counts(cores) == counts


def test_joined_cores_are_measured_and_of_a_cluster_some() -> None:
    assert [(device.name, device.threads) for device in to_measure(PLACEMENTS)] == [
        *(("big", k) for k in (1, 2, 4, 8)),
        ("little", 1),
        ("little", 2),
        ("cores:0-9", 10),
    ]


def test_between_lies_on_the_curve(graph: OpGraph, table: ProfileTable) -> None:
    whole = with_interpolated(table, graph, PLACEMENTS)
    for op in graph.ops:
        for k in (3, 5, 6, 7):
            row = whole.ops[OpKey(op.signature, "big", k)]
            wanted = amdahl(op.id * 1e-3, 8e-3, k)
            assert (row.median_s, row.iqr_s) == pytest.approx((wanted.median_s, wanted.iqr_s))
            assert (row.runs, row.interpolated) == (0, True)
            assert whole.host_s["big", k] == pytest.approx(1e-6)
    assert all(whole.ops[key] == row for key, row in table.ops.items())
    assert len(whole.ops) == 4 * len(PLACEMENTS)


def test_measured_rows_replace_interpolated_ones(graph: OpGraph, table: ProfileTable) -> None:
    whole = with_interpolated(table, graph, PLACEMENTS)
    six = OpKey("k0", "big", 6)
    better = whole.merged(replace(table, ops={six: Measurement(1.5e-3, 0.0, 10)}))
    better = replace(better, host_s={**better.host_s, ("big", 6): 7e-6})
    again = with_interpolated(better, graph, PLACEMENTS)
    assert again.ops[six] == Measurement(1.5e-3, 0.0, 10)
    # Five lies between four and the six that is known now: (8/4 + 1.5 x 2) / 3 by weights of 1/k.
    assert again.time_s(OpKey("k0", "big", 5)) == pytest.approx(0.4 * 2e-3 + 0.6 * 1.5e-3)
    assert again.host_s["big", 5] == pytest.approx(0.4 * 1e-6 + 0.6 * 7e-6)
    assert again.ops[OpKey("k1", "big", 6)] == whole.ops[OpKey("k1", "big", 6)]


def test_what_lies_between_nothing_stays_missing(graph: OpGraph, table: ProfileTable) -> None:
    only = {key: row for key, row in table.ops.items() if key.device == "big" and key.threads < 8}
    whole = with_interpolated(replace(table, ops=only), graph, PLACEMENTS)
    assert {key.threads for key in whole.ops} == {1, 2, 3, 4}


def test_contended_rows_are_interpolated_too(graph: OpGraph, table: ProfileTable) -> None:
    slower = {key: replace(row, median_s=2 * row.median_s) for key, row in table.ops.items()}
    busy = replace(table, contended=slower, contended_host_s={("big", 2): 2e-6, ("big", 4): 4e-6})
    whole = with_interpolated(busy, graph, PLACEMENTS)
    for key, row in whole.ops.items():
        assert whole.contended[key].median_s == pytest.approx(2 * row.median_s)
        assert whole.contended[key].interpolated == row.interpolated
    # 1/3 is a third of the way from 1/4 to 1/2.
    assert whole.contended_host_s["big", 3] == pytest.approx(4e-6 - 2e-6 / 3)


def test_the_shortest_that_a_row_can_be(graph: OpGraph, table: ProfileTable) -> None:
    slow = replace(table, host_s={**table.host_s, ("big", 4): 3e-6, ("big", 8): 5e-6})
    whole = with_interpolated(slow, graph, PLACEMENTS)
    least = optimistic(whole)
    assert whole.host_s["big", 6] > 3e-6
    assert [least.host_s["big", k] for k in (3, 4, 5, 6, 7, 8)] == [
        *(1e-6, 3e-6),
        *(1e-6, 1e-6, 1e-6, 5e-6),
    ]
    for key, row in whole.ops.items():
        if not row.interpolated:
            assert least.ops[key] == row
    # Op 3 takes 3 + 8/4 ms with four threads: at best 4/7 of it with seven.
    assert least.time_s(OpKey("k3", "big", 7)) == pytest.approx(5e-3 * 4 / 7)
    # A perfectly parallel op's curve is its bound.
    assert least.time_s(OpKey("k0", "big", 3)) == pytest.approx(8e-3 / 3)
    assert least.ops[OpKey("k3", "big", 7)].interpolated


def test_a_bound_is_never_above_the_curve(graph: OpGraph, table: ProfileTable) -> None:
    # Faster than perfect scaling from four threads to eight, as with two caches.
    ops = {**table.ops, OpKey("k0", "big", 8): Measurement(0.1e-3, 0.0, 10)}
    whole = with_interpolated(replace(table, ops=ops), graph, PLACEMENTS)
    assert optimistic(whole).ops[OpKey("k0", "big", 6)] == whole.ops[OpKey("k0", "big", 6)]


def test_what_a_plan_rests_on(graph: OpGraph, table: ProfileTable) -> None:
    whole = with_interpolated(table, graph, PLACEMENTS)
    five, one, six = BIG[4], LITTLE[0], BIG[5]
    assert rests_on(whole, graph, (0, 0, 1, 1), ((five,), (one,))) == (
        OpKey("k0", "big", 5),
        OpKey("k1", "big", 5),
    )
    assert rests_on(whole, graph, (0, 0, 0, 1), ((one, one), (one, six))) == (
        OpKey("k3", "big", 6),
    )
    assert rests_on(whole, graph, (0, 0, 0, 0), ((ALL,),)) == ()


# Kernels of their own


def kernels(graph: OpGraph, own: dict[tuple[str, int], str]) -> dict[OpKey, str]:
    """By rule on every placement, but for op k1's where `own` says another."""
    return {
        OpKey(op.signature, device.name, device.threads): (
            own.get((device.name, device.threads), "") if op.signature == "k1" else ""
        )
        for device in PLACEMENTS
        for op in graph.ops
    }


def test_numbers_of_threads_with_a_kernel_of_their_own_are_measured(graph: OpGraph) -> None:
    def measured(own: dict[tuple[str, int], str]) -> list[int]:
        found = with_own_kernels(PLACEMENTS, to_measure(PLACEMENTS), kernels(graph, own))
        assert [device.name for device in found[-3:]] == ["little", "little", "cores:0-9"]
        return [device.threads for device in found if device.name == "big"]

    assert measured({}) == [1, 2, 4, 8]
    # From two threads up there is one record, from six on another.
    assert measured({("big", k): "abc" for k in range(2, 9)}) == [1, 2, 4, 8]
    six = {("big", k): "abc" if k < 6 else "def" for k in range(2, 9)}
    assert measured(six) == [1, 2, 4, 6, 8]
    assert measured({("big", 5): "abc"}) == [1, 2, 4, 5, 6, 8]
    assert measured({("little", 2): "abc"}) == [1, 2, 4, 8]


def test_a_time_between_others_is_of_the_kernel_with_fewer_threads(
    graph: OpGraph, table: ProfileTable
) -> None:
    eight = OpKey("k1", "big", 8)
    tuned = replace(table.ops[eight], kernel="abc")
    whole = with_interpolated(replace(table, ops={**table.ops, eight: tuned}), graph, PLACEMENTS)
    rows = [whole.ops[OpKey("k1", "big", k)] for k in range(1, 9)]
    assert [row.kernel for row in rows] == [*[""] * 7, "abc"]
