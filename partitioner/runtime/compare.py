"""Several plans by the clock, one after the other, each in fresh processes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from partitioner.runtime.measure import PipelineTimes, measure
from partitioner.runtime.pipeline import Pipeline
from partitioner.runtime.spec import PipelineSpec
from partitioner.runtime.trace import Trace

__all__ = ["run_each"]

_FEWEST_ITEMS = 16
_MOST_ITEMS = 2000


def run_each(
    specs: Mapping[str, PipelineSpec],
    make_item: Callable[[int], Any],
    *,
    expected_s: Mapping[str, float],
    seconds: float,
    traces: Mapping[str, Trace] | None = None,
    progress: Callable[[str], None] = lambda what: None,
) -> dict[str, PipelineTimes]:
    """Run every pipeline once, in turn, in fresh processes: one round of a paired comparison.

    Parameters
    ----------
    specs : mapping of str to PipelineSpec
        What to run, by name.
    make_item : callable
        From a number to an item.
    expected_s : mapping of str to float
        Expected period of each, for the number of items.
    seconds : float
        Measuring time of each.
    traces : mapping of str to Trace, optional
        What keeps the records of those that have one.
    progress : callable
        Told which runs.
    """
    found = {}
    for name, spec in specs.items():
        progress(name)
        wanted = int(seconds / max(expected_s[name], 1e-9))
        items = min(_MOST_ITEMS, max(_FEWEST_ITEMS, wanted))
        with Pipeline(spec, trace=(traces or {}).get(name)) as pipe:
            found[name] = measure(pipe, make_item, items, warmup=max(4, items // 10))
    return found
