"""A plan and its compiled stages as the pipeline that runs them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from partitioner.graph import OpGraph
from partitioner.machine import Machine
from partitioner.plan import Placement, Plan
from partitioner.plan_check import assignment_of, device_for, stage_tensors
from partitioner.runtime.spec import (
    PipelineSpec,
    ReplicaSpec,
    RunnerSpec,
    StageSpec,
    TensorId,
    TensorSpec,
)

if TYPE_CHECKING:  # building loads a compiler, describing does not
    from partitioner.runtime.build import Built

__all__ = ["dispatch_pattern", "pipeline_spec"]

_LONGEST_PATTERN = 128


def pipeline_spec(
    plan: Plan, graph: OpGraph, machine: Machine, built: Sequence[Sequence[Built]]
) -> PipelineSpec:
    """Describe the workers of a plan.

    Parameters
    ----------
    plan : Plan
        Verified against `graph` and `machine`.
    graph : OpGraph
        The model.
    machine : Machine
        Its devices say which control group their stages' processes join.
    built : sequence of sequence of Built
        For each stage, for each of its placements, the compiled stage.
    """
    stages = []
    crossing: set[int] = {*graph.inputs, *graph.outputs}
    borders = stage_tensors(graph, assignment_of(plan, graph))
    for index, (stage, (entering, leaving)) in enumerate(zip(plan.stages, borders, strict=True)):
        crossing.update(entering, leaving)
        replicas = tuple(
            ReplicaSpec(
                cpus=placement.cpus,
                threads=max(1, len(placement.cpus)),
                runner=RunnerSpec("partitioner.runtime.executable:load", (str(compiled.path),)),
                cgroup=device_for(machine, placement).cgroup,
            )
            for placement, compiled in zip(stage.placements, built[index], strict=True)
        )
        stages.append(
            StageSpec(
                name=f"{stage.ops[0]}..{stage.ops[-1]}",
                replicas=replicas,
                inputs=entering,
                outputs=leaving,
                pattern=dispatch_pattern(stage.placements),
            )
        )
    tensors: dict[TensorId, TensorSpec] = {
        tensor: TensorSpec(
            graph.tensors[tensor].name, graph.tensors[tensor].shape, graph.tensors[tensor].dtype
        )
        for tensor in crossing
    }
    return PipelineSpec(tuple(stages), tensors, graph.inputs, graph.outputs)


def dispatch_pattern(placements: Sequence[Placement]) -> tuple[int, ...]:
    """Which replica takes which item of a repeating cycle, spread as evenly as shares allow.

    The cycle has the length, up to 128, whose whole-numbered parts fit the shares best; within it
    the replica that lags most behind its share comes next (smooth weighted round robin).
    """
    total = sum(placement.share for placement in placements)
    shares = [placement.share / total for placement in placements]

    def counts_for(length: int) -> list[int]:
        return [max(1, round(share * length)) for share in shares]

    def slowdown(length: int) -> float:
        counts = counts_for(length)
        return max(count / sum(counts) / share for count, share in zip(counts, shares, strict=True))

    lengths = range(len(shares), max(_LONGEST_PATTERN, len(shares)) + 1)
    counts = counts_for(min(lengths, key=lambda length: (round(slowdown(length), 9), length)))
    owed = [0] * len(counts)
    pattern = []
    for _ in range(sum(counts)):
        owed = [debt + count for debt, count in zip(owed, counts, strict=True)]
        following = max(range(len(counts)), key=lambda replica: owed[replica])
        owed[following] -= sum(counts)
        pattern.append(following)
    return tuple(pattern)
