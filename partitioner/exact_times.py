"""Measurements spent where the optimum could change: before a plan rests on interpolated times."""

from __future__ import annotations

from collections.abc import Callable

from partitioner.cost import options_of
from partitioner.graph import OpGraph
from partitioner.machine import Machine
from partitioner.planning import Choice
from partitioner.profiling.counts import optimistic, rests_on
from partitioner.profiling.table import OpKey, ProfileTable

__all__ = ["measured_where_it_matters"]


def measured_where_it_matters(
    table: ProfileTable,
    graph: OpGraph,
    machine: Machine,
    choose: Callable[[ProfileTable], Choice],
    measure: Callable[[ProfileTable, tuple[OpKey, ...]], ProfileTable],
) -> ProfileTable:
    """Measure interpolated times until the best plan could rest on none of them.

    The plan is chosen with every interpolated time as short as it can be. Where it rests on some,
    these are measured, and it is chosen again; where it rests on none, no measurement of the others
    could lead to a better plan.

    Parameters
    ----------
    table : ProfileTable
        Some of whose rows may be interpolated.
    graph, machine
        What is planned, and for what.
    choose : callable
        From a table to the choice that it leads to.
    measure : callable
        From a table and some of its rows to one that has them measured.

    Returns
    -------
    ProfileTable
        `table` itself where nothing was to be measured.
    """
    options = options_of(machine)
    asked: set[OpKey] = set()
    while any(row.interpolated for row in table.ops.values()):
        solution = choose(optimistic(table)).solution
        places = [[options[option] for option in stage] for stage in solution.placements]
        rows = rests_on(table, graph, solution.stage_of, places)
        if asked.issuperset(rows):
            break
        asked.update(rows)
        table = measure(table, rows)
    return table
