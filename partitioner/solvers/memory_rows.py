"""Memory in the CP-SAT model: each stage's demand, added up by pool."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from partitioner.problem import Floats, Problem
from partitioner.solvers.linear import Linear

if TYPE_CHECKING:
    from partitioner.solvers.ilp import Model

__all__ = ["add_memory"]

_ROUNDING = 1e-9
# Sizes are whole bytes in practice and stay exact up to here; larger ones are scaled down.
_LARGEST = 1 << 44


def add_memory(model: Model) -> None:
    """Keep every pool that could overflow within its budget."""
    problem, units = model.problem, model.units
    demand = _most(problem)
    for pool in np.flatnonzero(problem.pool_bytes < demand * model.stages):
        budget = float(problem.pool_bytes[pool]) * (1 + _ROUNDING)
        scale = min(1.0, _LARGEST / max(budget, 1.0))
        limit = int(np.floor(budget * scale))
        options = [d for d in range(problem.n_options) if problem.pool_of[d] == pool]
        shares = []
        for stage in range(model.stages):
            share = model.cp.new_int_var(0, limit, f"memory_{pool}_{stage}")
            need = _need(model, stage, units.live_bytes, scale, limit)
            for d in options:
                model.cp.add(need <= share).only_enforce_if(model.on[stage][d])
            shares.append(share)
        model.cp.add(sum(shares) <= limit)


def _most(problem: Problem) -> float:
    """A stage never needs more than this."""
    return float(
        problem.constant_bytes.sum()
        + problem.live_bytes.max()
        + problem.queue_slots * problem.tensor_bytes.sum()
    )


def _need(model: Model, stage: int, live: Floats, scale: float, limit: int) -> Any:
    """Bytes of a stage; every term is rounded down and capped, so nothing feasible is lost."""

    def size(value: float) -> int:
        return int(min(np.floor(value * scale), limit + 1))

    problem, units, cp = model.problem, model.units, model.cp
    total = Linear()
    for unit, own in enumerate(units.constant_bytes):
        total.add(size(own), model.member(unit, stage))
    for value, readers in units.shared:
        held = cp.new_bool_var(f"holds_{stage}")
        for reader in readers:
            model.imply([(reader, stage)], [held])
        total.add(size(value), held)
    if live.any():
        largest = cp.new_int_var(0, limit + 1, f"live_{stage}")
        for unit, value in enumerate(live):
            if size(value):
                alive = Linear()
                alive.add(size(value), model.member(unit, stage))
                cp.add(alive.expression() <= largest)
        total.add(1, largest)
    for flow in units.flows if problem.queue_slots else ():
        entering = problem.queue_slots * size(float(problem.tensor_bytes[flow.tensor]))
        if flow.readers and entering:
            total.add(min(entering, limit + 1), model.transfers.enters(flow, stage))
    return total.expression()
