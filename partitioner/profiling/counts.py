"""How many threads are measured, and what stands in for the numbers between.

A cluster of n cores is n placements. Few are measured at first, the others lie between them on
Amdahl's curve: a time is ``a + b / k`` with k threads (Amdahl, "Validity of the single processor
approach", AFIPS 1967), with a and b from the next measured numbers below and above. Such rows are
marked, a solved plan is asked which of them it `rests_on`, and these are then measured.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from partitioner.graph import OpGraph
from partitioner.machine import Device
from partitioner.profiling.table import Measurement, OpKey, ProfileTable

__all__ = [
    "chosen_counts",
    "optimistic",
    "rests_on",
    "to_measure",
    "with_interpolated",
    "with_own_kernels",
]

# Up to this many cores every number of threads is measured.
_ALL_UP_TO = 4

Value = TypeVar("Value")


def chosen_counts(cores: int) -> tuple[int, ...]:
    """Numbers of threads to measure on a cluster: all of a small one, else powers of two and all.

    Parameters
    ----------
    cores : int
        Of the cluster.
    """
    if cores <= _ALL_UP_TO:
        return tuple(range(1, cores + 1))
    return (*(1 << power for power in range((cores - 1).bit_length())), cores)


def to_measure(placements: Sequence[Device]) -> tuple[Device, ...]:
    """Those of `placements` that are measured whatever the plan will be, in order."""
    counts = _counts(placements)
    return tuple(
        device
        for device in placements
        if device.threads in chosen_counts(counts[device.name][-1]) or len(counts[device.name]) == 1
    )


def with_own_kernels(
    placements: Sequence[Device], chosen: Sequence[Device], kernels: Mapping[OpKey, str]
) -> tuple[Device, ...]:
    """`chosen`, and those of `placements` where an op has another kernel than with fewer threads.

    What lies between two measured numbers of threads is then always a time of the lower one's
    kernel, so that no kernel is priced without a time of its own.

    Parameters
    ----------
    placements : sequence of Device
        What a stage may run on.
    chosen : sequence of Device
        Those that are measured anyway.
    kernels : mapping of OpKey to str
        Digest of the record that each kernel is made by.
    """
    by_place: dict[tuple[str, int], dict[str, str]] = defaultdict(dict)
    for key, digest in kernels.items():
        by_place[key.device, key.threads][key.signature] = digest
    found = []
    below: dict[str, dict[str, str]] = {}
    for device in sorted(placements, key=lambda device: device.threads):
        made = by_place[device.name, device.threads]
        if device in chosen or made != below.get(device.name):
            found.append(device)
            below[device.name] = made
    return tuple(device for device in placements if device in found)


def with_interpolated(
    table: ProfileTable, graph: OpGraph, placements: Sequence[Device]
) -> ProfileTable:
    """The table with a row for every op on every placement that lies between measured ones.

    Parameters
    ----------
    table : ProfileTable
        Measured rows stay as they are; interpolated ones are made anew.
    graph, placements
        The rows to have. What is between no two measured numbers of threads stays missing.
    """
    signatures = dict.fromkeys(op.signature for op in graph.ops)
    ops, contended = dict(table.ops), dict(table.contended)
    host_s, contended_host_s = dict(table.host_s), dict(table.contended_host_s)
    for name, counts in _counts(placements).items():
        seen = {key.threads for key, r in ops.items() if key.device == name and not r.interpolated}
        for signature in signatures:
            for rows in (ops, contended):
                measured = {
                    k: rows[key]
                    for k in range(1, counts[-1] + 1)
                    if (key := OpKey(signature, name, k)) in rows and not rows[key].interpolated
                }
                for k, row in _between(measured, counts, _mixed).items():
                    rows[OpKey(signature, name, k)] = row
        for times in (host_s, contended_host_s):
            known = {k: s for (device, k), s in times.items() if device == name and k in seen}
            times.update({(name, k): s for k, s in _between(known, counts, _mix).items()})
    return replace(
        table, ops=ops, host_s=host_s, contended=contended, contended_host_s=contended_host_s
    )


def optimistic(table: ProfileTable) -> ProfileTable:
    """The table with every interpolated time as short as it can be.

    That is: the next smaller measured number of threads, sped up by as much as there are more
    threads, and the least dispatch measured on the device. If the best plan by this table rests on
    no interpolated row, no measurement of one could lead to a better plan; otherwise the rows it
    rests on are worth measuring.
    """

    def least(rows: Mapping[OpKey, Measurement]) -> dict[OpKey, Measurement]:
        found = {}
        for key, row in rows.items():
            found[key] = row
            below = [
                k
                for k in range(1, key.threads)
                if (near := rows.get(replace(key, threads=k))) and not near.interpolated
            ]
            if row.interpolated and below:
                time_s = rows[replace(key, threads=below[-1])].median_s
                shortest_s = min(row.median_s, time_s * below[-1] / key.threads)
                found[key] = replace(row, median_s=shortest_s)
        return found

    between = {(key.device, key.threads) for key, row in table.ops.items() if row.interpolated}

    def least_host(times: Mapping[tuple[str, int], float]) -> dict[tuple[str, int], float]:
        shortest_s: dict[str, float] = {}
        for (device, _), time_s in times.items():
            shortest_s[device] = min(time_s, shortest_s.get(device, time_s))
        return {key: shortest_s[key[0]] if key in between else s for key, s in times.items()}

    return replace(
        table,
        ops=least(table.ops),
        host_s=least_host(table.host_s),
        contended=least(table.contended),
        contended_host_s=least_host(table.contended_host_s),
    )


def rests_on(
    table: ProfileTable,
    graph: OpGraph,
    stage_of: Sequence[int],
    devices: Sequence[Sequence[Device]],
) -> tuple[OpKey, ...]:
    """Interpolated rows that a solution or plan was priced by, each once, in module order.

    Parameters
    ----------
    table : ProfileTable
        What it was priced by.
    graph : OpGraph
        The model's ops.
    stage_of : sequence of int, shape (n_ops,)
        Stage of each op.
    devices : sequence of sequence of Device
        For each stage, where its replicas run: devices with as many cores as the stage takes.
    """
    keys = [
        OpKey(op.signature, device.name, device.threads)
        for op, stage in zip(graph.ops, stage_of, strict=True)
        for device in devices[stage]
    ]
    return tuple(
        key for key in dict.fromkeys(keys) if (row := table.ops.get(key)) and row.interpolated
    )


def _counts(placements: Iterable[Device]) -> dict[str, tuple[int, ...]]:
    """Numbers of threads by device name, ascending."""
    counts: dict[str, set[int]] = defaultdict(set)
    for device in placements:
        counts[device.name].add(device.threads)
    return {name: tuple(sorted(found)) for name, found in counts.items()}


def _between(
    measured: Mapping[int, Value],
    counts: Sequence[int],
    mix: Callable[[Value, Value, float], Value],
) -> dict[int, Value]:
    """Values for those of `counts` that lie between measured ones, linear in 1 / k."""
    found = {}
    for k in counts:
        below = max((count for count in measured if count < k), default=None)
        above = min((count for count in measured if count > k), default=None)
        if k in measured or below is None or above is None:
            continue
        weight = (1 / k - 1 / above) / (1 / below - 1 / above)
        found[k] = mix(measured[below], measured[above], weight)
    return found


def _mix(below: float, above: float, weight: float) -> float:
    return weight * below + (1 - weight) * above


def _mixed(below: Measurement, above: Measurement, weight: float) -> Measurement:
    return Measurement(
        _mix(below.median_s, above.median_s, weight),
        _mix(below.iqr_s, above.iqr_s, weight),
        interpolated=True,
        # That of the fewer threads: see `with_own_kernels`.
        kernel=below.kernel,
    )
