"""From a graph, a profile and a machine to the frozen problem a solver is given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from partitioner.cost.interference import contended as contended_times
from partitioner.errors import DeviceError, GraphError, ProfileError
from partitioner.graph import OpGraph
from partitioner.machine import Device, Machine
from partitioner.problem import Ints, LatencyModel, Objective, Problem, TransferCost
from partitioner.profiling.table import OpKey, ProfileTable

__all__ = ["build_problem", "op_keys", "option_names", "options_of"]


def options_of(machine: Machine) -> tuple[Device, ...]:
    """What a stage may be placed on: each accelerator, any number of a cluster's cores, all cores.

    A part of a cluster is a `Device` with the cluster's name and its first cores: it stands for any
    that many of them. All CPU cores joined into one come last, where there are several clusters:
    a plan uses them alone, for the model uncut, its kernels spread over all cores.
    """
    parts = tuple(part for device in machine.devices for part in _parts(device))
    together = machine.all_cores()
    return parts if together is None else (*parts, together)


def _parts(device: Device) -> tuple[Device, ...]:
    if device.kind != "cpu":
        return (device,)
    return tuple(replace(device, cpus=device.cpus[:k]) for k in _core_counts(device.threads))


def _core_counts(cores: int) -> list[int]:
    """Numbers of a cluster's cores that a stage may have: 1 to 8, then 12, 16, 24, ... and all."""
    counts = {cores, *range(1, min(cores, 8) + 1)}
    step = 8
    while step < cores:
        counts |= {step * 3 // 2, step * 2}
        step *= 2
    return sorted(count for count in counts if count <= cores)


def option_names(machine: Machine) -> tuple[str, ...]:
    """A name for each option: the device's, with the number of cores where it is not all."""
    whole = {device.name: device.threads for device in machine.devices}
    return tuple(
        option.name
        if option.threads == whole.get(option.name, option.threads)
        else f"{option.name} ({option.threads} of {whole[option.name]} cores)"
        for option in options_of(machine)
    )


def op_keys(graph: OpGraph, devices: Sequence[Device]) -> tuple[OpKey, ...]:
    """Profile rows that planning `graph` on `devices` needs."""
    return tuple(
        OpKey(op.signature, device.name, device.threads) for device in devices for op in graph.ops
    )


def build_problem(
    graph: OpGraph,
    table: ProfileTable,
    machine: Machine,
    *,
    contended: bool = False,
    objective: Objective = Objective.PERIOD,
    max_stages: int | None = None,
    memory_budgets: Mapping[str, int] | None = None,
    pins: Mapping[str, str] | None = None,
    colocate: Sequence[Sequence[str]] = (),
    second: Objective | None = None,
    period_cap_s: float = float("inf"),
    latency_cap_s: float = float("inf"),
    queue_slots: int = 4,
) -> Problem:
    """Price every op on every option, and every tensor between them.

    Parameters
    ----------
    graph, table, machine
        The model's ops, their measured times, and the devices.
    contended : bool
        Whether ops are priced by the times that they take while all other cores are busy.
    objective : Objective
        What to minimize.
    max_stages : int, optional
        Default: as many as there are cores and accelerators.
    memory_budgets : mapping of str to int, optional
        Bytes by memory pool or device name, over the machine's own.
    pins : mapping of str to str, optional
        Op name or source name to device name.
    colocate : sequence of sequence of str
        Groups of ops, by op or source name, that must share a stage.
    second : Objective, optional
        What to minimize among plans as good as the best.
    period_cap_s, latency_cap_s : float
        Most seconds that the plan's period and latency may take.
    queue_slots : int
        Items that wait between two stages, for the consumer's memory. The queues at the caller
        are the caller's and not counted.

    Raises
    ------
    ProfileError
        If a time is missing; the ops and device are named. If the table has no contended times and
        they are asked for.
    DeviceError, GraphError
        If a budget, pin or group names what is not there.
    """
    options = options_of(machine)
    table = contended_times(table) if contended else table
    _require_times(graph, table, options)
    handover = table.handover
    if handover is None:
        raise ProfileError("the profile has no hand-over cost; profile again")

    time_s = np.array(
        [
            [
                table.time_s(OpKey(op.signature, device.name, device.threads))
                + table.host_s.get((device.name, device.threads), 0.0)
                for device in options
            ]
            for op in graph.ops
        ]
    )
    uses, capacity = _resources(machine, options)
    pools = [pool.name for pool in machine.memories]
    m = len(options)
    return Problem(
        op_names=tuple(op.name for op in graph.ops),
        option_names=option_names(machine),
        time_s=time_s,
        allowed=_allowed(graph, options, pins or {}),
        host_s=np.zeros(m),
        uses=uses,
        capacity=capacity,
        pool_of=np.array([pools.index(device.memory) for device in options], dtype=np.int64),
        pool_bytes=_budgets(machine, memory_budgets or {}),
        producer=np.array(
            [-1 if t.producer is None else t.producer for t in graph.tensors], dtype=np.int64
        ),
        consumers=tuple(t.consumers for t in graph.tensors),
        to_caller=np.array([t.id in graph.outputs for t in graph.tensors], dtype=bool),
        amount=np.array([t.bytes for t in graph.tensors], dtype=float),
        tensor_bytes=np.array([t.bytes for t in graph.tensors], dtype=float),
        send=_transfer(options, machine, handover.send_base_s, handover.send_s_per_byte),
        recv=_transfer(options, machine, handover.recv_base_s, handover.recv_s_per_byte),
        link=TransferCost.zero(m),
        bus_of=np.full((m + 1, m + 1), -1, dtype=np.int64),
        constant_bytes=np.array([c.bytes for c in graph.constants], dtype=float),
        constant_ops=tuple(c.consumers for c in graph.constants),
        live_bytes=np.array([op.live_bytes for op in graph.ops], dtype=float),
        max_stages=int(capacity.sum()) if max_stages is None else max_stages,
        queue_slots=queue_slots,
        colocate=tuple(tuple(graph.find_op(key).id for key in keys) for keys in colocate),
        objective=objective,
        second=second,
        period_cap_s=period_cap_s,
        latency_cap_s=latency_cap_s,
        latency_model=LatencyModel.ATOMIC if objective is Objective.PERIOD else LatencyModel.SERIAL,
    )


def _require_times(graph: OpGraph, table: ProfileTable, options: Sequence[Device]) -> None:
    missing = set(table.missing(op_keys(graph, options)))
    if not missing:
        return
    first = next(
        (op.name, device)
        for device in options
        for op in graph.ops
        if OpKey(op.signature, device.name, device.threads) in missing
    )
    cores = f" with {first[1].threads} cores" if first[1].threads > 1 else ""
    raise ProfileError(
        f"the profile lacks {len(missing)} of the times that {graph.name!r} needs, the first for "
        f"op {first[0]!r} on {first[1].name!r}{cores}; profile this model on these "
        "devices and keep the result"
    )


def _resources(machine: Machine, options: Sequence[Device]) -> tuple[Ints, Ints]:
    """Cores of each cluster, and each accelerator: what an option occupies, what there is.

    Returns
    -------
    uses : array, shape (n_options, n_devices)
    capacity : array, shape (n_devices,)
    """
    capacity = [device.threads for device in machine.devices]
    uses = [
        [
            option.threads if option.name == device.name else len({*option.cpus} & {*device.cpus})
            for device in machine.devices
        ]
        for option in options
    ]
    return np.array(uses, dtype=np.int64), np.array(capacity, dtype=np.int64)


def _transfer(
    options: Sequence[Device], machine: Machine, base_s: float, per_byte_s: float
) -> TransferCost:
    """Measured hand-over between all endpoints; a link that the machine lists takes its own time.

    Both ends are busy for as long as a listed link is (`sync`).
    """
    shape = (len(options) + 1, len(options) + 1)
    base, per_byte = np.full(shape, base_s), np.full(shape, per_byte_s)
    names = np.array([option.name for option in options] + [""])
    for link in machine.links:
        pairs = np.outer(names == link.source, names == link.target)
        base[pairs] = link.latency_s
        per_byte[pairs] = 1.0 / link.bytes_per_s
    return TransferCost(base, per_byte)


def _allowed(
    graph: OpGraph, options: Sequence[Device], pins: Mapping[str, str]
) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    names = [device.name for device in options]
    pinned = {op.id: op.pinned_to for op in graph.ops if op.pinned_to is not None}
    pinned |= {graph.find_op(key).id: name for key, name in pins.items()}
    allowed = np.ones((len(graph.ops), len(options)), dtype=bool)
    for op, name in pinned.items():
        if name not in names:
            raise GraphError(
                f"op {graph.ops[op].name!r} is pinned to {name!r}; the devices are "
                f"{', '.join(dict.fromkeys(names))}"
            )
        allowed[op] = [name == option for option in names]
    return allowed


def _budgets(
    machine: Machine, budgets: Mapping[str, int]
) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    pools = {pool.name: pool.bytes for pool in machine.memories}
    pool_of = {device.name: device.memory for device in machine.devices}
    for name, size in budgets.items():
        pool = name if name in pools else pool_of.get(name)
        if pool is None:
            raise DeviceError(
                f"a memory budget names {name!r}; the pools are {', '.join(pools)}, the devices "
                f"{', '.join(pool_of)}"
            )
        pools[pool] = size
    return np.array([np.inf if size is None else float(size) for size in pools.values()])
