"""Transfers in the CP-SAT model: what stages, links, buses and the caller pay.

Most cost arrays do not tell one peer from another; then a stage pays for entering and leaving
tensors whoever is at the other end, which needs one Boolean a tensor and stage. Only what a pair
costs beyond the cheapest peer goes through Booleans of pairs of stages.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from partitioner.problem import Ints, Problem, TransferCost
from partitioner.solvers.bounds import hangs_on_both_ends
from partitioner.solvers.cpsat.linear import Linear
from partitioner.solvers.cpsat.scales import Scale
from partitioner.solvers.reduce import Flow, beside

if TYPE_CHECKING:
    from partitioner.solvers.cpsat.model import Model

__all__ = ["Charges", "tells_pairs_apart"]


def tells_pairs_apart(problem: Problem) -> bool:
    """Whether what a transfer costs, with the caller too, hangs on both its ends."""
    links = bool(problem.link.base_s.any() or problem.link.per_unit_s.any())
    return links or hangs_on_both_ends(problem)


class Charges:
    """Transfers in the steps of one scale.

    Parameters
    ----------
    model, scale
        The model and the steps.
    replicas : array of int, shape (n_options,)
        What a stage's own costs are divided by: its replicas where they share items.
    """

    def __init__(self, model: Model, scale: Scale, replicas: Ints) -> None:
        self._model, self._scale = model, scale
        self._p, self._flows = model.problem, model.flows
        self._caller = self._p.n_options
        self._fits = beside(self._p)
        shares = np.append(replicas, 1)
        self._send = self._table(self._p.send, shares[:, None])
        self._recv = self._table(self._p.recv, shares[None, :])
        self._link = self._table(self._p.link, np.ones((1, 1), dtype=np.int64))
        self._least_send = self._least(self._send, axis=2)
        self._least_recv = self._least(self._recv, axis=1)
        dearer = self._send[:, :-1, :-1] > self._least_send[:, :, None]
        dearer |= self._recv[:, :-1, :-1] > self._least_recv[:, None, :]
        self._apart = bool((self._fits & dearer).any())

    def profile(self, option: int) -> bytes:
        """Equal for options on which a stage's transfers cost the same."""
        if self._apart:
            return option.to_bytes(4, "little")
        columns = (
            self._send[:, option, self._caller],
            self._recv[:, self._caller, option],
            self._least_send[:, option],
            self._least_recv[:, option],
        )
        return b"".join(column.tobytes() for column in columns)

    def _table(self, cost: TransferCost, shares: Ints) -> Ints:
        """Steps of every tensor between all ends, shape (n_tensors, n_options + 1 twice)."""
        amount = self._p.amount[:, None, None]
        return self._scale.table((cost.base_s + amount * cost.per_unit_s) / shares)

    def _least(self, table: Ints, axis: int) -> Ints:
        """Steps with the cheapest peer that can stand beside, shape (n_tensors, n_options)."""
        far = np.iinfo(np.int64).max
        least = np.where(self._fits, table[:, :-1, :-1], far).min(axis=axis)
        return np.where(least == far, 0, least)

    def _pair(self, source: int, target: int, a: int, b: int) -> list[Any]:
        """Literals that together say: the stages run on these options."""
        return [self._model.on[source][a], self._model.on[target][b]]

    def charged(self, stage: int, option: int) -> Linear:
        """Steps of all transfers charged to a stage on an option."""
        total = Linear()
        self._received(total, stage, option)
        self._sent(total, stage, option)
        return total

    def _received(self, total: Linear, stage: int, option: int) -> None:
        for flow in self._flows.inputs:
            steps = int(self._recv[flow.tensor, self._caller, option])
            if steps:
                total.add(steps, self._flows.enters(flow, stage))
        for flow in self._flows.moved if stage else ():
            steps = int(self._least_recv[flow.tensor, option])
            if steps:
                total.add(steps, self._flows.enters(flow, stage))
        for source in range(stage):
            for a in range(self._caller):
                extra = self._recv[:, a, option] - self._least_recv[:, option]
                total.add(1, self._excess(extra, source, stage, a, option))

    def _sent(self, total: Linear, stage: int, option: int) -> None:
        model = self._model
        for flow in self._flows.outputs:
            if not (self._p.send_once and flow.readers):
                steps = int(self._send[flow.tensor, option, self._caller])
                total.add(steps, model.member(flow.producer, stage))
        for flow in self._flows.moved:
            if self._p.send_once:
                self._sent_once(total, flow, stage, option)
            else:
                self._sent_each(total, flow, stage, option)
        if not self._p.send_once:
            for target in range(stage + 1, model.stages):
                for b in range(self._caller):
                    extra = self._send[:, option, b] - self._least_send[:, option]
                    total.add(1, self._excess(extra, stage, target, option, b))

    def _sent_each(self, total: Linear, flow: Flow, stage: int, option: int) -> None:
        steps = int(self._least_send[flow.tensor, option])
        if steps and len(flow.readers) == 1:
            total.add(steps, self._flows.leaves(flow, stage))
        elif steps:
            for target in range(stage + 1, self._model.stages):
                total.add(steps, self._flows.hop(flow, stage, target))

    def _sent_once(self, total: Linear, flow: Flow, stage: int, option: int) -> None:
        """The dearest of a tensor's sends."""
        model = self._model
        least = int(self._least_send[flow.tensor, option])
        peers = [b for b in range(self._caller) if self._fits[option, b]]
        costs = {b: int(self._send[flow.tensor, option, b]) for b in peers}
        caller = int(self._send[flow.tensor, option, self._caller]) if flow.to_caller else 0
        if max(costs.values(), default=0) == least:
            # The caller's part is always paid, the rest when another stage reads it too.
            if caller:
                total.add(caller, model.member(flow.producer, stage))
            if least > caller:
                total.add(least - caller, self._flows.leaves(flow, stage))
            return
        paid = model.cp.new_int_var(0, self._scale.most, f"sent_{flow.tensor}_{stage}_{option}")
        here = model.on[stage][option]
        if caller:
            self._at_least(paid, caller, model.member(flow.producer, stage), [here])
        for target in range(stage + 1, model.stages):
            for b, steps in costs.items():
                if steps:
                    literals = self._pair(stage, target, option, b)
                    self._at_least(paid, steps, self._flows.hop(flow, stage, target), literals)
        total.add(1, paid)

    def _at_least(self, paid: Any, steps: int, when: Any, literals: list[Any]) -> None:
        """`paid` is at least `steps` when the 0/1 item is 1 and all literals hold."""
        demand = Linear()
        demand.add(steps, when)
        self._model.cp.add(demand.expression() <= paid).only_enforce_if(literals)

    def _excess(self, extra: Ints, source: int, target: int, a: int, b: int) -> Any:
        """Steps that tensors cost between two stages on options beyond the cheapest peer."""
        terms = Linear()
        if self._fits[a, b] and extra.any():
            for flow in self._flows.moved:
                if extra[flow.tensor]:
                    terms.add(int(extra[flow.tensor]), self._flows.hop(flow, source, target))
        return self._when(terms, self._pair(source, target, a, b))

    def _when(self, terms: Linear, literals: list[Any]) -> Any:
        """A variable that is at least the sum when all literals hold."""
        if not terms:
            return 0
        model = self._model
        total = model.cp.new_int_var(0, self._scale.most, "when")
        model.cp.add(terms.expression() <= total).only_enforce_if(literals)
        return total

    # Links, buses, the caller ------------------------------------------------------------

    def shared_loads(self) -> Iterator[Linear]:
        """Load of the caller and of each link and bus, in steps."""
        caller = Linear()
        for flow in self._flows.inputs:
            caller.add(1, self._caller_sends(flow))
        for flow in self._flows.outputs:
            for term in self._per_option(flow, self._recv, to_caller=True):
                caller.add(1, term)
        loads: dict[object, Linear] = {"caller": caller}
        for (a, b), term in self._link_terms():
            bus = int(self._p.bus_of[a, b])
            loads.setdefault(bus if bus >= 0 else (a, b), Linear()).add(1, term)
        return (load for load in loads.values() if load)

    def _caller_sends(self, flow: Flow) -> Any:
        """What the caller pays to hand out a model input."""
        model = self._model
        terms = self._per_option(flow, self._send, to_caller=False)
        if self._p.send_once and len(terms) > 1:
            dearest = model.cp.new_int_var(0, self._scale.most, f"input_{flow.tensor}")
            for term in terms:
                model.cp.add(term.expression() <= dearest)
            return dearest
        total = Linear()
        for term in terms:
            total.add(1, term)
        return total

    def _per_option(self, flow: Flow, cost: Ints, *, to_caller: bool) -> list[Linear]:
        """What a tensor from or to the caller costs with each stage, by the stage's option."""
        model, caller = self._model, self._caller
        terms = []
        for stage in range(model.stages):
            there = (
                model.member(flow.producer, stage) if to_caller else self._flows.enters(flow, stage)
            )
            ends = [(d, caller) if to_caller else (caller, d) for d in range(caller)]
            steps = [int(cost[flow.tensor, a, b]) for a, b in ends]
            term = Linear()
            term.add(min(steps), there)
            if max(steps) > min(steps):
                extra = model.cp.new_int_var(0, self._scale.most, f"caller_{flow.tensor}_{stage}")
                for d, each in enumerate(steps):
                    if each > min(steps):
                        self._at_least(extra, each - min(steps), there, [model.on[stage][d]])
                term.add(1, extra)
            if term:
                terms.append(term)
        return terms

    def _link_terms(self) -> Iterator[tuple[tuple[int, int], Any]]:
        """Steps on each link, by the options at its ends (the caller is the last)."""
        model, caller = self._model, self._caller
        if not self._link.any():
            return
        for source, target in self._flows.pairs():
            for a in range(caller):
                for b in range(caller):
                    if not self._fits[a, b]:
                        continue
                    moved = Linear()
                    for flow in self._flows.moved:
                        steps = int(self._link[flow.tensor, a, b])
                        if steps:
                            moved.add(steps, self._flows.hop(flow, source, target))
                    yield (a, b), self._when(moved, self._pair(source, target, a, b))
        for stage in range(model.stages):
            for d in range(caller):
                into, back = Linear(), Linear()
                for flow in self._flows.inputs:
                    steps = int(self._link[flow.tensor, caller, d])
                    if steps:
                        into.add(steps, self._flows.enters(flow, stage))
                for flow in self._flows.outputs:
                    steps = int(self._link[flow.tensor, d, caller])
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
        model, caller = self._model, self._caller
        options = range(caller)
        for source, target in self._flows.pairs():
            for flow in self._flows.moved:
                hop = self._flows.hop(flow, source, target)
                yield source, target, 0, [hop]
                for a in options:
                    for b in options:
                        steps = int(self._link[flow.tensor, a, b])
                        if steps and self._fits[a, b]:
                            yield source, target, steps, [hop, *self._pair(source, target, a, b)]
        for stage in range(model.stages):
            for d in options:
                for flow in self._flows.inputs:
                    steps = int(self._link[flow.tensor, caller, d])
                    if steps:
                        yield (
                            None,
                            stage,
                            steps,
                            [self._flows.enters(flow, stage), model.on[stage][d]],
                        )
                for flow in self._flows.outputs:
                    steps = int(self._link[flow.tensor, d, caller])
                    if steps:
                        yield (
                            stage,
                            None,
                            steps,
                            [self._flows.made(flow, stage), model.on[stage][d]],
                        )
