"""Transfers in the CP-SAT model: what stages, links, buses and the caller pay.

Most cost arrays do not tell one peer from another; then a stage pays for entering and leaving
tensors whoever is at the other end, which needs one Boolean a tensor and stage. Only what a pair
costs beyond the cheapest peer goes through Booleans of pairs of stages.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from partitioner.problem import Ints, TransferCost
from partitioner.solvers.linear import Linear
from partitioner.solvers.reduce import Flow

if TYPE_CHECKING:
    from partitioner.solvers.ilp import Model

__all__ = ["Transfers"]


class Transfers:
    """Adds transfer variables to a model on demand."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._p = model.problem
        self._caller = self._p.n_options
        self._memo: dict[tuple[Any, ...], Any] = {}
        uses, capacity = self._p.uses, self._p.capacity
        self._fits = np.all(uses[:, None] + uses[None, :] <= capacity, axis=2)
        flows = model.units.flows
        self._inputs = [flow for flow in flows if flow.producer < 0]
        self._moved = [flow for flow in flows if flow.producer >= 0 and flow.readers]
        self._outputs = [flow for flow in flows if flow.to_caller]

    # Booleans -----------------------------------------------------------------------------

    def enters(self, flow: Flow, stage: int) -> Any:
        """At least 1 when the tensor enters the stage."""
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

    def _leaves(self, flow: Flow, stage: int) -> Any:
        """At least 1 when the tensor is made in the stage and read in a later one."""
        key = ("leaves", flow.tensor, stage)
        if key not in self._memo:
            model = self._model
            if stage + 1 == model.stages:
                return 0
            var = model.cp.new_bool_var(f"leaves_{flow.tensor}_{stage}")
            for reader in flow.readers:
                later = model.reach[reader][stage + 1]
                model.imply([(flow.producer, stage)], [var, later.negated()])
            self._memo[key] = var
        return self._memo[key]

    def _made(self, flow: Flow, stage: int) -> Any:
        """At least 1 when the tensor is made in the stage."""
        key = ("made", flow.tensor, stage)
        if key not in self._memo:
            model = self._model
            self._memo[key] = model.cp.new_bool_var(f"made_{flow.tensor}_{stage}")
            model.imply([(flow.producer, stage)], [self._memo[key]])
        return self._memo[key]

    def _hop(self, flow: Flow, source: int, target: int) -> Any:
        """At least 1 when the tensor goes from stage to stage."""
        key = ("hop", flow.tensor, source, target)
        if key not in self._memo:
            model = self._model
            var = model.cp.new_bool_var(f"hop_{flow.tensor}_{source}_{target}")
            for reader in flow.readers:
                model.imply([(flow.producer, source), (reader, target)], [var])
            self._memo[key] = var
        return self._memo[key]

    def _pair(self, source: int, target: int, a: int, b: int) -> list[Any]:
        """Literals that together say: the stages run on these options."""
        return [self._model.on[source][a], self._model.on[target][b]]

    def _pairs(self) -> Iterator[tuple[int, int]]:
        stages = range(self._model.stages)
        return ((k, later) for k in stages for later in stages if later > k)

    def _beside(self, a: int, b: int) -> bool:
        return bool(self._fits[a, b])

    # Costs --------------------------------------------------------------------------------

    def _steps(self, cost: TransferCost, a: int, b: int, flow: Flow) -> int:
        return int(self._table(cost)[flow.tensor, a, b])

    def _table(self, cost: TransferCost) -> Ints:
        """Steps of every tensor between all ends, shape (n_tensors, n_options + 1 twice)."""
        key = ("table", id(cost))
        if key not in self._memo:
            model = self._model
            amount = self._p.amount[:, None, None]
            steps = (cost.base_s + amount * cost.per_unit_s) / model.quantum_s
            self._memo[key] = np.minimum(steps, model.cap + 1).astype(np.int64)
        table: Ints = self._memo[key]
        return table

    def _leasts(self, cost: TransferCost, *, out: bool) -> Ints:
        """Steps with the cheapest peer that can stand beside, shape (n_tensors, n_options)."""
        key = ("least", id(cost), out)
        if key not in self._memo:
            table = self._table(cost)[:, :-1, :-1]
            far = np.iinfo(np.int64).max
            least = np.where(self._fits, table, far).min(axis=2 if out else 1)
            self._memo[key] = np.where(least == far, 0, least)
        least_steps: Ints = self._memo[key]
        return least_steps

    def _least(self, cost: TransferCost, option: int, flow: Flow, *, out: bool) -> int:
        return int(self._leasts(cost, out=out)[flow.tensor, option])

    def charged(self, stage: int, option: int) -> Linear:
        """Steps of all transfers charged to a stage on an option."""
        total = self._received(stage, option)
        total.add(1, self._sent(stage, option))
        return total

    def _received(self, stage: int, option: int) -> Linear:
        recv = self._p.recv
        total = Linear()
        for flow in self._inputs:
            steps = self._steps(recv, self._caller, option, flow)
            if steps:
                total.add(steps, self.enters(flow, stage))
        for flow in self._moved if stage else ():
            steps = self._least(recv, option, flow, out=False)
            if steps:
                total.add(steps, self.enters(flow, stage))
        for source in range(stage):
            for a in range(self._caller):
                total.add(1, self._excess(recv, source, stage, a, option, out=False))
        return total

    def _sent(self, stage: int, option: int) -> Linear:
        send, model = self._p.send, self._model
        total = Linear()
        for flow in self._outputs:
            if not (self._p.send_once and flow.readers):
                steps = self._steps(send, option, self._caller, flow)
                total.add(steps, model.member(flow.producer, stage))
        for flow in self._moved:
            if self._p.send_once:
                total.add(1, self._sent_once(flow, stage, option))
            else:
                total.add(1, self._sent_each(flow, stage, option))
        if not self._p.send_once:
            for target in range(stage + 1, model.stages):
                for b in range(self._caller):
                    total.add(1, self._excess(send, stage, target, option, b, out=True))
        return total

    def _sent_each(self, flow: Flow, stage: int, option: int) -> Linear:
        total = Linear()
        steps = self._least(self._p.send, option, flow, out=True)
        if steps and len(flow.readers) == 1:
            total.add(steps, self._leaves(flow, stage))
        elif steps:
            for target in range(stage + 1, self._model.stages):
                total.add(steps, self._hop(flow, stage, target))
        return total

    def _sent_once(self, flow: Flow, stage: int, option: int) -> Linear:
        """The dearest of a tensor's sends."""
        send, model = self._p.send, self._model
        total = Linear()
        least = self._least(send, option, flow, out=True)
        peers = [b for b in range(self._caller) if self._beside(option, b)]
        costs = {b: self._steps(send, option, b, flow) for b in peers}
        caller = self._steps(send, option, self._caller, flow) if flow.to_caller else 0
        if caller <= least and max(costs.values(), default=0) == least:
            # The caller's part is always paid, the rest when another stage reads it too.
            if caller:
                total.add(caller, model.member(flow.producer, stage))
            if least > caller:
                total.add(least - caller, self._leaves(flow, stage))
            return total
        paid = model.cp.new_int_var(0, model.cap, f"sent_{flow.tensor}_{stage}_{option}")
        here = model.on[stage][option]
        if caller:
            self._at_least(paid, caller, model.member(flow.producer, stage), [here])
        for target in range(stage + 1, model.stages):
            for b, steps in costs.items():
                if steps:
                    literals = self._pair(stage, target, option, b)
                    self._at_least(paid, steps, self._hop(flow, stage, target), literals)
        total.add(1, paid)
        return total

    def _at_least(self, paid: Any, steps: int, when: Any, literals: list[Any]) -> None:
        """`paid` is at least `steps` when the 0/1 item is 1 and all literals hold."""
        demand = Linear()
        demand.add(steps, when)
        self._model.cp.add(demand.expression() <= paid).only_enforce_if(literals)

    def _excess(
        self, cost: TransferCost, source: int, target: int, a: int, b: int, *, out: bool
    ) -> Any:
        """Steps between two stages on options beyond those of the cheapest peer."""
        if not self._beside(a, b):
            return 0
        extra = self._table(cost)[:, a, b] - self._leasts(cost, out=out)[:, a if out else b]
        terms = Linear()
        if extra.any():
            for flow in self._moved:
                steps = int(extra[flow.tensor])
                if steps:
                    terms.add(steps, self._hop(flow, source, target))
        return self._when(terms, self._pair(source, target, a, b))

    def _when(self, terms: Linear, literals: list[Any]) -> Any:
        """A variable that is at least the sum when all literals hold."""
        if not terms:
            return 0
        model = self._model
        total = model.cp.new_int_var(0, model.cap, "when")
        model.cp.add(terms.expression() <= total).only_enforce_if(literals)
        return total

    # Links, buses, the caller ------------------------------------------------------------

    def shared_loads(self) -> Iterator[Linear]:
        """Load of the caller and of each link and bus, in steps."""
        caller = Linear()
        for flow in self._inputs:
            caller.add(1, self._caller_sends(flow))
        for flow in self._outputs:
            for term in self._per_option(flow, self._p.recv, to_caller=True):
                caller.add(1, term)
        loads: dict[object, Linear] = {"caller": caller}
        for (a, b), term in self._link_terms():
            bus = int(self._p.bus_of[a, b])
            loads.setdefault(bus if bus >= 0 else (a, b), Linear()).add(1, term)
        return (load for load in loads.values() if load)

    def _caller_sends(self, flow: Flow) -> Any:
        """What the caller pays to hand out a model input."""
        model = self._model
        terms = self._per_option(flow, self._p.send, to_caller=False)
        if self._p.send_once and len(terms) > 1:
            dearest = model.cp.new_int_var(0, model.cap, f"input_{flow.tensor}")
            for term in terms:
                model.cp.add(term.expression() <= dearest)
            return dearest
        total = Linear()
        for term in terms:
            total.add(1, term)
        return total

    def _per_option(self, flow: Flow, cost: TransferCost, *, to_caller: bool) -> list[Linear]:
        """What a tensor from or to the caller costs with each stage, by the stage's option."""
        model, caller = self._model, self._caller
        terms = []
        for stage in range(model.stages):
            there = model.member(flow.producer, stage) if to_caller else self.enters(flow, stage)
            ends = [(d, caller) if to_caller else (caller, d) for d in range(caller)]
            steps = [self._steps(cost, a, b, flow) for a, b in ends]
            term = Linear()
            term.add(min(steps), there)
            if max(steps) > min(steps):
                extra = model.cp.new_int_var(0, model.cap, f"caller_{flow.tensor}_{stage}")
                for d, each in enumerate(steps):
                    if each > min(steps):
                        self._at_least(extra, each - min(steps), there, [model.on[stage][d]])
                term.add(1, extra)
            if term:
                terms.append(term)
        return terms

    def _link_terms(self) -> Iterator[tuple[tuple[int, int], Any]]:
        """Steps on each link, by the options at its ends (the caller is the last)."""
        link, model, caller = self._p.link, self._model, self._caller
        if not self._table(link).any():
            return
        for source, target in self._pairs():
            for a in range(caller):
                for b in range(caller):
                    if not self._beside(a, b):
                        continue
                    moved = Linear()
                    for flow in self._moved:
                        steps = self._steps(link, a, b, flow)
                        if steps:
                            moved.add(steps, self._hop(flow, source, target))
                    yield (a, b), self._when(moved, self._pair(source, target, a, b))
        for stage in range(model.stages):
            for d in range(caller):
                into, back = Linear(), Linear()
                for flow in self._inputs:
                    steps = self._steps(link, caller, d, flow)
                    if steps:
                        into.add(steps, self.enters(flow, stage))
                for flow in self._outputs:
                    steps = self._steps(link, d, caller, flow)
                    if steps:
                        back.add(steps, model.member(flow.producer, stage))
                yield (caller, d), self._when(into, [model.on[stage][d]])
                yield (d, caller), self._when(back, [model.on[stage][d]])

    def link_delays(self) -> Linear:
        """Steps on all links, for a serial latency."""
        total = Linear()
        for _, term in self._link_terms():
            total.add(1, term)
        return total

    def dependencies(self) -> Iterator[tuple[int | None, int | None, int, list[Any]]]:
        """(source stage, target stage, delay, literals): the target waits when all literals hold.

        None is the caller.
        """
        model, link, caller = self._model, self._p.link, self._caller
        options = range(caller)
        for source, target in self._pairs():
            for flow in self._moved:
                hop = self._hop(flow, source, target)
                yield source, target, 0, [hop]
                for a in options:
                    for b in options:
                        steps = self._steps(link, a, b, flow)
                        if steps and self._beside(a, b):
                            yield source, target, steps, [hop, *self._pair(source, target, a, b)]
        for stage in range(model.stages):
            for d in options:
                for flow in self._inputs:
                    steps = self._steps(link, caller, d, flow)
                    if steps:
                        yield None, stage, steps, [self.enters(flow, stage), model.on[stage][d]]
                for flow in self._outputs:
                    steps = self._steps(link, d, caller, flow)
                    if steps:
                        yield stage, None, steps, [self._made(flow, stage), model.on[stage][d]]
