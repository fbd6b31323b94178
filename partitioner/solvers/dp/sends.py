"""How many stages a tensor is sent to at least, where each of them costs a send of its own.

Readers that follow one another along a path are in stages that follow one another; two of them
share one only if all that lies between them fits it. Counting greedily gives the least number of
stages that read the tensor after a cut, which hangs on the cut alone (an attention mask that every
layer reads is sent to every later stage).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from partitioner.problem import Ints
from partitioner.solvers.dp.cuts import Cuts
from partitioner.solvers.dp.ideals import ancestors
from partitioner.solvers.reduce import Units

__all__ = ["sent_to_each"]


def sent_to_each(cuts: Cuts, units: Units, work: Ints, most: int) -> Cuts:
    """The cuts, tensors that leave counted once for each stage that must read them.

    Parameters
    ----------
    work : array of int, shape (n_units,)
        Priced work of each unit.
    most : int
        No stage holds more of it.
    """
    several = [
        (group, flow)
        for group, flow in enumerate(cuts.moved, start=len(cuts.inputs) + len(cuts.moved))
        if len(flow.readers) > 1
    ]
    if not several:
        return cuts
    above = ancestors(units)
    counts = {}
    for group, flow in several:
        chain = _chain(flow.readers, above)
        needs = _needs(chain, above, work, most)
        if max(needs) > 1:
            done = cuts.members[:, chain].sum(axis=1)
            counts[group] = np.array(needs)[done]
    return cuts.counted(counts) if counts else cuts


def _chain(readers: Sequence[int], above: list[int]) -> list[int]:
    """Readers each of which comes after the one before it; units are in a topological order."""
    chain = [readers[0]]
    for reader in readers[1:]:
        if above[reader] >> chain[-1] & 1:
            chain.append(reader)
    return chain


def _needs(chain: list[int], above: list[int], work: Ints, most: int) -> list[int]:
    """Least number of stages that hold the chain from each position on; 1 for what is no part."""
    gaps = [
        sum(int(work[u]) for u in range(a + 1, b) if above[b] >> u & 1 and above[u] >> a & 1)
        + int(work[b])
        for a, b in pairwise(chain)
    ]
    needs = []
    for first in range(len(chain)):
        stages, held = 1, int(work[chain[first]])
        for index in range(first, len(gaps)):
            held += gaps[index]
            if held > most:
                stages, held = stages + 1, int(work[chain[index + 1]])
        needs.append(stages)
    return [*needs, 1]
