"""Which cores a thread may use: set, read back, and compare.

A core list in a plan is a promise. Setting an affinity is not enough to keep it: libraries start
threads of their own and some of them pin threads that are not theirs, so `check` looks at what the
kernel says about every thread.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from partitioner.errors import DeviceError

__all__ = ["allowed_cpus", "check", "pin", "preserved_affinity", "read_back"]

# Read before any inference library is loaded: some pin the main thread when they are first asked
# for their thread count, and would make a wide machine look like one core afterwards.
_AT_IMPORT = frozenset(os.sched_getaffinity(os.getpid()))


def allowed_cpus() -> frozenset[int]:
    """Return the CPUs this process was given when the package was loaded.

    Returns
    -------
    frozenset of int
        CPU ids, as in ``/proc/cpuinfo``.
    """
    return _AT_IMPORT


def pin(cpus: Collection[int]) -> None:
    """Restrict the calling thread to `cpus` and confirm it.

    Threads that the caller starts later inherit the restriction.

    Parameters
    ----------
    cpus : collection of int
        CPU ids; at least one.

    Raises
    ------
    DeviceError
        If the list is empty, names a CPU this process may not use, or does not take effect.
    """
    wanted = frozenset(cpus)
    if not wanted:
        raise DeviceError(
            "affinity: an empty CPU list was given, at least one CPU is needed; "
            f"this process may use {_show(allowed_cpus())}."
        )
    try:
        os.sched_setaffinity(0, wanted)
    except (OSError, ValueError, OverflowError) as error:
        raise DeviceError(
            f"affinity: cannot run on CPUs {_show(wanted)} ({error}); "
            f"this process may use {_show(allowed_cpus())}. Choose from these."
        ) from error
    # The kernel drops CPUs that exist but are not ours without complaint.
    found = frozenset(os.sched_getaffinity(0))
    if found != wanted:
        raise DeviceError(
            f"affinity: asked for CPUs {_show(wanted)}, the kernel granted {_show(found)}; "
            f"this process may use {_show(allowed_cpus())}. Choose from these."
        )


def read_back() -> dict[int, frozenset[int]]:
    """Return the affinity of every thread of this process.

    Returns
    -------
    dict of int to frozenset of int
        Thread id to the CPUs the kernel lets it run on.
    """
    seen: dict[int, frozenset[int]] = {}
    for entry in Path("/proc/self/task").iterdir():
        tid = int(entry.name)
        try:
            seen[tid] = frozenset(os.sched_getaffinity(tid))
        except ProcessLookupError:
            continue  # The thread ended between the listing and the question.
    return seen


def check(cpus: Collection[int], tids: Collection[int] | None = None) -> dict[int, frozenset[int]]:
    """Confirm that threads are confined to `cpus`.

    Parameters
    ----------
    cpus : collection of int
        The CPUs that were promised.
    tids : collection of int, optional
        Thread ids to look at; every thread of the process when left out.

    Returns
    -------
    dict of int to frozenset of int
        What was read back for the threads looked at.

    Raises
    ------
    DeviceError
        If a thread may run elsewhere.
    """
    wanted = frozenset(cpus)
    seen = {tid: own for tid, own in read_back().items() if tids is None or tid in tids}
    strays = {tid: own for tid, own in seen.items() if not own <= wanted}
    if strays:
        named = "; ".join(
            f"thread {tid} ({_thread_name(tid)}) on {_show(own)}" for tid, own in strays.items()
        )
        raise DeviceError(
            f"affinity: {len(strays)} of {len(seen)} threads may run outside CPUs "
            f"{_show(wanted)}: {named}. A library has pinned or started them elsewhere; "
            "configure its thread pool with the stage's CPUs, or give the stage these CPUs too."
        )
    return seen


@contextmanager
def preserved_affinity() -> Iterator[None]:
    """Give the calling thread its affinity back on leaving, whatever happened inside."""
    before = os.sched_getaffinity(0)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _show(cpus: Collection[int]) -> str:
    return "{" + ",".join(str(cpu) for cpu in sorted(cpus)) + "}"


def _thread_name(tid: int) -> str:
    try:
        return Path(f"/proc/self/task/{tid}/comm").read_text(encoding="utf-8").strip()
    except OSError:
        return "ended"
