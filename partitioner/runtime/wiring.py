"""From a pipeline's description to what each worker needs to know: channels, depths, addresses."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from partitioner.runtime.channel import ALIGNMENT, Arena, ChannelLayout, aligned
from partitioner.runtime.spec import PipelineSpec, RunnerSpec, TensorId, TensorSpec
from partitioner.runtime.trace import LogLayout

__all__ = ["Port", "Routes", "Wiring", "WorkerSpec", "wire"]

CALLER = -1

# Queues between stages absorb jitter; a few slots do. Those at the caller are deep: a caller whose
# other threads hold the interpreter lock comes by only every 5 to 15 ms, and must then find room
# for, and results of, all that the stages do meanwhile.
_STAGE_SLOTS = 4
_CALLER_SLOTS = 64
_FEWEST_SLOTS = 2
_CHANNEL_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class Port:
    """One end's view of all channels to or from one other stage (or the caller).

    Attributes
    ----------
    pattern : tuple of int
        Item ``i`` is exchanged with the peer's replica ``pattern[i % len(pattern)]``.
    channels : tuple of ChannelLayout or None
        By the peer's replica; None where the two never meet.
    positions : tuple of int
        The channel's tensor ``k`` is number ``positions[k]`` of the worker's inputs (or outputs).
    """

    pattern: tuple[int, ...]
    channels: tuple[ChannelLayout | None, ...]
    positions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """All that one worker needs, as plain data that crosses to another process as JSON.

    Attributes
    ----------
    stage, replica : int
        Which worker it is.
    name : str
        The stage's name.
    cpus : tuple of int
        The CPUs its threads may use.
    threads : int
        How many threads its kernels use.
    runner : RunnerSpec
        What it computes with.
    env : tuple of (str, str)
        Environment of a worker process.
    cgroup : str or None
        Control group of a worker process.
    pattern : tuple of int
        The stage's own dispatch pattern.
    inputs, outputs : tuple of TensorSpec
        What its runner takes and returns.
    receives, sends : tuple of Port
        Where they come from and go to.
    log : LogLayout
        Where it records its times.
    """

    stage: int
    replica: int
    name: str
    cpus: tuple[int, ...]
    threads: int
    runner: RunnerSpec
    env: tuple[tuple[str, str], ...]
    cgroup: str | None
    pattern: tuple[int, ...]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    receives: tuple[Port, ...]
    sends: tuple[Port, ...]
    log: LogLayout

    def __str__(self) -> str:
        return f"stage {self.stage} ({self.name}), replica {self.replica}"

    def to_json(self) -> dict[str, Any]:
        """Return the value as JSON holds it."""
        return dataclasses.asdict(self)

    @staticmethod
    def from_json(data: dict[str, Any]) -> WorkerSpec:
        """Return the value that `to_json` described."""
        runner = data["runner"]
        return WorkerSpec(
            stage=data["stage"],
            replica=data["replica"],
            name=data["name"],
            cpus=tuple(data["cpus"]),
            threads=data["threads"],
            runner=RunnerSpec(runner["factory"], tuple(runner["args"])),
            env=tuple((key, value) for key, value in data["env"]),
            cgroup=data["cgroup"],
            pattern=tuple(data["pattern"]),
            inputs=_tensors(data["inputs"]),
            outputs=_tensors(data["outputs"]),
            receives=_ports(data["receives"]),
            sends=_ports(data["sends"]),
            log=LogLayout(**data["log"]),
        )


End = TypeVar("End")


class Routes(Generic[End]):
    """The opened channels of a port.

    Parameters
    ----------
    port : Port
        The port.
    open_end : callable
        `Sender` or `Receiver`.
    arena : Arena
        The memory the channels lie in.
    """

    __slots__ = ("_ends", "_length", "_pattern", "positions")

    def __init__(self, port: Port, open_end: Any, arena: Arena) -> None:
        self._ends: list[End | None] = [
            None if layout is None else open_end(layout, arena) for layout in port.channels
        ]
        self._pattern = port.pattern
        self._length = len(port.pattern)
        self.positions = port.positions

    def at(self, item: int) -> End:
        """The channel end that `item` goes through."""
        end = self._ends[self._pattern[item % self._length]]
        assert end is not None, "wiring makes a channel for every pair of replicas that meets"
        return end


@dataclass(frozen=True, slots=True)
class Wiring:
    """A pipeline laid out in memory.

    Attributes
    ----------
    workers : tuple of WorkerSpec
        In the order of stages and replicas.
    feeds : tuple of Port
        The caller's channels to stages; positions count the pipeline's inputs.
    sinks : tuple of Port
        The caller's channels from stages; positions count `returned`.
    returned : tuple of tensor ids
        The outputs that stages make, each once.
    channels : tuple of ChannelLayout
        All of them.
    nbytes : int
        Size of the arena. Its first byte says that the pipeline stops.
    capacity : int
        How many items can be on their way at once.
    """

    workers: tuple[WorkerSpec, ...]
    feeds: tuple[Port, ...]
    sinks: tuple[Port, ...]
    returned: tuple[TensorId, ...]
    channels: tuple[ChannelLayout, ...]
    nbytes: int
    capacity: int


class _Layout:
    """Hands out places in the arena, one after the other."""

    def __init__(self) -> None:
        self.end = ALIGNMENT
        self.channels: list[ChannelLayout] = []

    def take(self, nbytes: int) -> int:
        start = self.end
        self.end += aligned(nbytes)
        return start

    def channel(self, slots: int, tensors: tuple[TensorSpec, ...]) -> ChannelLayout:
        layout = ChannelLayout(self.end, slots, tensors)
        self.take(layout.nbytes)
        self.channels.append(layout)
        return layout


def wire(spec: PipelineSpec, slots: int | None, log_items: int) -> Wiring:
    """Lay a pipeline out.

    Parameters
    ----------
    spec : PipelineSpec
        The pipeline.
    slots : int or None
        Depth of every queue; chosen by size and place when None.
    log_items : int
        How many items' times each worker keeps.

    Returns
    -------
    Wiring
        Channels join every two replicas that exchange a tensor, the caller being a producer and a
        consumer too. A channel that passes stages by has room for all items those can hold, since
        otherwise it would hold its producer back.
    """
    edges = _edges(spec)
    stage_slots, caller_slots = _depths(spec, edges, slots)
    start = _starts(spec, edges, stage_slots)
    last = len(spec.stages)
    layout = _Layout()
    receives: dict[tuple[int, int], list[Port]] = {}
    sends: dict[tuple[int, int], list[Port]] = {}
    returned = tuple(tensor for tensor in dict.fromkeys(spec.outputs) if tensor not in spec.inputs)
    for (producer, consumer), tensors in edges.items():
        lead = caller_slots if producer == CALLER or consumer == last else stage_slots
        passed_by = start[consumer] - start[producer] - _weight(spec, producer, stage_slots)
        specs = tuple(spec.tensors[tensor] for tensor in tensors)
        made = {
            pair: layout.channel(lead + passed_by, specs)
            for pair in _meetings(_pattern(spec, producer), _pattern(spec, consumer))
        }
        given = spec.inputs if producer == CALLER else spec.stages[producer].outputs
        taken = returned if consumer == last else spec.stages[consumer].inputs
        out = tuple(given.index(tensor) for tensor in tensors)
        into = tuple(taken.index(tensor) for tensor in tensors)
        makers, users = range(_replicas(spec, producer)), range(_replicas(spec, consumer))
        for one in makers:
            ends = tuple(made.get((one, other)) for other in users)
            sends.setdefault((producer, one), []).append(Port(_pattern(spec, consumer), ends, out))
        for one in users:
            ends = tuple(made.get((other, one)) for other in makers)
            port = Port(_pattern(spec, producer), ends, into)
            receives.setdefault((consumer, one), []).append(port)
    workers = tuple(
        WorkerSpec(
            stage=index,
            replica=number,
            name=stage.name,
            cpus=tuple(replica.cpus),
            threads=replica.threads,
            runner=replica.runner,
            env=replica.env,
            cgroup=replica.cgroup,
            pattern=stage.pattern,
            inputs=tuple(spec.tensors[tensor] for tensor in stage.inputs),
            outputs=tuple(spec.tensors[tensor] for tensor in stage.outputs),
            receives=tuple(receives[index, number]),
            sends=tuple(sends[index, number]),
            log=_log(layout, log_items),
        )
        for index, stage in enumerate(spec.stages)
        for number, replica in enumerate(stage.replicas)
    )
    return Wiring(
        workers=workers,
        feeds=tuple(sends[CALLER, 0]),
        sinks=tuple(receives.get((last, 0), ())),
        returned=returned,
        channels=tuple(layout.channels),
        nbytes=layout.end,
        capacity=caller_slots + start[last],
    )


def _edges(spec: PipelineSpec) -> dict[tuple[int, int], tuple[TensorId, ...]]:
    """Tensors by (producer, consumer); the caller is -1 as producer, len(stages) as consumer."""
    makers = dict.fromkeys(spec.inputs, CALLER)
    for index, stage in enumerate(spec.stages):
        makers.update((tensor, index) for tensor in stage.outputs)
    edges: dict[tuple[int, int], list[TensorId]] = {}
    for index, stage in enumerate(spec.stages):
        if not stage.inputs:
            edges[CALLER, index] = []  # Without a token an item, it could run ahead for ever.
        for tensor in stage.inputs:
            edges.setdefault((makers[tensor], index), []).append(tensor)
    for tensor in dict.fromkeys(spec.outputs):
        if makers[tensor] != CALLER:
            edges.setdefault((makers[tensor], len(spec.stages)), []).append(tensor)
    return {edge: tuple(tensors) for edge, tensors in edges.items()}


def _depths(
    spec: PipelineSpec, edges: dict[tuple[int, int], tuple[TensorId, ...]], slots: int | None
) -> tuple[int, int]:
    """Slots of queues between stages, and of those at the caller."""
    if slots is not None:
        return slots, slots
    largest = {True: 1, False: 1}
    for (producer, consumer), tensors in edges.items():
        at_caller = producer == CALLER or consumer == len(spec.stages)
        nbytes = sum(spec.tensors[tensor].nbytes for tensor in tensors)
        largest[at_caller] = max(largest[at_caller], nbytes)
    between = min(_STAGE_SLOTS, _CHANNEL_BYTES // largest[False])
    at_ends = min(_CALLER_SLOTS, _CHANNEL_BYTES // largest[True])
    return max(_FEWEST_SLOTS, between), max(_FEWEST_SLOTS, at_ends)


def _starts(
    spec: PipelineSpec, edges: dict[tuple[int, int], tuple[TensorId, ...]], stage_slots: int
) -> dict[int, int]:
    """For each stage, how many items the stages before it can hold, along the longest way."""
    start = {CALLER: 0}
    for index in range(len(spec.stages) + 1):
        before = [producer for producer, consumer in edges if consumer == index]
        start[index] = max(
            (start[one] + _weight(spec, one, stage_slots) for one in before), default=0
        )
    return start


def _weight(spec: PipelineSpec, stage: int, stage_slots: int) -> int:
    """How many items a stage holds: one at work and a queue for each replica."""
    return 0 if stage == CALLER else len(spec.stages[stage].replicas) * (stage_slots + 1)


def _replicas(spec: PipelineSpec, stage: int) -> int:
    return len(spec.stages[stage].replicas) if 0 <= stage < len(spec.stages) else 1


def _pattern(spec: PipelineSpec, stage: int) -> tuple[int, ...]:
    return spec.stages[stage].pattern if 0 <= stage < len(spec.stages) else (0,)


def _meetings(first: tuple[int, ...], second: tuple[int, ...]) -> list[tuple[int, int]]:
    """The pairs of replicas that some item passes through."""
    period = math.lcm(len(first), len(second))
    pairs = ((first[i % len(first)], second[i % len(second)]) for i in range(period))
    return list(dict.fromkeys(pairs))


def _log(layout: _Layout, items: int) -> LogLayout:
    nbytes = LogLayout(0, items).nbytes
    return LogLayout(layout.take(nbytes), items)


def _tensors(data: Iterable[dict[str, Any]]) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(one["name"], tuple(one["shape"]), one["dtype"]) for one in data)


def _ports(data: Iterable[dict[str, Any]]) -> tuple[Port, ...]:
    return tuple(
        Port(
            tuple(port["pattern"]),
            tuple(
                None
                if one is None
                else ChannelLayout(one["offset"], one["slots"], _tensors(one["tensors"]))
                for one in port["channels"]
            ),
            tuple(port["positions"]),
        )
        for port in data
    )
