"""The profile job: measures what is missing, saves as it goes, resumes where it stopped."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from partitioner.cost import op_keys
from partitioner.errors import ProfileError
from partitioner.files import require_writable
from partitioner.graph import OpGraph
from partitioner.machine import Device, Machine
from partitioner.profiling.links import measure_handover
from partitioner.profiling.measure import InPlace, measure_in_place, pooled
from partitioner.profiling.table import Measurement, OpKey, ProfileTable
from partitioner.rewrite.split import split
from partitioner.runtime.build import BuildCache, origin_of

__all__ = ["Progress", "collect", "with_visit"]

Progress = Callable[[str, float], None]
"""Told what is being done and how much of it is done, from 0 to 1."""

# What compiling and starting takes beside the measuring time, for the announcement only.
_BUILD_S = 30.0

_VISITS = 3


def collect(
    module: Any,
    graph: OpGraph,
    machine: Machine,
    placements: Sequence[Device],
    *,
    known: ProfileTable | None = None,
    path: str | Path | None = None,
    seconds: float = 8.0,
    builds: BuildCache | None = None,
    progress: Progress = lambda what, part: None,
) -> ProfileTable:
    """Measure every op on every placement, and hand-over, as far as they are not known yet.

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
    builds : BuildCache, optional
        Where compiled models are kept.
    progress : callable
        Told what comes and how long it takes before it is begun.

    Raises
    ------
    ProfileError
        If a table to continue was made elsewhere, or measuring fails.
    InputError
        If `path` cannot be written.
    """
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
    if path is not None:
        require_writable(path)
    todo = [device for device in placements if table.missing(op_keys(graph, [device]))]
    if todo:
        progress(
            f"profiling {graph.name} on {', '.join(device.name for device in todo)}: about "
            f"{_BUILD_S + seconds * len(todo):.0f} s",
            0.0,
        )
    if table.handover is None:
        cpus = [device for device in machine.devices if device.kind == "cpu"]
        table = replace(table, handover=measure_handover(cpus[0], cpus[-1]))
    builds = builds or BuildCache()
    whole = split(module, graph, [0] * len(graph.ops))[0] if todo else None
    built = []
    for device in todo:
        progress(f"compiling {graph.name} for {device.name}", 0.0)
        built.append(builds.build(whole, device))
    inputs = [graph.tensors[tensor] for tensor in sorted(graph.inputs)]
    visits: list[list[InPlace]] = [[] for _ in todo]
    for turn in range(_VISITS):
        # Device by device, not one after the other: a machine's speed drifts, and what drifts
        # between two devices looks like a difference of theirs.
        for number, device in enumerate(todo):
            done = (turn + number / len(todo)) / _VISITS
            progress(f"measuring on {device.name}, visit {turn + 1} of {_VISITS}", done)
            visits[number].append(
                measure_in_place(
                    built[number], inputs, device, seconds=seconds / _VISITS, seed=turn
                )
            )
            found = pooled(visits[number])
            table = with_visit(table, graph, device, found)
            if path is not None:
                table.save(path)
    if path is not None:
        table.save(path)
    if todo:
        progress("profiled", 1.0)
    return table


def with_visit(table: ProfileTable, graph: OpGraph, device: Device, found: InPlace) -> ProfileTable:
    """The table with what a visit to a device showed.

    Ops of one kernel share a row and are averaged, so that sums stay what was measured.
    """
    by_signature: dict[str, list[Measurement]] = defaultdict(list)
    for name, row in found.ops:
        by_signature[graph.find_op(name).signature].append(row)
    rows = {
        OpKey(signature, device.name, device.threads): Measurement(
            sum(row.median_s for row in same) / len(same),
            sum(row.iqr_s for row in same) / len(same),
            sum(row.runs for row in same),
        )
        for signature, same in by_signature.items()
    }
    host_s = {(device.name, device.threads): found.dispatch_s}
    return table.merged(replace(table, ops=rows, host_s=host_s))
