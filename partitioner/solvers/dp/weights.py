"""Sums over the units of many downsets at once."""

from __future__ import annotations

from typing import TypeVar

import numpy as np

from partitioner.problem import Bools, Floats, Ints

__all__ = ["weighed"]

Numbers = TypeVar("Numbers", Floats, Ints)

# Which of eight units each value of a byte holds.
_BITS = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")


def weighed(members: Bools, weight: Numbers) -> Numbers:
    """Weight of the units of each downset.

    Every eight units are looked up at once, which takes a fraction of a product's time and no
    second thread.

    Parameters
    ----------
    members : array of bool, shape (n_ideals, n_units)
        The downsets.
    weight : array of float or int, shape (n_units, k)
        Some weights of each unit.

    Returns
    -------
    array, shape (n_ideals, k)
        Their sums.
    """
    held = np.packbits(members, axis=1, bitorder="little")
    padded = np.zeros((8 * held.shape[1], weight.shape[1]), dtype=weight.dtype)
    padded[: len(weight)] = weight
    eights = padded.reshape(held.shape[1], 8, -1)
    bits = _BITS.astype(weight.dtype)
    found = np.zeros((len(members), weight.shape[1]), dtype=weight.dtype)
    for column, eight in zip(held.T, eights, strict=True):
        found += (bits @ eight)[column]
    return found
