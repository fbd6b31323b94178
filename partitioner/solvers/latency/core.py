"""Units that need no decision, set aside before the search over downsets.

*Gifts* cost nothing on an option of which there is no end, nor do their results, and they need
nothing but each other: there they are at time zero, which is as good as anywhere.

*Loose ends* take no time there and feed nobody. One that is not with its producer may just as well
be there, as soon as the producer is done; so either it takes memory beside its producer or its
producer pays to send. The search forgets both, which makes it a relaxation; `Core.assignment`
places them again, with the producer while there is room.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from partitioner.problem import Bools, Problem
from partitioner.solvers.latency.rules import Rules
from partitioner.solvers.reduce import Assignment, Flow, Units, stages_of

__all__ = ["Core", "make_core"]


@dataclass(frozen=True, slots=True, eq=False)
class Core:
    """What is left to decide.

    Attributes
    ----------
    units : Units
        The units that are left.
    kept : tuple of int
        Their numbers among all units.
    gifts : tuple of int
        Units set aside as gifts, in order.
    loose : tuple of (int, int)
        Loose ends, each with its producer.
    option : int
        Where gifts go, and loose ends that leave their producers; -1 without either.
    """

    units: Units
    kept: tuple[int, ...]
    gifts: tuple[int, ...]
    loose: tuple[tuple[int, int], ...]
    option: int

    def assignment(
        self, problem: Problem, whole: Units, stages: Sequence[int], options: Sequence[int]
    ) -> Assignment:
        """Stages of all ops, from those of the core's units.

        Parameters
        ----------
        problem, whole
            The problem and all of its units.
        stages : sequence of int, length n_core_units
            Stage of each unit of the core, numbered along the edges.
        options : sequence of int
            Option of each of these stages.
        """
        stage_of = dict(zip(self.kept, stages, strict=True))
        away = self._away(problem, whole, stage_of, options)
        chain: list[tuple[int, list[int]]] = [(self.option, [unit]) for unit in self.gifts]
        for stage, option in enumerate(options):
            chain.append((option, [u for u, s in stage_of.items() if s == stage]))
            ends = [end for end, producer in self.loose if stage_of[producer] == stage]
            chain[-1][1].extend(end for end in ends if end not in away)
            chain += [(self.option, [end]) for end in ends if end in away]
        place = {unit: s for s, (_, units) in enumerate(chain) for unit in units}
        ops = stages_of(whole, [place[unit] for unit in range(len(whole))])
        return ops, tuple((option,) for option, _ in chain)

    def _away(
        self,
        problem: Problem,
        whole: Units,
        stage_of: dict[int, int],
        options: Sequence[int],
    ) -> set[int]:
        """Loose ends that do not stay with their producers."""
        crossing = {
            flow.producer
            for flow in whole.flows
            if flow.producer in stage_of
            and any(
                stage_of.get(r, stage_of[flow.producer]) != stage_of[flow.producer]
                for r in flow.readers
            )
        }
        away: set[int] = set()
        for stage, option in enumerate(options):
            ends = [end for end in self.loose if stage_of[end[1]] == stage]
            if not np.isfinite(whole.time_s[[end for end, _ in ends], option]).all():
                away.update(end for end, _ in ends if not np.isfinite(whole.time_s[end, option]))
            held = [u for u, s in stage_of.items() if s == stage]
            limit = problem.pool_bytes[problem.pool_of[option]] / problem.replicas[option]
            free = limit - whole.constant_bytes[held].sum()
            # Those whose producers send in any case go first, then the largest.
            ends.sort(key=lambda end: (end[1] not in crossing, -whole.constant_bytes[end[0]]))
            for end, _ in ends:
                staying = [e for e, _ in ends if e not in away]
                if whole.time_s[staying, option].sum() == 0 and (
                    whole.constant_bytes[staying].sum() <= free
                ):
                    break
                away.add(end)
        return away


def make_core(problem: Problem, whole: Units, rules: Rules, share: float) -> Core:
    """Set aside what needs no decision.

    Parameters
    ----------
    problem, whole, rules
        The problem, its units and their rules.
    share : float
        Largest share of the least memory of a stage that a loose end may take to be set aside.
    """
    spare = [kind for kind in rules.kinds if kind.single]
    option = spare[0].options[0] if spare else -1
    if not spare:
        return Core(whole, tuple(range(len(whole))), (), (), option)
    free = whole.time_s[:, option] == 0
    gifts = tuple(_gifts(problem, whole, free))
    least = min((kind.most_bytes for kind in rules.kinds if not kind.single), default=0.0)
    small = whole.constant_bytes <= share * least if share else whole.constant_bytes <= 0
    loose = tuple(_loose(whole, free & small, set(gifts)))
    gone = {*gifts, *(end for end, _ in loose)}
    kept = tuple(unit for unit in range(len(whole)) if unit not in gone)
    if not kept:
        return Core(whole, tuple(range(len(whole))), (), (), option)
    return Core(_restricted(whole, kept), kept, gifts, loose, option)


def _gifts(problem: Problem, whole: Units, free: Bools) -> Iterator[int]:
    """Units that are there at time zero for nothing."""
    costly = {
        flow.producer
        for flow in whole.flows
        if problem.amount[flow.tensor] > 0 or problem.queue_slots or flow.to_caller
    }
    fixed = any(cost.base_s.any() for cost in (problem.send, problem.recv))
    found: set[int] = set()
    for unit, feeds in enumerate(_feeds(whole)):
        if free[unit] and unit not in costly and not fixed and feeds <= found:
            found.add(unit)
            yield unit


def _loose(whole: Units, free: Bools, gifts: set[int]) -> Iterator[tuple[int, int]]:
    """Units without time, results or shared constants, with the one unit that feeds them."""
    makers = {flow.producer for flow in whole.flows}
    sharing = {unit for _, readers in whole.shared for unit in readers}
    for unit, feeds in enumerate(_feeds(whole)):
        alone = unit not in makers and unit not in sharing and whole.live_bytes[unit] == 0
        if free[unit] and alone and len(feeds) == 1 and -1 not in feeds and not feeds & gifts:
            yield unit, feeds.pop()


def _feeds(whole: Units) -> list[set[int]]:
    """Producers of what each unit reads; -1 is the caller."""
    found: list[set[int]] = [set() for _ in range(len(whole))]
    for flow in whole.flows:
        for reader in flow.readers:
            found[reader].add(flow.producer)
    return found


def _restricted(whole: Units, kept: Sequence[int]) -> Units:
    """The units kept, renumbered, and what is between them."""
    number = {unit: i for i, unit in enumerate(kept)}
    flows = []
    for flow in whole.flows:
        if flow.producer >= 0 and flow.producer not in number:
            continue
        readers = tuple(number[r] for r in flow.readers if r in number)
        if readers or flow.to_caller:
            producer = number.get(flow.producer, -1)
            flows.append(Flow(flow.tensor, producer, readers, flow.to_caller))
    rows = list(kept)
    shared = tuple(
        (size, tuple(number[r] for r in readers if r in number)) for size, readers in whole.shared
    )
    return replace(
        whole,
        members=tuple(whole.members[unit] for unit in kept),
        time_s=whole.time_s[rows],
        live_bytes=whole.live_bytes[rows],
        constant_bytes=whole.constant_bytes[rows],
        shared=tuple((size, readers) for size, readers in shared if readers),
        flows=tuple(flows),
        before=tuple(tuple(number[b] for b in whole.before[unit] if b in number) for unit in kept),
    )
