"""The simulator against the scorer, and its two methods against one another, on drawn plans."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from drawn_plans import DrawnPlan, drawn_plan
from hypothesis import given
from hypothesis import strategies as st

from partitioner.runtime.deploy import dispatch_pattern
from partitioner.simulation import Line, simulate

SEEDS = st.integers(0, 10**6)


def line_of(drawn: DrawnPlan) -> Line:
    return Line.priced(drawn.plan, drawn.graph, drawn.machine, drawn.table)


@given(SEEDS)
def test_period_and_latency_are_those_of_the_evaluation(seed: int) -> None:
    drawn = drawn_plan(seed)
    line = line_of(drawn)
    shown = simulate(line, items=1000)
    assert shown.period_s == pytest.approx(drawn.evaluation.period_s, rel=1e-9)
    # An evaluation counts an item's way through the stages, without the caller's own copies.
    caller_s = line.caller_in_s + line.caller_out_s
    assert shown.first_s == pytest.approx(drawn.evaluation.latency_s + caller_s, rel=1e-9)


@pytest.mark.parametrize("seed", range(12))
def test_unequal_replicas_come_as_near_as_their_pattern_does(seed: int) -> None:
    drawn = drawn_plan(seed, unequal=True)
    shown = simulate(line_of(drawn), items=6000)
    first = drawn.plan.stages[0].placements
    parts = np.bincount(dispatch_pattern(first)) / len(dispatch_pattern(first))
    busy = [placement.busy_s or 0.0 for placement in first]
    by_pattern = max(part * time for part, time in zip(parts, busy, strict=True))
    expected = max(by_pattern, drawn.evaluation.period_s)
    # Shares are rounded to a whole number of items a cycle.
    assert expected <= drawn.evaluation.period_s * 1.02
    # The two keep nearly the same pace, so that it takes many cycles of up to 128 items until the
    # slower one alone decides when results are complete.
    assert shown.period_s == pytest.approx(expected, rel=2e-4)


@given(SEEDS)
def test_the_plans_own_times_give_the_same_period(seed: int) -> None:
    drawn = drawn_plan(seed)
    plan = drawn.plan
    assert plan.predicted is not None
    for graph in (None, drawn.graph):
        shown = simulate(Line.of(plan, graph), items=1000)
        assert shown.period_s == pytest.approx(plan.predicted.period_s, rel=1e-9)


@given(SEEDS, st.booleans())
def test_events_without_contention_agree_with_the_recurrence(seed: int, unequal: bool) -> None:
    line = line_of(drawn_plan(seed, unequal=unequal))
    options: tuple[dict[str, Any], ...] = (
        {},
        {"window": 3},
        {"arrivals": 2e-3},
        {"queue_slots": 1},  # blocks often
    )
    for each in options:
        one = simulate(line, items=100, seed=seed, jitter=0.5, **each)
        other = simulate(line, items=100, seed=seed, jitter=0.5, contention=1.0, **each)
        assert flat(other.to_data()) == pytest.approx(flat(one.to_data()), abs=1e-9)


def flat(data: object) -> list[float]:
    """All numbers of nested data, in order."""
    if isinstance(data, dict):
        data = list(data.values())
    if isinstance(data, list | tuple):
        return [number for item in data for number in flat(item)]
    return [float(data)] if isinstance(data, int | float) else []
