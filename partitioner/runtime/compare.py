"""Several plans by the clock: paired, interleaved, each time in fresh processes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from partitioner.runtime.measure import PipelineTimes, measure
from partitioner.runtime.pipeline import Pipeline
from partitioner.runtime.spec import PipelineSpec

__all__ = ["compare"]

_FEWEST_ITEMS = 16
_MOST_ITEMS = 2000


def compare(
    specs: Mapping[str, PipelineSpec],
    make_item: Callable[[int], Any],
    *,
    expected_s: Mapping[str, float],
    seconds: float = 2.0,
    rounds: int = 3,
    progress: Callable[[str, float], None] = lambda what, part: None,
) -> dict[str, tuple[PipelineTimes, ...]]:
    """Run every pipeline once a round, in turn.

    Parameters
    ----------
    specs : mapping of str to PipelineSpec
        What to run, by name.
    make_item : callable
        From a number to an item.
    expected_s : mapping of str to float
        Expected period of each, for the number of items.
    seconds : float
        Measuring time of each in a round.
    rounds : int
        How often.
    progress : callable
        Told what runs and how much is done, from 0 to 1.

    Returns
    -------
    dict of str to tuple of PipelineTimes
        One entry a round, so that entries of one round are pairs.
    """
    found: dict[str, list[PipelineTimes]] = {name: [] for name in specs}
    for turn in range(rounds):
        for number, (name, spec) in enumerate(specs.items()):
            progress(f"round {turn + 1}: {name}", (turn + number / len(specs)) / rounds)
            wanted = int(seconds / max(expected_s[name], 1e-9))
            items = min(_MOST_ITEMS, max(_FEWEST_ITEMS, wanted))
            with Pipeline(spec) as pipe:
                found[name].append(measure(pipe, make_item, items, warmup=max(4, items // 10)))
    return {name: tuple(times) for name, times in found.items()}
