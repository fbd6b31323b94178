"""One item's time where each stage runs one op at a time: the latency model ``list``.

Everything does one thing at a time, in the order of the ops: a stage runs its ops, a link or bus
carries tensors. A stage begins with its host time. Before an op it receives what the op is the
first there to read; after it, it sends what the op made, to one stage after another (or once, to a
memory that all can read), in the order in which the tensors are read there first, and to the caller
last. A tensor sets out on its link once it has been sent. The caller's own copying takes no time
here, as in the other models.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from partitioner.problem import Problem, TransferCost

__all__ = ["ListSchedule"]


class ListSchedule:
    """Times assignments of one problem by the latency model ``list``.

    Parameters
    ----------
    problem : Problem
        Ops in the order in which a stage runs them.
    """

    def __init__(self, problem: Problem) -> None:
        self._times = problem.time_s.tolist()
        self._host = problem.host_s.tolist()
        self._amount = problem.amount.tolist()
        self._to_caller = problem.to_caller.tolist()
        self._once = problem.send_once
        self._bus = problem.bus_of.tolist()
        self._send, self._recv, self._link = map(_Cost, (problem.send, problem.recv, problem.link))
        self._caller = (problem.n_options,)
        self._readers = [sorted(readers) for readers in problem.consumers]
        self._producer = problem.producer.tolist()
        # Model inputs are the last entry, which index -1 finds.
        self._made: list[list[int]] = [[] for _ in range(problem.n_ops + 1)]
        self._read: list[list[int]] = [[] for _ in range(problem.n_ops)]
        for tensor in sorted(range(problem.n_tensors), key=lambda t: (self._producer[t], t)):
            self._made[self._producer[tensor]].append(tensor)
            for reader in self._readers[tensor]:
                self._read[reader].append(tensor)

    def latency(self, stage_of: Sequence[int], options: Sequence[Sequence[int]]) -> float:
        """Seconds until everything is done and the last output is with the caller.

        Parameters
        ----------
        stage_of : sequence of int, length n_ops
            Stage of each op.
        options : sequence of sequences of int
            Options of each stage's replicas; each step takes as long as on the slowest of them.
        """
        ends = [*options, self._caller]
        caller = len(options)
        clock = [max(self._host[o] for o in each) for each in options]
        links: dict[tuple[int, ...], float] = {}
        arrived: dict[tuple[int, int], float] = {}
        last = 0.0
        for tensor in self._made[-1]:
            for stage in self._targets(tensor, caller, stage_of):
                arrived[tensor, stage] = self._carry(tensor, caller, stage, 0.0, ends, links)
        for op, stage in enumerate(stage_of):
            now = clock[stage]
            for tensor in self._read[op]:
                there = arrived.pop((tensor, stage), None)
                if there is not None:
                    maker = self._producer[tensor]
                    source = ends[stage_of[maker] if maker >= 0 else caller]
                    cost = self._recv.most(source, ends[stage], self._amount[tensor])
                    now = max(now, there) + cost
            times = self._times[op]
            now += max([times[o] for o in options[stage]])
            for tensor in self._made[op]:
                targets = list(self._targets(tensor, stage, stage_of))
                if self._to_caller[tensor]:
                    targets.append(caller)
                sends = [
                    self._send.most(ends[stage], ends[target], self._amount[tensor])
                    for target in targets
                ]
                if self._once:
                    now += max(sends, default=0.0)
                for target, cost in zip(targets, sends, strict=True):
                    now += 0.0 if self._once else cost
                    there = self._carry(tensor, stage, target, now, ends, links)
                    if target == caller:
                        last = max(last, there)
                    else:
                        arrived[tensor, target] = there
            clock[stage] = now
        return float(max(last, *clock))

    def _targets(self, tensor: int, source: int, stage_of: Sequence[int]) -> Iterator[int]:
        """Other stages that read a tensor, by their first reader."""
        return (
            stage
            for stage in dict.fromkeys(stage_of[reader] for reader in self._readers[tensor])
            if stage != source
        )

    def _carry(
        self,
        tensor: int,
        source: int,
        target: int,
        sent: float,
        ends: Sequence[Sequence[int]],
        links: dict[tuple[int, ...], float],
    ) -> float:
        """When a tensor that is sent at `sent` arrives."""
        if self._link.free:
            return sent
        amount = self._amount[tensor]
        cost, a, b = max(
            (self._link.seconds(a, b, amount), a, b) for a in ends[source] for b in ends[target]
        )
        if cost <= 0:
            return sent
        bus = self._bus[a][b]
        link = (bus,) if bus >= 0 else (a, b)
        links[link] = max(sent, links.get(link, 0.0)) + cost
        return links[link]


class _Cost:
    """A `TransferCost` as lists, which are quicker to read one by one."""

    def __init__(self, cost: TransferCost) -> None:
        self._base, self._unit = cost.base_s.tolist(), cost.per_unit_s.tolist()
        self.free = not (cost.base_s.any() or cost.per_unit_s.any())

    def seconds(self, source: int, target: int, amount: float) -> float:
        """As `TransferCost.seconds`."""
        seconds: float = self._base[source][target] + amount * self._unit[source][target]
        return seconds

    def most(self, sources: Sequence[int], targets: Sequence[int], amount: float) -> float:
        """The dearest between any two of the options."""
        if len(sources) == 1 and len(targets) == 1:
            # Nearly always; local search asks for nothing else, often.
            return self.seconds(sources[0], targets[0], amount)
        return max(self.seconds(a, b, amount) for a in sources for b in targets)
