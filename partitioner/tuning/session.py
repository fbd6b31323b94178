"""`tune`: the search on a machine's devices within a budget of time, and the records it leaves."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from partitioner import lowering
from partitioner.core_list import format_cpus
from partitioner.errors import DeviceError, TuningError
from partitioner.frontend import Grouped
from partitioner.lowering import Choice
from partitioner.lowering.isa import kind_of
from partitioner.machine import Device, Machine
from partitioner.runtime.build import lowering_hash, target_of
from partitioner.tuning.client import Client
from partitioner.tuning.database import Database, Row
from partitioner.tuning.records import Records, kept_of
from partitioner.tuning.search import Measurer, Search
from partitioner.tuning.tasks import Task, tasks_of

__all__ = ["Measure", "Progress", "tune"]

Progress = Callable[[str, float], None]
"""Told what is being done and how much of the time has passed, from 0 to 1."""

Measure = Callable[[Device, Any], Measurer]
"""Gives a measurer for a device, one thread a core, and a target."""

# Most depends on the kernel of one core; more threads are tried on what that has shown.
_FIRST_SHARE = 0.7
# At the end of a device's time its winners are measured once more.
_RECHECK_SHARE = 0.15
# Of what is best on fewer threads so many are tried first on more.
_FROM_FEWER = 4


@dataclass(frozen=True, slots=True)
class _Place:
    """A device with as many cores as threads, and the moment when the next has its turn."""

    device: Device
    target: Any
    kind: str
    until: float


def tune(
    grouped: Grouped,
    machine: Machine,
    folder: str | Path,
    *,
    seconds: float = 600.0,
    devices: Sequence[str] | None = None,
    threads: Sequence[int] | None = None,
    progress: Progress = lambda what, part: None,
    seed: int = 0,
    measure: Measure | None = None,
) -> Records:
    """Find better kernels for a model's ops by measuring, and keep records of them.

    For each kind of CPU among the devices, first on one core, then on all of a device's. What is
    found is on disk at once: Ctrl-C, or a crash, loses nothing, and the next call with the same
    folder goes on. Records of other models in the folder stay.

    Parameters
    ----------
    grouped : Grouped
    machine : Machine
    folder : path
        Where records are kept, in a folder for each kind of CPU; made if it is not there.
    seconds : float
        Time in all. The search ends earlier where it has nothing left to try.
    devices : sequence of str, optional
        Names of the devices; default: all CPU devices of the machine. Of one kind of CPU only the
        first is measured.
    threads : sequence of int, optional
        Numbers of threads; default: one, and as many as the device has cores.
    progress : callable
        Told after every candidate: the text has the time left and the model's estimated speed.
    seed : int
        Of what is drawn at random.
    measure : callable, optional
        Measures in place of processes on the devices, in tests.

    Returns
    -------
    Records
        All of the folder.

    Raises
    ------
    TuningError
        If the folder holds records of another TVM version, the time is too short for one op, or
        nothing can be measured. The folder is then as it was.
    DeviceError
        If there is no such device, or it has fewer cores than threads.
    """
    began = time.monotonic()
    path = Path(folder)
    if not seconds > 0:
        raise TuningError(f"a budget of {seconds} s for tuning; give more than 0")
    places = _places(machine, devices, threads, began, seconds)
    databases = {
        kind: Database(path / kind, {"lowering": lowering_hash()})
        for kind in {place.kind for place in places}
    }
    measured = 0
    for place in places:
        make = measure or (lambda device, target: Client(grouped.module, device, target))
        with make(place.device, place.target) as measurer:
            search = _search(grouped, place, databases[place.kind], measurer, seed)
            measured += _run(search, grouped, place, _Teller(progress, began, seconds))
        if place is places[0] and not measured and time.monotonic() > place.until:
            took = time.monotonic() - began
            raise TuningError(
                f"{seconds:g} s are too short to tune {grouped.graph.name}: one op's kernel was "
                f"measured after {took:.0f} s, and no other; give {max(60.0, 4 * took):.0f} s or "
                "more"
            )
    path.mkdir(parents=True, exist_ok=True)
    return Records.load(path)


def _places(
    machine: Machine,
    devices: Sequence[str] | None,
    threads: Sequence[int] | None,
    began: float,
    seconds: float,
) -> list[_Place]:
    chosen = [machine.device(name) for name in devices] if devices else list(machine.devices)
    by_kind: dict[str, tuple[Device, Any]] = {}
    for device in chosen:
        if device.kind == "cpu" or devices:
            target = target_of(device)
            by_kind.setdefault(kind_of(target), (device, target))
    if not by_kind:
        raise DeviceError(
            f"machine {machine.name!r} has no CPU device, and kernels are tuned for CPUs only; "
            "name cores"
        )
    places, start = [], began
    for kind, (device, target) in by_kind.items():
        counts = _counts(device, threads)
        whole = seconds / len(by_kind)
        for number, count in enumerate(counts):
            share = 1.0
            if len(counts) > 1:
                rest = (1 - _FIRST_SHARE) / (len(counts) - 1)
                share = _FIRST_SHARE if number == 0 else rest
            start += share * whole
            cores = dataclasses.replace(device, cpus=device.cpus[:count])
            places.append(_Place(cores, target, kind, start))
    return places


def _counts(device: Device, threads: Sequence[int] | None) -> list[int]:
    counts = sorted(set(threads or (1, device.threads)))
    if not 1 <= counts[0] <= counts[-1] <= device.threads:
        raise DeviceError(
            f"device {device.name!r} has cores {format_cpus(device.cpus)}; it cannot run kernels "
            f"on {', '.join(map(str, counts))} threads; give 1 to {device.threads}"
        )
    return counts


def _search(
    grouped: Grouped, place: _Place, database: Database, measurer: Measurer, seed: int
) -> Search:
    """A search that goes on from what the database has."""
    rows = [*database.content.rows, *database.added]
    threads = place.device.threads
    known: dict[str, list[Row]] = {}
    first: dict[str, list[Choice]] = {}
    if database.made_with_other("lowering"):
        # Other rules: nothing is known of their kernels, only what used to beat them.
        for op, by_threads in kept_of(rows).items():
            first[op] = [kept.choice for kept in by_threads.values() if kept.choice is not None]
        rows = list(database.added)
    for row in rows:
        if row.threads == threads:
            known.setdefault(row.op, []).append(row)
    for op, choices in _best_on_fewer(rows, threads).items():
        first[op] = [*choices, *first.get(op, ())]

    def write(row: Row, task: Task) -> None:
        workload = None
        if row.choice.trace is not None:
            workload = lowering.workload(grouped.module, task.name, place.target)
        database.add(row, place.target, workload)

    until = place.until - _RECHECK_SHARE * (place.until - time.monotonic())
    return Search(threads, measurer, write, until, seed, known, first)


def _best_on_fewer(rows: Sequence[Row], threads: int) -> dict[str, list[Choice]]:
    """By op what was fastest on the next smaller number of threads, the fastest first."""
    fewer = {row.threads for row in rows if row.threads < threads}
    if not fewer:
        return {}
    times: dict[str, dict[Choice, float]] = {}
    for row in rows:
        if row.threads == max(fewer) and row.choice != Choice():
            times.setdefault(row.op, {})[row.choice] = row.median_s
    kept = {op: by_threads.get(max(fewer)) for op, by_threads in kept_of(rows).items()}
    found = {}
    for op, by_choice in times.items():
        best = sorted(by_choice, key=lambda choice: by_choice[choice])[:_FROM_FEWER]
        winner = kept.get(op)
        if winner is not None and winner.choice is not None:
            best = [winner.choice, *(choice for choice in best if choice != winner.choice)]
        found[op] = best
    return found


def _run(search: Search, grouped: Grouped, place: _Place, tell: _Teller) -> int:
    """Search until the place's time is over; how many candidates were measured."""
    device, total = place.device, len({op.signature for op in grouped.graph.ops})
    tell.about = (
        f"tuning {grouped.graph.name} on {device.name}, "
        f"{device.threads} thread{'s' if device.threads > 1 else ''}"
    )
    failed: TuningError | None = None
    for task in _by_work(grouped, place.target):
        if search.states and time.monotonic() > place.until:
            break
        try:
            search.begin(task)
        except TuningError as error:
            failed = error
            tell(f"{error}; it is left as it is")
        else:
            tell(f"{len(search.states)} of {total} ops measured as the rules make them")
    if failed is not None and not search.states:
        raise failed
    for until, step in ((search.until, search.step), (place.until, search.recheck)):
        while time.monotonic() < until:
            name = step()
            if name is None:
                break
            tell(
                f"{search.speed:.2f}x the rules' speed so far, {name}, {search.finished} of {total}"
                " ops done"
            )
    tell(f"{search.speed:.2f}x the rules' speed after {search.measured} candidates")
    return search.measured


def _by_work(grouped: Grouped, target: Any) -> list[Task]:
    """Tasks, those with the most arithmetic first: a short search is to see these."""
    flops = {op.signature: op.flops or 0 for op in grouped.graph.ops}
    return sorted(tasks_of(grouped, target), key=lambda task: -task.calls * flops[task.op])


@dataclass(slots=True)
class _Teller:
    """Puts what is tuned in front of a text and the time left behind."""

    progress: Progress
    began: float
    seconds: float
    about: str = ""

    def __call__(self, text: str) -> None:
        gone_s = min(self.seconds, time.monotonic() - self.began)
        left_s = self.seconds - gone_s
        self.progress(f"{self.about}: {text}, {left_s:.0f} s left", gone_s / self.seconds)
