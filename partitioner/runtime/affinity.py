"""Which cores a thread may use, and which one it is on: set, read back, and compare.

A core list in a plan is a promise. Setting an affinity is not enough to keep it: libraries start
threads of their own and some of them pin threads that are not theirs, so `check` looks at what the
kernel says about every thread. `allowed` and `where` tell the same of any other process.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from partitioner.errors import DeviceError

__all__ = ["allowed", "allowed_cpus", "check", "pin", "preserved_affinity", "where"]

# Read before any inference library is loaded: some pin the main thread when they are first asked
# for their thread count, and would make a wide machine look like one core afterwards.
_AT_IMPORT = frozenset(os.sched_getaffinity(os.getpid()))

_MORE_THAN_ANY_HOST_HAS = 8192
_NEXT = (
    "The CPU set is smaller than when the cores were chosen, or the plan is another machine's: "
    "bring these cores back (online, cpuset, container limit), or plan again for the ones there "
    "are."
)


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
            f"this process may use {_show(_granted())}."
        )
    try:
        os.sched_setaffinity(0, wanted)
    except (OSError, ValueError, OverflowError) as error:
        raise DeviceError(f"affinity: {_refusal(wanted, wanted)} ({error}). {_NEXT}") from error
    # The kernel drops CPUs that exist but are not ours without complaint.
    found = frozenset(os.sched_getaffinity(0))
    if found != wanted:
        raise DeviceError(f"affinity: {_refusal(wanted, wanted - found)}. {_NEXT}")


def allowed(pid: int) -> dict[int, frozenset[int]]:
    """Return the affinity of every thread of a process.

    Parameters
    ----------
    pid : int
        Process id.

    Returns
    -------
    dict of int to frozenset of int
        Thread id to the CPUs the kernel lets it run on; empty when the process has ended.
    """
    seen: dict[int, frozenset[int]] = {}
    for tid in _threads(pid):
        with suppress(ProcessLookupError):  # It ended between the listing and the question.
            seen[tid] = frozenset(os.sched_getaffinity(tid))
    return seen


def where(pids: Iterable[int]) -> dict[int, int]:
    """Return the CPU that each thread of some processes is on.

    Parameters
    ----------
    pids : iterable of int
        Process ids.

    Returns
    -------
    dict of int to int
        Thread id to the CPU it runs on, or ran on last if it is waiting (``processor``, field 39
        of ``/proc/PID/task/TID/stat``, see proc(5)).
    """
    seen: dict[int, int] = {}
    for pid in pids:
        for tid in _threads(pid):
            # Thread names may hold spaces and brackets: count from the last bracket, field 3.
            with suppress(FileNotFoundError, ProcessLookupError):
                line = Path(f"/proc/{pid}/task/{tid}/stat").read_text(encoding="utf-8")
                seen[tid] = int(line.rpartition(")")[2].split()[39 - 3])
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
    seen = {tid: own for tid, own in allowed(os.getpid()).items() if tids is None or tid in tids}
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


def _refusal(wanted: Collection[int], lacking: Collection[int]) -> str:
    """What was asked for, what is lacking, and what there is now."""
    return (
        f"cannot run on CPUs {_show(wanted)}, the kernel refuses {_show(lacking)}; "
        f"this process may use {_show(_granted())}"
    )


def _granted() -> frozenset[int]:
    """All CPUs that the kernel lets the calling thread have now, whatever it is pinned to."""
    with preserved_affinity():
        os.sched_setaffinity(0, range(_MORE_THAN_ANY_HOST_HAS))
        return frozenset(os.sched_getaffinity(0))


def _threads(pid: int) -> list[int]:
    try:
        return [int(entry.name) for entry in Path(f"/proc/{pid}/task").iterdir()]
    except (FileNotFoundError, ProcessLookupError):
        return []


def _show(cpus: Collection[int]) -> str:
    return "{" + ",".join(str(cpu) for cpu in sorted(cpus)) + "}"


def _thread_name(tid: int) -> str:
    try:
        return Path(f"/proc/self/task/{tid}/comm").read_text(encoding="utf-8").strip()
    except OSError:
        return "ended"
