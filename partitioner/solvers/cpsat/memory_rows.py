"""Memory in the CP-SAT model: each stage's demand, added up by pool or in all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from partitioner.problem import Problem
from partitioner.solvers.cpsat.linear import Linear
from partitioner.solvers.cpsat.scales import Scale, memory_scale

if TYPE_CHECKING:
    from partitioner.solvers.cpsat.model import Model

__all__ = ["add_memory", "total_memory"]


def add_memory(model: Model, bits: int) -> None:
    """Keep every pool that could overflow within its budget."""
    problem = model.problem
    pools = np.flatnonzero(problem.pool_bytes < _most(problem))
    scales = {p: memory_scale(problem, float(problem.pool_bytes[p]), bits) for p in pools}
    needs: dict[Scale, list[Linear]] = {}
    for pool, scale in scales.items():
        # Where sizes are exact, pools differ in their limit only and can share the rows.
        rows = max((s for s in scales.values() if s.unit == scale.unit), key=lambda s: s.most)
        if rows not in needs:
            needs[rows] = [_need(model, stage, rows) for stage in range(model.stages)]
        options = [d for d in range(problem.n_options) if problem.pool_of[d] == pool]
        demand = _demand(model, needs[rows], scale.most, options)
        model.cp.add(demand.expression() <= scale.most)


def total_memory(model: Model, scale: Scale) -> Linear:
    """Steps that all pools hold together."""
    needs = [_need(model, stage, scale) for stage in range(model.stages)]
    return _demand(model, needs, scale.most, list(range(model.problem.n_options)))


def _most(problem: Problem) -> float:
    """No pool is ever asked for more than this."""
    entering = np.array([len(readers) for readers in problem.consumers])
    stages = min(problem.max_stages, problem.n_ops)
    once = np.minimum(entering, stages) @ problem.tensor_bytes * problem.queue_slots
    read = np.array([min(len(set(ops)), stages) for ops in problem.constant_ops], dtype=float)
    live = stages * float(problem.live_bytes.max())
    return float(problem.replicas.max() * (once + read @ problem.constant_bytes + live))


def _demand(model: Model, needs: list[Linear], most: int, options: list[int]) -> Linear:
    """Steps that the stages on the given options hold, each replica for itself."""
    replicas = model.problem.replicas
    total = Linear()
    for stage, need in enumerate(needs):
        if not need:
            continue
        share = model.cp.new_int_var(0, most, f"memory_{stage}")
        for count in np.unique(replicas[options]):
            several = Linear()
            several.add(int(count), need)
            for d in options:
                if replicas[d] == count:
                    held = model.on[stage][d]
                    model.cp.add(several.expression() <= share).only_enforce_if(held)
        total.add(1, share)
    return total


def _need(model: Model, stage: int, scale: Scale) -> Linear:
    """Steps of one replica of a stage."""
    problem, units, cp = model.problem, model.units, model.cp
    total = model.weighted(scale.table(units.constant_bytes).tolist(), stage)
    for value, readers in units.shared:
        held: Any = cp.new_bool_var(f"holds_{stage}")
        for reader in readers:
            model.imply([(reader, stage)], [held])
        total.add(scale.steps(value), held)
    sizes = [scale.steps(float(value)) for value in units.live_bytes]
    if any(sizes):
        largest = cp.new_int_var(0, scale.most + 1, f"live_{stage}")
        for unit, size in enumerate(sizes):
            alive = Linear()
            alive.add(size, model.member(unit, stage))
            if size:
                cp.add(alive.expression() <= largest)
        total.add(1, largest)
    for flow in (*model.flows.inputs, *model.flows.moved) if problem.queue_slots else ():
        entering = problem.queue_slots * float(problem.tensor_bytes[flow.tensor])
        total.add(scale.steps(entering), model.flows.enters(flow, stage))
    return total
