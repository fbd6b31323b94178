"""Networks to try the partitioner on, with inputs that they can tell apart.

Three kinds: trained networks and a sentence encoder from Python packages, and well-known topologies
with seeded, calibrated weights for which timings and comparisons of outputs mean something though
their classes do not.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from partitioner.errors import ImportModelError, InputError
from partitioner.zoo import minilm, packaged, topologies
from partitioner.zoo.entry import Entry, ZooModel

__all__ = ["ENTRIES", "ZooModel", "inputs", "load", "names"]

ENTRIES = MappingProxyType(
    {entry.name: entry for entry in (*topologies.ENTRIES, *packaged.ENTRIES, *minilm.ENTRIES)}
)


def names() -> tuple[str, ...]:
    """Return the names that `load` knows."""
    return tuple(ENTRIES)


def _entry(name: str) -> Entry:
    entry = ENTRIES.get(name)
    if entry is None:
        raise ImportModelError(
            f"zoo: there is no network {name!r}; the zoo holds {', '.join(ENTRIES)}. Give one of "
            f"these names, or the path of an .onnx file of your own."
        )
    return entry


def load(name: str) -> ZooModel:
    """Build a network.

    Parameters
    ----------
    name : str
        One of `names`.

    Returns
    -------
    ZooModel
        The same weights at every call and on every machine.

    Raises
    ------
    ImportModelError
        If the name is unknown, or the package that carries the network is not installed.
    """
    entry = _entry(name)
    return ZooModel(
        name=name,
        model=entry.build(),
        input_shapes=entry.input_shapes,
        source=entry.source,
        trained=entry.trained,
    )


def inputs(name: str, count: int, seed: int = 0) -> list[dict[str, NDArray[Any]]]:
    """Draw realistic inputs for a network, without building it.

    Parameters
    ----------
    name : str
        One of `names`.
    count : int
        Number of items.
    seed : int
        Seed; item i depends on the seed and i alone.

    Returns
    -------
    list of dict
        For each item the arrays by input name, in the model's dtypes and shapes.

    Raises
    ------
    ImportModelError
        If the name is unknown.
    InputError
        If ``count`` or ``seed`` is negative.
    """
    if count < 0 or seed < 0:
        raise InputError(
            f"zoo.inputs({name!r}): count is {count} and seed {seed}; neither may be negative."
        )
    entry = _entry(name)
    return [entry.draw(np.random.default_rng((seed, index))) for index in range(count)]
