"""What must hold of a plan before it is built, and what follows from its assignment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from partitioner.core_list import format_cpus
from partitioner.errors import DeviceError, PlanError
from partitioner.graph import OpGraph
from partitioner.machine import Device, Machine
from partitioner.plan import Placement, Plan, Stage

__all__ = ["assignment_of", "device_for", "stage_tensors", "verify_plan"]


def stage_tensors(
    graph: OpGraph, stage_of: Sequence[int]
) -> tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]:
    """For each stage the tensor ids that enter and that leave it, ascending.

    A tensor needed by several stages enters each of them; one that only the model's caller needs
    leaves as well.
    """
    count = max(stage_of) + 1
    enter: list[set[int]] = [set() for _ in range(count)]
    leave: list[set[int]] = [set() for _ in range(count)]
    for tensor in graph.tensors:
        home = None if tensor.producer is None else stage_of[tensor.producer]
        targets = {stage_of[consumer] for consumer in tensor.consumers} - {home}
        for target in targets:
            enter[target].add(tensor.id)
        if home is not None and (targets or tensor.id in graph.outputs):
            leave[home].add(tensor.id)
    return tuple((tuple(sorted(i)), tuple(sorted(o))) for i, o in zip(enter, leave, strict=True))


def verify_plan(plan: Plan, graph: OpGraph, machine: Machine) -> None:
    """Check that a plan can be built: model, each op once, order, devices, cores, pins.

    Memory budgets are rules of the problem: `partitioner.planning.adopt` checks them.

    Raises
    ------
    PlanError
        Naming the first rule broken and what to do.
    """
    if plan.graph_hash != graph.hash:
        raise PlanError(
            f"the plan is for model {plan.model!r} (graph {plan.graph_hash}), this is "
            f"{graph.name!r} (graph {graph.hash}); plan again for this model"
        )
    stage_of = assignment_of(plan, graph)
    for u, v in graph.edges:
        if stage_of[u] > stage_of[v]:
            raise PlanError(
                f"op {graph.ops[u].name!r} in stage {stage_of[u]} feeds {graph.ops[v].name!r} in "
                f"the earlier stage {stage_of[v]}; move one so that no edge goes back"
            )
    owner: dict[int | str, int] = {}
    for index, stage in enumerate(plan.stages):
        if not stage.placements:
            raise PlanError(f"stage {index} has no placement; give it a device")
        for placement in stage.placements:
            _verify_placement(index, placement, machine, owner)
        _verify_pins(index, stage, graph)


def _verify_placement(
    index: int, placement: Placement, machine: Machine, owner: dict[int | str, int]
) -> None:
    device = _whole(machine, placement)
    if device.kind == "cpu" and not placement.cpus:
        raise PlanError(
            f"stage {index} has no cores of device {device.name!r}; give it some of "
            f"{format_cpus(device.cpus)}"
        )
    if device not in machine.devices and set(placement.cpus) != set(device.cpus):
        raise PlanError(
            f"stage {index} is on {device.name!r}, all cores joined, with core "
            f"{format_cpus(sorted(placement.cpus))}; give it all of them, or name one cluster"
        )
    extra = set(placement.cpus) - set(device.cpus)
    if extra:
        raise PlanError(
            f"stage {index} wants core {format_cpus(sorted(extra))} of device {device.name!r}, "
            f"which has {format_cpus(device.cpus)}"
        )
    for cpu in placement.cpus:
        if cpu in owner:
            raise PlanError(
                f"core {cpu} is given to stage {owner[cpu]} and again to stage {index}; "
                "a core serves one replica of one stage"
            )
        owner[cpu] = index
    if device.kind != "cpu":
        if device.name in owner:
            raise PlanError(
                f"device {device.name!r} is given to stage {owner[device.name]} and again to stage "
                f"{index}; an accelerator serves one replica of one stage"
            )
        owner[device.name] = index
    if not 0 < placement.share <= 1:
        raise PlanError(f"stage {index}: share {placement.share} must be above 0 and at most 1")


def device_for(machine: Machine, placement: Placement) -> Device:
    """What a placement runs on: the machine's device of that name, with the placement's cores.

    Raises
    ------
    PlanError
        If the machine lacks it.
    """
    device = _whole(machine, placement)
    return replace(device, cpus=placement.cpus) if device.kind == "cpu" else device


def _whole(machine: Machine, placement: Placement) -> Device:
    """The machine's device that a placement names; all its cores joined is one of them."""
    together = machine.all_cores()
    if together is not None and placement.device == together.name:
        return together
    try:
        return machine.device(placement.device)
    except DeviceError as error:
        raise PlanError(
            f"the plan needs a device that is absent: {error}; plan again for these, or give the "
            "machine that it was made for"
        ) from error


def _verify_pins(index: int, stage: Stage, graph: OpGraph) -> None:
    for name in stage.ops:
        pin = graph.find_op(name).pinned_to
        for placement in stage.placements:
            if pin is not None and placement.device != pin:
                raise PlanError(
                    f"op {name!r} is pinned to {pin!r} but stage {index} runs on "
                    f"{placement.device!r}; move the op or lift the pin"
                )


def assignment_of(plan: Plan, graph: OpGraph) -> tuple[int, ...]:
    """Stage of each op of `graph`.

    Raises
    ------
    PlanError
        If an op is missing, listed twice, or not in the graph.
    """
    ids = {op.name: op.id for op in graph.ops}
    stage_of = [-1] * len(ids)
    for index, stage in enumerate(plan.stages):
        if not stage.ops:
            raise PlanError(f"stage {index} has no ops; remove it")
        for name in stage.ops:
            if name not in ids:
                raise PlanError(
                    f"stage {index} lists op {name!r}, which the model does not have; "
                    f"its ops are {', '.join(list(ids)[:8])}{', ...' if len(ids) > 8 else ''}"
                )
            if stage_of[ids[name]] >= 0:
                raise PlanError(
                    f"op {name!r} is in stage {stage_of[ids[name]]} and again in stage {index}; "
                    "list each op once"
                )
            stage_of[ids[name]] = index
    lost = [op.name for op in graph.ops if stage_of[op.id] < 0]
    if lost:
        raise PlanError(
            f"{len(lost)} of {len(ids)} ops are in no stage, the first is {lost[0]!r}; add each to "
            "one"
        )
    return tuple(stage_of)
