from __future__ import annotations

from dataclasses import replace
from typing import NoReturn

import pytest

from partitioner.cost import build_problem, options_of
from partitioner.exact_times import measured_where_it_matters
from partitioner.graph import OpGraph
from partitioner.machine import Device, Machine
from partitioner.planning import Choice, choose
from partitioner.profiling.counts import chosen_counts, with_interpolated
from partitioner.profiling.table import Handover, Measurement, OpKey, Origin, ProfileTable

CORES = 6


@pytest.fixture
def cluster() -> Machine:
    """Six cores, of which a stage may have any number."""
    return Machine("cluster", (Device("big", cpus=tuple(range(CORES))),))


def rows(graph: OpGraph, threads: int) -> dict[OpKey, Measurement]:
    """True times: three cores are nearly as good as six."""
    ms = {1: 6.0, 2: 4.0, 3: 2.7, 4: 2.6, 5: 2.55, 6: 2.5}[threads]
    return {OpKey(op.signature, "big", threads): Measurement(ms * 1e-3, 0.0, 9) for op in graph.ops}


def best_of_two(graph: OpGraph, table: ProfileTable, machine: Machine) -> Choice:
    """One stage, and memory for two replicas of it at most: 4400 bytes each."""
    budgets = {"host": 9000}
    return choose(build_problem(graph, table, machine, max_stages=1, memory_budgets=budgets))


class Profiler:
    """Measures what it is asked for."""

    def __init__(self, graph: OpGraph, machine: Machine, origin: Origin) -> None:
        self.asked: list[set[int]] = []
        self._graph, self._options = graph, options_of(machine)
        known: dict[OpKey, Measurement] = {}
        for threads in chosen_counts(CORES):
            known |= rows(graph, threads)
        table = ProfileTable(origin, known, handover=Handover(1e-6, 0.0, 1e-6, 0.0))
        self.table = with_interpolated(table, graph, self._options)

    def __call__(self, table: ProfileTable, asked: tuple[OpKey, ...]) -> ProfileTable:
        counts = {key.threads for key in asked}
        self.asked.append(counts)
        known = dict(table.ops)
        for threads in counts:
            known |= rows(self._graph, threads)
        return with_interpolated(replace(table, ops=known), self._graph, self._options)


def test_what_the_best_plan_rests_on_is_measured(
    graph: OpGraph, cluster: Machine, origin: Origin
) -> None:
    profiler = Profiler(graph, cluster, origin)

    def pick(table: ProfileTable) -> Choice:
        return best_of_two(graph, table, cluster)

    # Two replicas of three cores each, 2.7 ms an op; by the times between 2 and 4 cores 3.07.
    guessed = profiler.table.ops[OpKey("k0", "big", 3)]
    assert guessed.interpolated
    assert guessed.median_s == pytest.approx(3.07e-3, rel=0.01)
    table = measured_where_it_matters(profiler.table, graph, cluster, pick, profiler)
    assert profiler.asked == [{3}]
    assert not table.ops[OpKey("k0", "big", 3)].interpolated
    # With 5 cores nothing could come of a measurement.
    assert table.ops[OpKey("k0", "big", 5)].interpolated
    best = pick(table).solution
    assert best.evaluation.period_s == pytest.approx(4 * 2.7e-3 / 2, rel=0.01)


def test_measured_tables_are_left_alone(
    graph: OpGraph, machine: Machine, profile: ProfileTable
) -> None:
    def never(*_: object) -> NoReturn:
        raise AssertionError("nothing is to be measured or solved")

    assert measured_where_it_matters(profile, graph, machine, never, never) is profile


def test_a_measurer_that_does_not_measure_ends_it(
    graph: OpGraph, cluster: Machine, origin: Origin
) -> None:
    profiler = Profiler(graph, cluster, origin)
    calls = []

    def idle(table: ProfileTable, asked: tuple[OpKey, ...]) -> ProfileTable:
        calls.append(asked)
        return table

    table = measured_where_it_matters(
        profiler.table,
        graph,
        cluster,
        lambda known: best_of_two(graph, known, cluster),
        idle,
    )
    assert table is profiler.table
    assert len(calls) == 1
