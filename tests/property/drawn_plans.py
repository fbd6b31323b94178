"""Seeded random plans with the graph, machine and times they are for."""

from __future__ import annotations

import random
from dataclasses import dataclass

from partitioner.cost import build_problem, options_of
from partitioner.evaluation import evaluate
from partitioner.graph import Op, OpGraph, Tensor
from partitioner.host import HostInfo
from partitioner.machine import Device, Machine
from partitioner.plan import Plan
from partitioner.planning import Choice, make_plan
from partitioner.problem import Evaluation, Solution
from partitioner.profiling.table import Handover, Measurement, OpKey, Origin, ProfileTable

CORES = 4
"""Of each cluster."""


@dataclass(frozen=True)
class DrawnPlan:
    """A plan and what it was made from."""

    plan: Plan
    graph: OpGraph
    machine: Machine
    table: ProfileTable
    evaluation: Evaluation


def drawn_plan(seed: int, *, unequal: bool = False) -> DrawnPlan:
    """One to five stages on as many clusters, each with one to three equal replicas.

    Parameters
    ----------
    seed : int
        Of everything.
    unequal : bool
        Whether the first stage has two replicas on different clusters instead.
    """
    chance = random.Random(seed)
    stages = chance.randint(1, 5)
    graph, stage_of = _graph(chance, stages)
    devices = tuple(
        Device(f"c{d}", cpus=tuple(range(CORES * d, CORES * (d + 1)))) for d in range(stages + 1)
    )
    machine = Machine("drawn", devices)
    options = options_of(machine)
    table = _table(chance, graph, options)
    placements = []
    for stage in range(stages):
        replicas = 1 if unequal and stage == 0 else chance.randint(1, 3)
        cores = chance.randint(1, CORES // replicas)
        name = f"c{stage}"
        option = [(o.name, o.threads) for o in options].index((name, cores))
        placements.append([option] * replicas)
    if unequal:
        extra = [(o.name, o.threads) for o in options].index((f"c{stages}", chance.randint(1, 4)))
        placements[0].append(extra)
    problem = build_problem(graph, table, machine)
    evaluation = evaluate(problem, stage_of, placements)
    assert not evaluation.violations
    solution = Solution(tuple(stage_of), tuple(map(tuple, placements)), evaluation)
    plan = make_plan(graph, machine, table, problem, Choice(solution, 0.0, ()))
    return DrawnPlan(plan, graph, machine, table, evaluation)


def _graph(chance: random.Random, stages: int) -> tuple[OpGraph, list[int]]:
    """Ops along random forward edges; the stages are numbered along them."""
    count = stages + chance.randint(0, 5)
    stage_of = sorted([*range(stages), *(chance.randrange(stages) for _ in range(count - stages))])
    tensors = [Tensor(0, "x", None, _readers(chance, 0, count) or (0,), (8,), "float32", 32)]
    for op in range(count):
        readers = _readers(chance, op + 1, count)
        size = chance.randint(1, 64)
        tensors.append(Tensor(op + 1, f"t{op}", op, readers, (size,), "float32", 4 * size))
    some = {t.id for t in tensors[1:] if not t.consumers or chance.random() < 0.1}
    graph = OpGraph(
        name="drawn",
        ops=tuple(Op(i, f"op{i}", "any", (), f"k{i}") for i in range(count)),
        tensors=tuple(tensors),
        constants=(),
        inputs=(0,),
        outputs=tuple(sorted(some)),
    )
    return graph, stage_of


def _readers(chance: random.Random, first: int, count: int) -> tuple[int, ...]:
    later = range(first, count)
    return tuple(sorted(chance.sample(later, min(len(later), chance.choice([0, 1, 1, 1, 2, 3])))))


def _table(chance: random.Random, graph: OpGraph, options: tuple[Device, ...]) -> ProfileTable:
    host = HostInfo(cpu="drawn", arch="none", system="none", cores=1, features="none")
    return ProfileTable(
        origin=Origin(host=host, tvm="0", lowering="0"),
        ops={
            OpKey(op.signature, option.name, option.threads): Measurement(
                chance.uniform(0.5e-3, 3e-3)
            )
            for op in graph.ops
            for option in options
        },
        host_s={(option.name, option.threads): chance.uniform(0, 1e-5) for option in options},
        handover=Handover(
            chance.uniform(0, 2e-4), chance.uniform(0, 1e-6), chance.uniform(0, 2e-4), 1e-7
        ),
    )
