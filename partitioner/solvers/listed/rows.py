"""The CP-SAT model of the latency ``list``: a free problem's rows, and when everything happens.

A stage's order is that of its ops, so that nothing is left to decide but where each op is. A stage
has a chain of times, one after each op that can be there: no earlier than the one before, and no
earlier than the op's end and its sends, if it is there. That is the order without overlap, in as
many rows as there are ops and slots. A link has such a chain over its copies. All times are rounded
down, so that the model's bound is one of the problem.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from partitioner.problem import TransferCost
from partitioner.solvers.free.cpsat import FreeRows
from partitioner.solvers.free.model import FreeModel
from partitioner.solvers.listed.segments import Segment, segments

__all__ = ["ListRows"]

_CALLER = -1


@dataclass(frozen=True, slots=True)
class _Price:
    """What a copy costs in steps, and the link that it occupies (empty: none)."""

    send: int
    recv: int
    carry: int
    link: tuple[int, ...]


class ListRows(FreeRows):
    """Rows of a free model with a clock for each op, stage and link.

    Parameters
    ----------
    model : FreeModel
        Of the problem with the period for its objective: what each slot and link has to do in all
        is a bound on the latency too.
    quantum, cap, ordered
        As for `FreeRows`.
    """

    def __init__(self, model: FreeModel, quantum: float, cap: int, *, ordered: bool = True) -> None:
        super().__init__(model, quantum, cap, ordered=ordered)
        problem, units = model.problem, model.units
        self._quantum = quantum
        self._unit = {op: unit for unit, ops in enumerate(units.members) for op in ops}
        self._begins: list[Any] = []
        self._ends: list[Any] = []
        self._links: dict[tuple[int, ...], Any] = {}
        self._clock: list[Any] = [
            self._steps(float(problem.host_s[option])) for option in model.option_of
        ]
        # By tensor and reader: when it has arrived, the seconds of receiving it, and all it takes.
        self._arrived: dict[tuple[int, int], tuple[Any, Any, Any]] = {}
        made: list[list[int]] = [[] for _ in range(problem.n_ops + 1)]
        read: list[list[int]] = [[] for _ in range(problem.n_ops)]
        for tensor in sorted(range(problem.n_tensors), key=lambda t: (int(problem.producer[t]), t)):
            made[int(problem.producer[tensor])].append(tensor)
            for reader in problem.consumers[tensor]:
                read[reader].append(tensor)
        for tensor in made[-1]:
            self._leave(tensor, _CALLER, 0)
        for op in range(problem.n_ops):
            self._run(op, read[op], made[op])
        for segment in segments(problem):
            self._add_segment(segment)

    def _add_segment(self, segment: Segment) -> None:
        """What a slot runs in a segment takes no longer than the segment does."""
        problem, model = self.model.problem, self.model
        first = self._ends[segment.first] if segment.first >= 0 else 0
        last = self._begins[segment.last] if segment.last < problem.n_ops else self.goal
        for slot, option in enumerate(model.option_of):
            busy: Any = 0
            for op in segment.between:
                here = self.at[self._unit[op]][slot]
                if slot in model.slots_of[self._unit[op]]:
                    busy = busy + self._steps(float(problem.time_s[op, option])) * here
            self.cp.add(last >= first + busy)

    def _steps(self, seconds: float) -> int:
        return int(min(seconds / self._quantum, 2.0 * self.cap))

    def _time(self) -> Any:
        return self.cp.new_int_var(0, self.cap, "time")

    def _places(self, op: int) -> list[tuple[int, Any]]:
        """Slots where an op can be, each with its literal."""
        unit = self._unit[op]
        return [(slot, self.at[unit][slot]) for slot in self.model.slots_of[unit]]

    def _run(self, op: int, read: Sequence[int], made: Sequence[int]) -> None:
        """Receive what an op reads, run it, send what it makes."""
        cp, problem = self.cp, self.model.problem
        begin = self._time()
        receiving: Any = 0
        for tensor in reversed(read):
            maker = int(problem.producer[tensor])
            end = self._ends[maker] if maker >= 0 else 0
            if (tensor, op) in self._arrived:
                there, cost, whole = self._arrived[tensor, op]
                receiving = receiving + cost
                cp.add(begin >= there + receiving)
                # It follows, and the linear relaxation sees it.
                end = end + whole
            cp.add(begin >= end)
        spent: Any = 0
        for slot, here in self._places(op):
            cp.add(begin >= self._clock[slot] + receiving).only_enforce_if(here)
            seconds = float(problem.time_s[op, self.model.option_of[slot]])
            spent = spent + self._steps(seconds) * here
        end = begin + spent
        self._begins.append(begin)
        self._ends.append(end)
        for tensor in made:
            end = self._leave(tensor, op, end)
        cp.add(self.goal >= end)
        for slot, here in self._places(op):
            clock = self._time()
            cp.add(clock >= self._clock[slot])
            cp.add(clock >= end).only_enforce_if(here)
            self._clock[slot] = clock

    def _leave(self, tensor: int, maker: int, now: Any) -> Any:
        """Send a tensor wherever it is read; when the sending is over."""
        cp, problem = self.cp, self.model.problem
        copies = {reader: self._copies(tensor, maker, reader) for reader in self._readers(tensor)}
        if maker >= 0 and problem.to_caller[tensor]:
            copies[_CALLER] = self._returned(tensor, maker)
        if problem.send_once and any(p.send for each in copies.values() for p in each):
            sent = self._time()
            cp.add(sent >= now)
            for each in copies.values():
                for price, literals in each.items():
                    for literal in literals:
                        cp.add(sent >= now + price.send).only_enforce_if(literal)
            now = sent
        for reader, each in copies.items():
            received: Any = 0
            whole: Any = 0
            there = self._time()
            for price, literals in each.items():
                for literal in literals:
                    if not problem.send_once:
                        now = now + price.send * literal
                    received = received + price.recv * literal
                    whole = whole + (price.send + price.carry + price.recv) * literal
            for price, literals in each.items():
                for literal in literals:
                    self._carry(price, literal, now, there)
            if reader == _CALLER:
                cp.add(self.goal >= there)
            elif each:
                self._arrived[tensor, reader] = (there, received, whole)
        return now

    def _carry(self, price: _Price, literal: Any, sent: Any, there: Any) -> None:
        """A copy arrives some time after it was sent, and after what its link carried before."""
        cp = self.cp
        cp.add(there >= sent + price.carry).only_enforce_if(literal)
        if not price.link:
            return
        if price.link in self._links:
            before = self._links[price.link]
            cp.add(there >= before + price.carry).only_enforce_if(literal)
        self._links[price.link], before = self._time(), self._links.get(price.link, 0)
        cp.add(self._links[price.link] >= before)
        cp.add(self._links[price.link] >= there).only_enforce_if(literal)

    def _readers(self, tensor: int) -> list[int]:
        return sorted(self.model.problem.consumers[tensor])

    def _copies(self, tensor: int, maker: int, reader: int) -> dict[_Price, list[Any]]:
        """The copy to a reader's stage, if it is the first there to read the tensor."""
        readers = self._readers(tensor)
        earlier = {self._unit[other] for other in readers if other < reader}
        unit = self._unit[reader]
        source = self._unit[maker] if maker >= 0 else _CALLER
        found: dict[_Price, list[Any]] = {}
        if unit in earlier or unit == source:
            return found
        sources = self.model.slots_of[source] if maker >= 0 else (_CALLER,)
        for slot, here in self._places(reader):
            others = [self.at[u][slot] for u in earlier if slot in self.model.slots_of[u]]
            prices = {a: self._price(tensor, a, slot) for a in sources if a != slot}
            together = len(set(prices.values())) == 1
            for a, price in prices.items():
                if price not in found:
                    found[price] = [self.cp.new_bool_var("copied")]
                clause = [found[price][0], here.negated(), *others]
                if together:
                    if slot in sources:
                        clause.append(self.at[source][slot])
                    self.cp.add_bool_or(clause)
                    break
                self.cp.add_bool_or([*clause, self.at[source][a].negated()])
        return found

    def _returned(self, tensor: int, maker: int) -> dict[_Price, list[Any]]:
        """The copy of an output to the caller, from wherever it is made."""
        found: dict[_Price, list[Any]] = {}
        for slot, here in self._places(maker):
            found.setdefault(self._price(tensor, slot, _CALLER), []).append(here)
        return found

    def _price(self, tensor: int, source: int, target: int) -> _Price:
        problem, model = self.model.problem, self.model
        amount = float(problem.amount[tensor])
        a, b = (model.option_of[s] if s >= 0 else problem.n_options for s in (source, target))

        def steps(cost: TransferCost) -> int:
            return self._steps(cost.seconds(a, b, amount))

        link: tuple[int, ...] = ()
        if problem.link.seconds(a, b, amount) > 0:
            bus = int(problem.bus_of[a, b])
            link = (bus,) if bus >= 0 else (a, b)
        send = steps(problem.send) if source >= 0 else 0
        recv = steps(problem.recv) if target >= 0 else 0
        return _Price(send, recv, steps(problem.link), link)
