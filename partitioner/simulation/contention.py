"""How much workers slow one another down, as values."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from partitioner.cost.interference import contended
from partitioner.errors import InputError
from partitioner.graph import OpGraph
from partitioner.machine import Machine
from partitioner.plan import Plan
from partitioner.profiling.table import ProfileTable
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
        pairs = zip(given, line.spec.stages, strict=True)
        return _spread(line, [factor for factor, stage in pairs for _ in stage.replicas])

    @staticmethod
    def measured(plan: Plan, graph: OpGraph, machine: Machine, table: ProfileTable) -> Contention:
        """From a profile with times taken while the other cores were busy.

        Raises
        ------
        PlanError, ProfileError
            As `Line.priced`; also if the profile has no such times.
        """
        alone = Line.priced(plan, graph, machine, table)
        beside = Line.priced(plan, graph, machine, contended(table))
        runs = [
            [service.run_s for services in line.services for service in services]
            for line in (alone, beside)
        ]
        # Where noise made the busy one the quicker, nothing is slowed down.
        return _spread(
            alone, [max(1.0, b / a) if a > 0 else 1.0 for a, b in zip(*runs, strict=True)]
        )

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


def _spread(line: Line, factors: Sequence[float]) -> Contention:
    """What each worker takes beside all others, in parts of each other, by its number of cores."""
    replicas = [replica for stage in line.spec.stages for replica in stage.replicas]
    cores = np.array([len(replica.cpus) for replica in replicas], dtype=float)
    parts = np.outer(np.array(factors) - 1.0, cores)
    np.fill_diagonal(parts, 0.0)
    others = cores.sum() - cores
    return Contention(parts / np.maximum(others, 1.0)[:, None])
