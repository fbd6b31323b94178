"""Which tensors enter, leave and cross stages, as Booleans of the CP-SAT model.

They are only bounded from below by the placement, for every cost pushes them down.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from partitioner.solvers.cpsat.linear import Linear
from partitioner.solvers.reduce import Flow

if TYPE_CHECKING:
    from partitioner.solvers.cpsat.model import Model

__all__ = ["Flows"]


class Flows:
    """Adds the Booleans to a model on demand.

    Attributes
    ----------
    inputs, moved, outputs : list of Flow
        Tensors that come from the caller, may go between stages, and go to the caller.
    """

    def __init__(self, model: Model) -> None:
        self._model = model
        self._memo: dict[tuple[Any, ...], Any] = {}
        flows = model.units.flows
        self.inputs = [flow for flow in flows if flow.producer < 0]
        self.moved = [flow for flow in flows if flow.producer >= 0 and flow.readers]
        self.outputs = [flow for flow in flows if flow.to_caller]

    def enters(self, flow: Flow, stage: int) -> Any:
        """At least 1 when the tensor enters the stage."""
        if flow.producer >= 0 and stage == 0:
            return 0
        key = ("enters", flow.tensor, stage)
        if key not in self._memo:
            model = self._model
            var = model.cp.new_bool_var(f"enters_{flow.tensor}_{stage}")
            # A producer is never later than its readers: one that reaches the stage is in it.
            here = [model.reach[flow.producer][stage]] if flow.producer >= 0 else []
            for reader in flow.readers:
                model.imply([(reader, stage)], [var, *here])
            self._memo[key] = var
        return self._memo[key]

    def leaves(self, flow: Flow, stage: int) -> Any:
        """At least 1 when the tensor is made in the stage and read in a later one."""
        model = self._model
        if stage + 1 == model.stages:
            return 0
        key = ("leaves", flow.tensor, stage)
        if key not in self._memo:
            var = model.cp.new_bool_var(f"leaves_{flow.tensor}_{stage}")
            for reader in flow.readers:
                later = model.reach[reader][stage + 1]
                model.imply([(flow.producer, stage)], [var, later.negated()])
            self._memo[key] = var
        return self._memo[key]

    def made(self, flow: Flow, stage: int) -> Any:
        """At least 1 when the tensor is made in the stage."""
        key = ("made", flow.tensor, stage)
        if key not in self._memo:
            model = self._model
            self._memo[key] = model.cp.new_bool_var(f"made_{flow.tensor}_{stage}")
            model.imply([(flow.producer, stage)], [self._memo[key]])
        return self._memo[key]

    def hop(self, flow: Flow, source: int, target: int) -> Any:
        """At least 1 when the tensor goes from stage to stage."""
        key = ("hop", flow.tensor, source, target)
        if key not in self._memo:
            model = self._model
            var = model.cp.new_bool_var(f"hop_{flow.tensor}_{source}_{target}")
            for reader in flow.readers:
                model.imply([(flow.producer, source), (reader, target)], [var])
            self._memo[key] = var
        return self._memo[key]

    def copies(self) -> Linear:
        """Number of tensors moved, once for each stage that reads them."""
        total = Linear()
        for flow in self.moved:
            for stage in range(1, self._model.stages):
                total.add(1, self.enters(flow, stage))
        return total

    def pairs(self) -> Iterator[tuple[int, int]]:
        """Stages that something can go between."""
        stages = range(self._model.stages)
        return ((k, later) for k in stages for later in stages if later > k)
