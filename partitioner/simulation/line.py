"""What is simulated: a plan's workers, what joins them, and how long an item keeps each busy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from partitioner.cost import build_problem, options_of
from partitioner.errors import PlanError, ProfileError
from partitioner.evaluation import evaluate
from partitioner.graph import OpGraph
from partitioner.machine import Machine
from partitioner.plan import Placement, Plan, Stage
from partitioner.plan_check import assignment_of, device_for, stage_tensors, verify_plan
from partitioner.problem import Evaluation
from partitioner.profiling.table import Handover, ProfileTable
from partitioner.runtime.deploy import dispatch_pattern
from partitioner.runtime.spec import (
    PipelineSpec,
    ReplicaSpec,
    RunnerSpec,
    StageSpec,
    TensorId,
    TensorSpec,
)

__all__ = ["Line", "Service"]

# Rounding when a plan's latency is compared with the sum of its stages'.
_ROUNDING = 1e-9
_NO_RUNNER = RunnerSpec("nothing runs in a simulation")


@dataclass(frozen=True, slots=True)
class Service:
    """Seconds that an item keeps one replica busy.

    Attributes
    ----------
    run_s : float
        From its inputs being there until its outputs are made.
    send_s : float
        Copying them into the consumers' queues, once there is room.
    """

    run_s: float
    send_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Line:
    """A pipeline as the simulator sees it.

    Attributes
    ----------
    spec : PipelineSpec
        Stages, replicas with their cores, dispatch patterns, and the tensors between them; its
        runners are never loaded.
    devices : tuple of tuple of str
        For each stage, the device of each replica.
    services : tuple of tuple of Service
        For each stage, what an item costs each replica.
    caller_in_s, caller_out_s : float
        Seconds in which the caller copies an item's inputs in, and its outputs out.
    notes : tuple of str
        What was assumed because the plan alone does not say it.
    """

    spec: PipelineSpec
    devices: tuple[tuple[str, ...], ...]
    services: tuple[tuple[Service, ...], ...]
    caller_in_s: float = 0.0
    caller_out_s: float = 0.0
    notes: tuple[str, ...] = ()

    @staticmethod
    def of(plan: Plan, graph: OpGraph | None = None) -> Line:
        """A plan with its own predicted busy times.

        Parameters
        ----------
        plan : Plan
            With predicted figures.
        graph : OpGraph, optional
            The model: who reads which tensor. Without it each stage feeds the next one alone.

        Raises
        ------
        PlanError
            If the plan was edited and has no times, or does not fit the graph.
        """
        services = tuple(
            tuple(_predicted(index, placement) for placement in stage.placements)
            for index, stage in enumerate(plan.stages)
        )
        spec = _chain(plan) if graph is None else _wired(plan, graph)
        notes = _assumptions(plan) if graph is None else ()
        # Who copies how much in and out is not in a plan, unless it is what sets the period.
        predicted = plan.predicted
        at_caller = predicted is not None and predicted.bottleneck == "caller"
        caller_s = predicted.period_s if predicted is not None and at_caller else 0.0
        return Line(spec, _devices(plan), services, caller_in_s=caller_s, notes=notes)

    @staticmethod
    def priced(plan: Plan, graph: OpGraph, machine: Machine, table: ProfileTable) -> Line:
        """A plan, edited or not, with busy times from a profile.

        Raises
        ------
        PlanError
            If the plan does not fit the graph or the machine.
        ProfileError
            If a time or the hand-over's cost is missing.
        """
        verify_plan(plan, graph, machine)
        problem = build_problem(graph, table, machine)
        kinds = [(option.name, option.threads) for option in options_of(machine)]
        placements = []
        for index, stage in enumerate(plan.stages):
            parts = [device_for(machine, placement) for placement in stage.placements]
            if unknown := [part for part in parts if (part.name, part.threads) not in kinds]:
                raise PlanError(
                    f"stage {index} has {unknown[0].threads} cores of {unknown[0].name!r}, which "
                    "are not priced; simulate it with the plan's own times, or change the number"
                )
            placements.append([kinds.index((part.name, part.threads)) for part in parts])
        evaluation = evaluate(problem, assignment_of(plan, graph), placements)
        if table.handover is None:
            raise ProfileError("the profile has no hand-over cost; profile again")
        spec = _wired(plan, graph)
        into, out = _caller(spec, table.handover)
        return Line(spec, _devices(plan), _scored(evaluation), into, out)


def _predicted(index: int, placement: Placement) -> Service:
    """All of the busy time before the hand-over: a plan does not say which copies are its sends."""
    if placement.busy_s is None:
        raise PlanError(
            f"stage {index} has no predicted time, for the plan was edited; give it to `plan` with "
            "a profile, which predicts it again, or price it with one (Line.priced)"
        )
    return Service(placement.busy_s)


def _scored(evaluation: Evaluation) -> tuple[tuple[Service, ...], ...]:
    return tuple(
        tuple(Service(one - out, out) for one, out in zip(busy, send, strict=True))
        for busy, send in zip(evaluation.busy_s, evaluation.send_s, strict=True)
    )


def _devices(plan: Plan) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(p.device for p in stage.placements) for stage in plan.stages)


def _assumptions(plan: Plan) -> tuple[str, ...]:
    """What a chain of stages may get wrong, where the plan shows that it does."""
    predicted = plan.predicted
    if predicted is None or predicted.latency_model != "atomic":
        return ()
    in_a_row = sum(max(p.busy_s or 0.0 for p in stage.placements) for stage in plan.stages)
    if predicted.latency_s >= in_a_row * (1 - _ROUNDING):
        return ()
    return (
        "stages are taken as a chain, but some of this plan's run side by side: latencies come "
        "out too long; give the model too",
    )


def _stage(stage: Stage, into: Sequence[TensorId], out: Sequence[TensorId]) -> StageSpec:
    replicas = tuple(
        # What drives an accelerator counts as a core.
        ReplicaSpec(placement.cpus or (0,), max(1, len(placement.cpus)), _NO_RUNNER)
        for placement in stage.placements
    )
    name = f"{stage.ops[0]}..{stage.ops[-1]}"
    return StageSpec(name, replicas, tuple(into), tuple(out), dispatch_pattern(stage.placements))


def _chain(plan: Plan) -> PipelineSpec:
    """Every stage feeds the next: one tensor each, as large as all that enters the next."""
    count = len(plan.stages)
    stages = tuple(_stage(stage, (index,), (index + 1,)) for index, stage in enumerate(plan.stages))
    sizes = [stage.in_bytes or 0.0 for stage in plan.stages] + [plan.stages[-1].out_bytes or 0.0]
    tensors: dict[TensorId, TensorSpec] = {
        index: TensorSpec(f"into stage {index}", (int(size),), "uint8")
        for index, size in enumerate(sizes)
    }
    return PipelineSpec(stages, tensors, (0,), (count,))


def _wired(plan: Plan, graph: OpGraph) -> PipelineSpec:
    """Tensors as the graph has them."""
    borders = stage_tensors(graph, assignment_of(plan, graph))
    stages = tuple(
        _stage(stage, *border) for stage, border in zip(plan.stages, borders, strict=True)
    )
    crossing = {*graph.inputs, *graph.outputs, *(t for ends in borders for b in ends for t in b)}
    tensors: dict[TensorId, TensorSpec] = {
        tensor: TensorSpec(
            graph.tensors[tensor].name, graph.tensors[tensor].shape, graph.tensors[tensor].dtype
        )
        for tensor in crossing
    }
    return PipelineSpec(stages, tensors, graph.inputs, graph.outputs)


def _caller(spec: PipelineSpec, handover: Handover) -> tuple[float, float]:
    """Seconds an item of the caller: copying in, once for each stage that reads; copying out."""
    entering = [
        spec.tensors[tensor].nbytes
        for stage in spec.stages
        for tensor in stage.inputs
        if tensor in spec.inputs
    ]
    leaving = [
        spec.tensors[tensor].nbytes for tensor in set(spec.outputs) if tensor not in spec.inputs
    ]
    into = sum(handover.send_base_s + handover.send_s_per_byte * size for size in entering)
    out = sum(handover.recv_base_s + handover.recv_s_per_byte * size for size in leaving)
    return into, out
