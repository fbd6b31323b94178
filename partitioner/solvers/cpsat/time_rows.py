"""Period and latency in the CP-SAT model, each in steps of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from partitioner.problem import Ints, LatencyModel
from partitioner.solvers.cpsat.linear import Linear
from partitioner.solvers.cpsat.scales import Scale
from partitioner.solvers.cpsat.transfer_rows import Charges

if TYPE_CHECKING:
    from partitioner.solvers.cpsat.model import Model

__all__ = ["Side", "add_latency", "add_period"]


@dataclass(frozen=True, slots=True, eq=False)
class Side:
    """How one of the two is counted.

    Attributes
    ----------
    scale : Scale
        Its steps; `most` is its limit.
    replicas : array of int, shape (n_options,)
        What a stage's busy time is divided by.
    """

    scale: Scale
    replicas: Ints

    def steps(self, seconds: float, option: int) -> int:
        """Steps of a stage's own time on an option."""
        return self.scale.steps(seconds, int(self.replicas[option]))

    def over(self, seconds: float, option: int) -> bool:
        """Whether so much time on an option is above the limit by itself."""
        return self.steps(seconds, option) > self.scale.most


def add_period(model: Model, side: Side, goal: Any | None) -> None:
    """Keep stages, links, buses, the caller and host cores within the goal, or the limit."""
    most = side.scale.most if goal is None else goal
    charges = Charges(model, side.scale, side.replicas)
    groups = _groups(model, side, charges)
    for k in range(model.stages):
        for group in groups:
            _spend(model, side, charges, k, group, most)
    for load in charges.shared_loads():
        model.cp.add(load.expression() <= most)
    for load in _host_loads(model, side):
        model.cp.add(load.expression() <= most)


def add_latency(model: Model, side: Side, goal: Any | None) -> None:
    """Keep the latency, by the problem's model, within the goal, or the limit."""
    cp, most = model.cp, side.scale.most
    charges = Charges(model, side.scale, side.replicas)
    busy = [cp.new_int_var(0, most, f"busy_{k}") for k in range(model.stages)]
    groups = _groups(model, side, charges)
    for k in range(model.stages):
        for group in groups:
            _spend(model, side, charges, k, group, busy[k])
    end = most if goal is None else goal
    if model.problem.latency_model is LatencyModel.SERIAL:
        total = charges.link_delays()
        for each in busy:
            total.add(1, each)
        cp.add(total.expression() <= end)
        return
    # A stage starts when all its inputs are there and runs as a whole.
    start = [cp.new_int_var(0, most, f"start_{k}") for k in range(model.stages)]
    for k in range(model.stages):
        cp.add(start[k] + busy[k] <= end)
    for source, target, delay, when in charges.dependencies():
        ready = delay if source is None else start[source] + busy[source] + delay
        cp.add(ready <= (end if target is None else start[target])).only_enforce_if(when)


def _groups(model: Model, side: Side, charges: Charges) -> list[list[int]]:
    """Options on which any stage costs the same."""
    groups: dict[tuple[bytes, int, bytes], list[int]] = {}
    for d in range(model.problem.n_options):
        host = side.steps(float(model.problem.host_s[d]), d)
        key = (_own(model, side, d).tobytes(), host, charges.profile(d))
        groups.setdefault(key, []).append(d)
    return list(groups.values())


def _spend(
    model: Model, side: Side, charges: Charges, stage: int, group: list[int], most: Any
) -> None:
    """Keep op times, host time and transfers of a stage on one of the options within `most`."""
    total = charges.charged(stage, group[0])
    total.add(1, model.weighted(_own(model, side, group[0]).tolist(), stage))
    host = side.steps(float(model.problem.host_s[group[0]]), group[0])
    if len(group) < model.problem.n_options:
        total.constant += host
        here = model.on_any(stage, tuple(group))
        model.cp.add(total.expression() <= most).only_enforce_if(here)
    else:
        total.add(host, model.used[stage])
        model.cp.add(total.expression() <= most)


def _own(model: Model, side: Side, option: int) -> Ints:
    """Steps of the units on an option, shape (n_units,)."""
    steps = side.scale.table(model.units.time_s[:, option] / side.replicas[option])
    # What is above the limit is kept off the option elsewhere.
    steps[steps > side.scale.most] = 0
    return steps


def _host_loads(model: Model, side: Side) -> list[Linear]:
    """Steps that the stages take of each host core; replicas share items, not host time."""
    problem = model.problem
    loads = []
    for core in np.unique(problem.host_core[problem.host_core >= 0]):
        load = Linear()
        for d in np.flatnonzero(problem.host_core == core):
            for k in range(model.stages):
                load.add(side.scale.steps(float(problem.host_s[d])), model.on[k][d])
        loads.append(load)
    return [load for load in loads if load]
