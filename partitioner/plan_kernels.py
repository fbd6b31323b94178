"""What kernels the stages of a plan are made with, seen from outside: how many, and whose bits."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from partitioner.graph import OpGraph
from partitioner.machine import Device, Machine
from partitioner.plan import Plan
from partitioner.plan_check import device_for
from partitioner.report import Kernels
from partitioner.runtime.build import BuildCache

__all__ = ["kernels_of", "one_set_of_kernels"]


def kernels_of(plan: Plan, graph: OpGraph, machine: Machine, builds: BuildCache) -> Kernels:
    """How many of a plan's ops have kernels made by records, and where these are from.

    Of an op's replicas the first that a record decides counts.

    Parameters
    ----------
    plan, graph, machine
        What runs, and where.
    builds : BuildCache
        Has the records.
    """
    source_of = dict.fromkeys((op.name for op in graph.ops), "")
    for signature_of, device in _parts(plan, graph, machine):
        found = builds.recorded(signature_of.values(), device)
        for op, signature in signature_of.items():
            if signature in found:
                source_of[op] = source_of[op] or found[signature].source
    return Kernels.of(source_of.values())


def one_set_of_kernels(plan: Plan, graph: OpGraph, machine: Machine, builds: BuildCache) -> bool:
    """Whether the uncut model, built for the first placement, computes the bits of all stages.

    It does where targets are equal and no record has another schedule for another number of
    threads. Tiles may differ: they leave the order of every sum as it is.

    Parameters
    ----------
    plan, graph, machine, builds
        As for `kernels_of`.
    """
    first = device_for(machine, plan.stages[0].placements[0])
    uncut = _traces(builds, [op.signature for op in graph.ops], first)
    for signature_of, device in _parts(plan, graph, machine):
        here = _traces(builds, signature_of.values(), device)
        if device.target != first.target or not here.items() <= uncut.items():
            return False
    return True


def _parts(plan: Plan, graph: OpGraph, machine: Machine) -> Iterator[tuple[dict[str, str], Device]]:
    """For each replica of each stage, the signature of its ops by name, and its device."""
    signatures = {op.name: op.signature for op in graph.ops}
    for stage in plan.stages:
        for placement in stage.placements:
            yield {op: signatures[op] for op in stage.ops}, device_for(machine, placement)


def _traces(
    builds: BuildCache, signatures: Collection[str], device: Device
) -> dict[str, str | None]:
    """The recorded schedule of each op's kernel, None for tiles and rules."""
    found = builds.recorded(signatures, device)
    return {each: found[each].choice.trace if each in found else None for each in signatures}
