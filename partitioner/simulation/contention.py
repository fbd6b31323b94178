"""How much workers slow one another down, as values."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from partitioner.errors import InputError
from partitioner.simulation.line import Line
from partitioner.simulation.moments import Floats

__all__ = ["Contention"]


@dataclass(frozen=True, slots=True, eq=False)
class Contention:
    """How much workers slow one another down.

    Attributes
    ----------
    extra : array, shape (workers, workers)
        A worker takes ``1 + sum of extra[worker, other]`` times as long while those others are
        busy. Workers are in the order of stages and replicas.
    """

    extra: Floats

    @staticmethod
    def even(line: Line, factors: float | Sequence[float]) -> Contention:
        """From what a stage takes while all others are busy, over what it takes alone.

        Parameters
        ----------
        line : Line
            The pipeline.
        factors : float, or sequence of float, one a stage
            1 or more. Each other busy worker adds its part, by its number of cores.

        Raises
        ------
        InputError
            If a factor is below 1 or there is not one for each stage.
        """
        stages = len(line.services)
        given = [factors] * stages if isinstance(factors, int | float) else list(factors)
        if len(given) != stages or not all(1 <= factor < math.inf for factor in given):
            raise InputError(
                f"simulation: contention factors are {given}; give one number, or {stages}, one a "
                "stage, each 1 or more"
            )
        workers = [(s, r) for s, stage in enumerate(line.spec.stages) for r in stage.replicas]
        cores = np.array([len(replica.cpus) for _, replica in workers], dtype=float)
        excess = np.array([given[stage] - 1.0 for stage, _ in workers])
        parts = np.outer(excess, cores)
        np.fill_diagonal(parts, 0.0)
        others = cores.sum() - cores
        return Contention(parts / np.maximum(others, 1.0)[:, None])

    @staticmethod
    def between(line: Line, factors: Mapping[tuple[str, str], float]) -> Contention:
        """From devices.

        Parameters
        ----------
        line : Line
            The pipeline.
        factors : mapping of (str, str) to float
            For a device and another (or the same, for two workers on one), what a worker of the
            first takes while one of the second is busy, over what it takes alone; 1 where left out.

        Raises
        ------
        InputError
            If a factor is below 1 or names a device that no stage is on.
        """
        names = [name for replicas in line.devices for name in replicas]
        for pair, factor in factors.items():
            if not set(pair) <= set(names) or not 1 <= factor < math.inf:
                raise InputError(
                    f"simulation: contention of {pair} is {factor}; needed are two of the plan's "
                    f"devices ({', '.join(dict.fromkeys(names))}) and a factor of 1 or more"
                )
        extra = np.array([[factors.get((a, b), 1.0) - 1.0 for b in names] for a in names])
        np.fill_diagonal(extra, 0.0)
        return Contention(extra)
