"""What `auto_partition` is told of tuning: records to read, or seconds to spend on it first."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

from partitioner.errors import InputError
from partitioner.frontend import Grouped
from partitioner.machine import Machine
from partitioner.runtime.build import BuildCache
from partitioner.tuning.defaults import default_records, user_folder
from partitioner.tuning.records import Records

__all__ = ["DEFAULT", "Tuning", "builds_for", "tuned", "tuning_seconds"]

DEFAULT = "default"

Tuning = str | Path | float | None
"""``"default"``, a folder of records, seconds to tune for, or None for rules alone."""


def tuning_seconds(tuning: Tuning) -> float | None:
    """How long to tune before anything is built; None where records are only read.

    Raises
    ------
    InputError
        If it is a number and no time above 0.
    """
    if tuning is None or isinstance(tuning, str | Path):
        return None
    if isinstance(tuning, bool) or not 0 < tuning < math.inf:
        raise InputError(
            f"tuning={tuning!r} is no time to tune for; give seconds above 0, a folder of records, "
            f"{DEFAULT!r}, or None for kernels by rule alone"
        )
    return float(tuning)


def builds_for(tuning: Tuning, builds: BuildCache | None = None) -> BuildCache:
    """Where stages are compiled, with the records that are asked for.

    Parameters
    ----------
    tuning : "default", path, float, or None
        As `auto_partition` takes it. The default, and what is to be tuned first, leave those of
        `builds`.
    builds : BuildCache, optional
        Whose folder, and by default whose records, are used.

    Raises
    ------
    TuningError
        If a folder's records cannot be used.
    """
    builds = builds or BuildCache()
    if tuning is None:
        return builds.using(Records.none())
    if isinstance(tuning, str | Path) and tuning != DEFAULT:
        return builds.using(Records.load(tuning))
    return builds


def tuned(
    builds: BuildCache,
    grouped: Grouped,
    machine: Machine,
    seconds: float,
    progress: Callable[[str, float], None],
) -> BuildCache:
    """The same, after tuning the model's kernels into the user's own records.

    Raises
    ------
    TuningError
        If the time is too short to measure anything, or the user's records cannot be added to.
    DeviceError
        If the devices are not on this host.
    """
    from partitioner.tuning.session import tune  # loads what only tuning needs

    machine.require_present()
    tune(grouped, machine, user_folder(), seconds=seconds, progress=progress)
    return builds.using(default_records())
