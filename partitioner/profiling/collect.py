"""The profile job: measures what is missing, saves as it goes, resumes where it stopped."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from partitioner.cost import op_keys
from partitioner.errors import ProfileError
from partitioner.files import require_writable
from partitioner.graph import OpGraph, Tensor
from partitioner.machine import Device, Machine
from partitioner.profiling.counts import to_measure, with_interpolated, with_own_kernels
from partitioner.profiling.links import measure_handover
from partitioner.profiling.measure import InPlace, measure_in_place, pooled
from partitioner.profiling.rivals import busy, rivals_of
from partitioner.profiling.steadiness import Steadiness
from partitioner.profiling.table import Measurement, OpKey, ProfileTable
from partitioner.rewrite.split import split
from partitioner.runtime.build import BuildCache, Built, origin_of

__all__ = ["Progress", "collect", "with_visit"]

Progress = Callable[[str, float], None]
"""Told what is being done and how much of it is done, from 0 to 1."""

Place = tuple[str, int]
"""A device's name and how many of its cores."""

# What compiling and starting takes beside the measuring time, for the announcement only.
_BUILD_S = 30.0

_VISITS = 3


@dataclass(frozen=True, slots=True)
class _Task:
    """A placement to measure, what is kept busy meanwhile, and what visits have found."""

    device: Device
    rivals: tuple[Device, ...] = ()
    visits: list[InPlace] = field(default_factory=list)

    def __str__(self) -> str:
        cores = f" x{self.device.threads}" if self.device.threads > 1 else ""
        return f"{self.device.name}{cores}{' (other cores busy)' if self.rivals else ''}"


def collect(
    module: Any,
    graph: OpGraph,
    machine: Machine,
    placements: Sequence[Device],
    *,
    known: ProfileTable | None = None,
    path: str | Path | None = None,
    seconds: float = 8.0,
    exact: Iterable[OpKey] = (),
    contended: bool = False,
    builds: BuildCache | None = None,
    progress: Progress = lambda what, part: None,
) -> ProfileTable:
    """Measure the ops on the placements, and hand-over, as far as they are not known yet.

    Of a large cluster only some numbers of cores are measured (see `counts`), the rest is
    interpolated.

    Parameters
    ----------
    module, graph
        The grouped module and its ops.
    machine : Machine
        Whose devices the table is for.
    placements : sequence of Device
        What a stage may run on (`partitioner.cost.options_of`).
    known : ProfileTable, optional
        Times that need not be taken again; they must come from this host.
    path : path, optional
        Where to save after every step; a table that is there is continued.
    seconds : float
        Measuring time a placement.
    exact : iterable of OpKey
        Rows to measure whatever their number of threads, such as `counts.rests_on` names.
    contended : bool
        Whether every placement is measured a second time, while the other cores run the model too.
    builds : BuildCache, optional
        Where compiled models are kept, and by which records their kernels are made. Times of
        other kernels than these are taken again.
    progress : callable
        Told what comes and how long it takes before it is begun.

    Raises
    ------
    ProfileError
        If a table to continue was made elsewhere, or measuring fails.
    InputError
        If `path` cannot be written.
    """
    builds = builds or BuildCache()
    kernels = _kernels(graph, placements, builds)
    before = _known_so_far(machine, known, path)
    table = before.without_other_kernels(kernels)
    if path is not None:
        require_writable(path)
    if retuned := len(before.ops) - len(table.ops):
        progress(f"known times of other kernels than are made now: {retuned}, taken anew", 0.0)
    todo = _tasks(table, graph, machine, placements, kernels, exact, contended)
    if todo:
        progress(
            f"profiling {graph.name} on {', '.join(map(str, todo))}: about "
            f"{_BUILD_S + seconds * len(todo):.0f} s",
            0.0,
        )
    if table.handover is None:
        cpus = [device for device in machine.devices if device.kind == "cpu"]
        table = replace(table, handover=measure_handover(cpus[0], cpus[-1]))
    built = _built(module, graph, todo, builds, progress)
    inputs = [graph.tensors[tensor] for tensor in sorted(graph.inputs)]
    watch = Steadiness()
    for turn in range(_VISITS):
        # Device by device, not one after the other: a machine's speed drifts, and what drifts
        # between two devices looks like a difference of theirs.
        for number, task in enumerate(todo):
            done = (turn + number / len(todo)) / _VISITS
            progress(f"measuring on {task}, visit {turn + 1} of {_VISITS}", done)
            with watch.visit(task.device.cpus):
                task.visits.append(_visit(task, built, inputs, seconds / _VISITS, turn))
            found = pooled(task.visits)
            table = with_visit(
                table, graph, task.device, found, kernels=kernels, contended=bool(task.rivals)
            )
            if path is not None:
                table.save(path)
    notes = (*_quotas(todo), *watch.notes())
    table = table.merged(replace(ProfileTable(table.origin), notes=notes))
    table = with_interpolated(table, graph, placements)
    if path is not None:
        table.save(path)
    for note in notes:
        progress(note, 1.0)
    if todo:
        progress("profiled", 1.0)
    return table


def _known_so_far(
    machine: Machine, known: ProfileTable | None, path: str | Path | None
) -> ProfileTable:
    here = origin_of(machine)
    table = ProfileTable(here)
    if path is not None and Path(path).exists():
        begun = ProfileTable.load(path)
        try:
            begun.require_from(here)
        except ProfileError as error:
            raise ProfileError(f"{path}: {error}; or remove the file to start anew") from error
        table = table.merged(begun)
    if known is not None:
        known.require_from(here)
        table = table.merged(known)
    return table


def _kernels(graph: OpGraph, placements: Sequence[Device], builds: BuildCache) -> dict[OpKey, str]:
    """Digest of the record that each op's kernel is made by on each placement, "" by rule."""
    signatures = [op.signature for op in graph.ops]
    recorded = {device: builds.recorded(signatures, device) for device in placements}
    return {
        OpKey(each, device.name, device.threads): found[each].digest if each in found else ""
        for device, found in recorded.items()
        for each in signatures
    }


def _tasks(
    table: ProfileTable,
    graph: OpGraph,
    machine: Machine,
    placements: Sequence[Device],
    kernels: Mapping[OpKey, str],
    exact: Iterable[OpKey],
    contended: bool,
) -> list[_Task]:
    """What has to be measured, in the order of the placements."""
    asked = {(key.device, key.threads) for key in exact}
    chosen = with_own_kernels(placements, to_measure(placements), kernels)
    tasks = []
    for device in placements:
        if device not in chosen and (device.name, device.threads) not in asked:
            continue
        keys = op_keys(graph, [device])
        if table.unmeasured(keys):
            tasks.append(_Task(device))
        rivals = rivals_of(machine, device) if contended else ()
        if rivals and replace(table, ops=table.contended).unmeasured(keys):
            tasks.append(_Task(device, rivals))
    return tasks


def _built(
    module: Any, graph: OpGraph, todo: Sequence[_Task], builds: BuildCache, progress: Progress
) -> dict[Place, Built]:
    """The whole model compiled for each device, once for all its core counts of equal kernels."""
    if not todo:
        return {}
    whole = split(module, graph, [0] * len(graph.ops))[0]
    signatures = [op.signature for op in graph.ops]
    by_kernels: dict[Any, Built] = {}
    built: dict[Place, Built] = {}
    for device in (device for task in todo for device in (task.device, *task.rivals)):
        if _place(device) in built:
            continue
        recorded = builds.recorded(signatures, device)
        made = (device.name, frozenset((each, row.digest) for each, row in recorded.items()))
        if made not in by_kernels:
            progress(f"compiling {graph.name} for {device.name}", 0.0)
            by_kernels[made] = builds.build(whole, device)
        built[_place(device)] = by_kernels[made]
    return built


def _place(device: Device) -> Place:
    return device.name, device.threads


def _visit(
    task: _Task, built: Mapping[Place, Built], inputs: Sequence[Tensor], seconds: float, turn: int
) -> InPlace:
    with busy([(built[_place(rival)], rival) for rival in task.rivals], inputs):
        return measure_in_place(
            built[_place(task.device)], inputs, task.device, seconds=seconds, seed=turn
        )


def _quotas(done: Sequence[_Task]) -> Iterator[str]:
    """A note for each placement that a quota stopped now and then."""
    for task in done:
        stretch = pooled(task.visits).stretch
        if stretch > 1:
            yield (
                f"{task}: a quota stops its processes; each time is processor time times "
                f"{stretch:.2f}"
            )


def with_visit(
    table: ProfileTable,
    graph: OpGraph,
    device: Device,
    found: InPlace,
    *,
    kernels: Mapping[OpKey, str] | None = None,
    contended: bool = False,
) -> ProfileTable:
    """The table with what a visit to a device showed.

    Ops of one kernel share a row and are averaged, so that sums stay what was measured.

    Parameters
    ----------
    table, graph
        Where it is added, and the ops.
    device : Device
        What was visited.
    found : InPlace
        What it showed.
    kernels : mapping of OpKey to str, optional
        Digest of the record that each kernel was made by; those that it lacks are by rule.
    contended : bool
        Whether the other cores were busy.
    """
    by_signature: dict[str, list[Measurement]] = defaultdict(list)
    for name, row in found.ops:
        by_signature[graph.find_op(name).signature].append(row)
    rows = {
        (key := OpKey(signature, device.name, device.threads)): Measurement(
            sum(row.median_s for row in same) / len(same),
            sum(row.iqr_s for row in same) / len(same),
            sum(row.runs for row in same),
            kernel=(kernels or {}).get(key, ""),
        )
        for signature, same in by_signature.items()
    }
    host_s = {(device.name, device.threads): found.dispatch_s}
    empty = ProfileTable(table.origin)
    if contended:
        return table.merged(replace(empty, contended=rows, contended_host_s=host_s))
    return table.merged(replace(empty, ops=rows, host_s=host_s))
