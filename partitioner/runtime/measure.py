"""Times a pipeline as its user would: completions per second, and one item through an empty one."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from partitioner.errors import InputError
from partitioner.runtime.pipeline import Pipeline

__all__ = ["PipelineTimes", "measure"]

_BLOCKS = 8
_LATENCY_RUNS = 7
_COLD_RUNS = 3  # The first results get fresh memory from the system, later ones reuse it.


@dataclass(frozen=True, slots=True)
class PipelineTimes:
    """What was measured.

    Attributes
    ----------
    period_s : float
        Time between completions in steady state: the whole measured stretch over its items.
    latency_s : float
        One item in an empty pipeline, from the call to the result: median of several.
    items : int
        How many completions the period is from.
    spread : float
        Interquartile range of the period over consecutive blocks of items, relative to its median.
    """

    period_s: float
    latency_s: float
    items: int
    spread: float


def measure(
    pipe: Pipeline, make_item: Callable[[int], Any], items: int, warmup: int = 0
) -> PipelineTimes:
    """Measure the period and latency of an otherwise idle pipeline.

    Parameters
    ----------
    pipe : Pipeline
        The pipeline.
    make_item : callable
        From a number to an item as `Pipeline.map` takes it; cheap, since it runs meanwhile.
    items : int
        Completions to measure, at least 2.
    warmup : int
        Completions before those. On top of these, the pipeline is filled before measuring starts
        and emptied after it ends, so that neither filling nor draining is measured.

    Returns
    -------
    PipelineTimes
        Period, latency and spread.

    Raises
    ------
    InputError
        If `items` is less than 2.
    """
    if items < 2:
        raise InputError(f"measure: found {items} items, at least 2 are needed for a period.")
    latencies = []
    for number in range(_COLD_RUNS + _LATENCY_RUNS):
        item = make_item(number)
        start = time.perf_counter()
        pipe(item)
        latencies.append(time.perf_counter() - start)
    # The last `capacity` completions come while the queues run empty: they are left out.
    total = warmup + items + pipe.capacity
    clock, moments = time.perf_counter, []
    for _ in pipe.map(make_item(number) for number in range(total)):
        moments.append(clock())
    steady = np.array(moments[warmup : warmup + items])
    edges = np.linspace(0, items - 1, min(_BLOCKS, items - 1) + 1).astype(int)
    blocks = np.diff(steady[edges]) / np.diff(edges)
    low, middle, high = np.percentile(blocks, (25, 50, 75))
    return PipelineTimes(
        period_s=float(steady[-1] - steady[0]) / (items - 1),
        latency_s=statistics.median(latencies[_COLD_RUNS:]),
        items=items,
        spread=float((high - low) / middle),
    )
