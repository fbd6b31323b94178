"""Transfers in the CP-SAT model: what stages, links, buses and the caller pay.

Most cost arrays do not tell one peer from another; then a stage pays for entering and leaving
tensors whoever is at the other end, which needs one Boolean a tensor and stage. Only what a pair
costs beyond the cheapest peer goes through Booleans of pairs of stages.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from partitioner.problem import TransferCost
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
            if flow.producer < 0 and len(flow.readers) == 1:
                self._memo[key] = model.member(flow.readers[0], stage)
            else:
                var = model.cp.new_bool_var(f"enters_{flow.tensor}_{stage}")
                here = 0 if flow.producer < 0 else model.reach[flow.producer][stage]
                for reader in flow.readers:
                    # The producer is never later, so that reaching this stage means being in it.
                    model.cp.add(var >= model.member(reader, stage) - here)
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
            made = model.member(flow.producer, stage)
            for reader in flow.readers:
                model.cp.add(var >= made + model.reach[reader][stage + 1] - 1)
            self._memo[key] = var
        return self._memo[key]

    def _hop(self, flow: Flow, source: int, target: int) -> Any:
        """At least 1 when the tensor goes from stage to stage."""
        key = ("hop", flow.tensor, source, target)
        if key not in self._memo:
            model = self._model
            var = model.cp.new_bool_var(f"hop_{flow.tensor}_{source}_{target}")
            made = model.member(flow.producer, source)
            for reader in flow.readers:
                model.cp.add(var >= made + model.member(reader, target) - 1)
            self._memo[key] = var
        return self._memo[key]

    def _pair(self, source: int, target: int, a: int, b: int) -> tuple[Any, Any]:
        """Literals that together say: the stages run on these options."""
        return self._model.on[source][a], self._model.on[target][b]

    def _pairs(self) -> Iterator[tuple[int, int]]:
        stages = range(self._model.stages)
        return ((k, later) for k in stages for later in stages if later > k)

    def _beside(self, a: int, b: int) -> bool:
        return bool(np.all(self._p.uses[a] + self._p.uses[b] <= self._p.capacity))

    # Costs --------------------------------------------------------------------------------

    def _cost(self, cost: TransferCost, a: int, b: int, flow: Flow) -> float:
        return cost.seconds(a, b, float(self._p.amount[flow.tensor]))

    def _steps(self, cost: TransferCost, a: int, b: int, flow: Flow) -> int:
        return self._model.steps(self._cost(cost, a, b, flow))

    def _least(self, cost: TransferCost, option: int, flow: Flow, *, out: bool) -> int:
        """Steps with the cheapest peer that can stand beside `option`."""
        peers = [other for other in range(self._caller) if self._beside(option, other)]
        ends = [(option, peer) if out else (peer, option) for peer in peers]
        return min((self._steps(cost, a, b, flow) for a, b in ends), default=0)

    def charged(self, stage: int, option: int) -> Any:
        """Steps of all transfers charged to a stage on an option."""
        return self._received(stage, option) + self._sent(stage, option)

    def _received(self, stage: int, option: int) -> Any:
        recv = self._p.recv
        total: Any = 0
        for flow in self._inputs:
            steps = self._steps(recv, self._caller, option, flow)
            if steps:
                total = total + steps * self.enters(flow, stage)
        for flow in self._moved:
            steps = self._least(recv, option, flow, out=False)
            if steps and stage:
                total = total + steps * self.enters(flow, stage)
        for source in range(stage):
            for a in range(self._caller):
                extra = self._excess(recv, source, stage, a, option, out=False)
                total = total + extra
        return total

    def _sent(self, stage: int, option: int) -> Any:
        send, model = self._p.send, self._model
        total: Any = 0
        for flow in self._outputs:
            if not (self._p.send_once and flow.readers):
                steps = self._steps(send, option, self._caller, flow)
                if steps:
                    total = total + steps * model.member(flow.producer, stage)
        for flow in self._moved:
            if self._p.send_once:
                total = total + self._sent_once(flow, stage, option)
            else:
                total = total + self._sent_each(flow, stage, option)
        if not self._p.send_once:
            for target in range(stage + 1, model.stages):
                for b in range(self._caller):
                    total = total + self._excess(send, stage, target, option, b, out=True)
        return total

    def _sent_each(self, flow: Flow, stage: int, option: int) -> Any:
        steps = self._least(self._p.send, option, flow, out=True)
        if not steps:
            return 0
        if len(flow.readers) == 1:
            return steps * self._leaves(flow, stage)
        later = range(stage + 1, self._model.stages)
        return steps * sum(self._hop(flow, stage, target) for target in later)

    def _sent_once(self, flow: Flow, stage: int, option: int) -> Any:
        """The dearest of a tensor's sends."""
        send, model = self._p.send, self._model
        least = self._least(send, option, flow, out=True)
        peers = [b for b in range(self._caller) if self._beside(option, b)]
        costs = {b: self._steps(send, option, b, flow) for b in peers}
        caller = self._steps(send, option, self._caller, flow) if flow.to_caller else 0
        if caller <= least and max(costs.values(), default=0) == least:
            total = least * self._leaves(flow, stage) if least else 0
            if caller:
                # Pay the caller's part always and the rest when another stage reads it too.
                total = (least - caller) * self._leaves(flow, stage)
                total = total + caller * model.member(flow.producer, stage)
            return total
        paid = model.cp.new_int_var(0, model.cap, f"sent_{flow.tensor}_{stage}_{option}")
        here = model.on[stage][option]
        if caller:
            made = model.member(flow.producer, stage)
            model.cp.add(paid >= min(caller, model.cap) * made).only_enforce_if(here)
        for target in range(stage + 1, model.stages):
            for b, steps in costs.items():
                if steps:
                    hop = self._hop(flow, stage, target)
                    model.cp.add(paid >= min(steps, model.cap) * hop).only_enforce_if(
                        self._pair(stage, target, option, b)
                    )
        return paid

    def _excess(
        self, cost: TransferCost, source: int, target: int, a: int, b: int, *, out: bool
    ) -> Any:
        """Steps between two stages on options beyond those of the cheapest peer."""
        if not self._beside(a, b):
            return 0
        own = a if out else b
        terms = []
        for flow in self._moved:
            steps = self._steps(cost, a, b, flow) - self._least(cost, own, flow, out=out)
            if steps > 0:
                terms.append(steps * self._hop(flow, source, target))
        return self._when_paired(terms, source, target, a, b)

    def _when_paired(self, terms: list[Any], source: int, target: int, a: int, b: int) -> Any:
        """A variable that is at least the sum of terms when the stages run on these options."""
        if not terms:
            return 0
        model = self._model
        total = model.cp.new_int_var(0, model.cap, f"pair_{source}_{target}_{a}_{b}")
        model.cp.add(sum(terms) <= total).only_enforce_if(self._pair(source, target, a, b))
        return total

    # Links, buses, the caller ------------------------------------------------------------

    def shared_loads(self) -> Iterator[Any]:
        """Load of the caller and of each link and bus, in steps."""
        loads: dict[object, list[Any]] = {}
        caller: list[Any] = []
        for flow in self._inputs:
            caller += self._caller_sends(flow)
        for flow in self._outputs:
            caller += self._per_option(flow, self._p.recv, to_caller=True)
        for (a, b), term in self._link_terms():
            bus = int(self._p.bus_of[a, b])
            loads.setdefault(bus if bus >= 0 else (a, b), []).append(term)
        for terms in (caller, *loads.values()):
            if terms:
                yield sum(terms)

    def _caller_sends(self, flow: Flow) -> list[Any]:
        model = self._model
        terms = self._per_option(flow, self._p.send, to_caller=False)
        if not self._p.send_once or len(terms) < 2:
            return terms
        dearest = model.cp.new_int_var(0, model.cap, f"input_{flow.tensor}")
        for term in terms:
            model.cp.add(dearest >= term)
        return [dearest]

    def _per_option(self, flow: Flow, cost: TransferCost, *, to_caller: bool) -> list[Any]:
        """What a tensor from or to the caller costs with each stage, by the stage's option."""
        model, caller = self._model, self._caller
        terms = []
        for stage in range(model.stages):
            there = model.member(flow.producer, stage) if to_caller else self.enters(flow, stage)
            steps = [
                self._steps(cost, d, caller, flow)
                if to_caller
                else self._steps(cost, caller, d, flow)
                for d in range(caller)
            ]
            if max(steps) == min(steps):
                if steps[0]:
                    terms.append(steps[0] * there)
                continue
            paid = model.cp.new_int_var(0, model.cap, f"caller_{flow.tensor}_{stage}")
            for d, each in enumerate(steps):
                if each:
                    model.cp.add(paid >= min(each, model.cap + 1) * there).only_enforce_if(
                        model.on[stage][d]
                    )
            terms.append(paid)
        return terms

    def _link_terms(self) -> Iterator[tuple[tuple[int, int], Any]]:
        """Steps on each link, by the options at its ends (the caller is the last)."""
        link, model, caller = self._p.link, self._model, self._caller
        for source, target in self._pairs():
            for a in range(caller):
                for b in range(caller):
                    if not self._beside(a, b):
                        continue
                    terms = [
                        steps * self._hop(flow, source, target)
                        for flow in self._moved
                        if (steps := self._steps(link, a, b, flow))
                    ]
                    if terms:
                        yield (a, b), self._when_paired(terms, source, target, a, b)
        for stage in range(model.stages):
            for d in range(caller):
                into = [
                    steps * self.enters(flow, stage)
                    for flow in self._inputs
                    if (steps := self._steps(link, caller, d, flow))
                ]
                back = [
                    steps * model.member(flow.producer, stage)
                    for flow in self._outputs
                    if (steps := self._steps(link, d, caller, flow))
                ]
                for ends, terms in (((caller, d), into), ((d, caller), back)):
                    if terms:
                        total = model.cp.new_int_var(0, model.cap, f"link_{stage}_{d}")
                        model.cp.add(sum(terms) <= total).only_enforce_if(model.on[stage][d])
                        yield ends, total

    def link_delays(self) -> Iterator[Any]:
        """Steps on links, to add up for a serial latency."""
        return (term for _, term in self._link_terms())

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
                    for reader in flow.readers if steps else ():
                        here = model.member_var[reader][stage]
                        yield None, stage, steps, [here, model.on[stage][d]]
                for flow in self._outputs:
                    steps = self._steps(link, d, caller, flow)
                    if steps:
                        made = model.member_var[flow.producer][stage]
                        yield stage, None, steps, [made, model.on[stage][d]]
