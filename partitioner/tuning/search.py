"""The search on one device with one number of threads: which candidate is measured next."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol

from partitioner.errors import TuningError
from partitioner.lowering import Choice
from partitioner.tuning.database import LOST_S, Row
from partitioner.tuning.records import CONFIRMED, MARGIN
from partitioner.tuning.tasks import Task

__all__ = ["Measurer", "Search", "Write"]

_RULE = Choice()
_ROUNDS = 5
_CONFIRM_ROUNDS = 15
# So many candidates in a row without gain, and an op is left as it is.
_STALLED = 12
# What each of them takes from an op's claim to be next.
_PATIENCE = 0.9
# An op's own schedules are drawn from TVM's design space where it takes at least this part of the
# model's time; so many at a time.
_WORTH = 0.01
_SKETCHES = 8

Write = Callable[[Row, Task], None]
"""Keeps a row."""


class Measurer(Protocol):
    """What the search measures with; `partitioner.tuning.client.Client` is one."""

    batch: int
    """Candidates that are best measured at a time."""

    def __enter__(self) -> Measurer: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    def measure(
        self, task: Task, choices: Sequence[Choice], rounds: int, expected_s: float = 0.0
    ) -> Sequence[Sequence[float]]:
        """Seconds of a run for each choice, one a round; none for what cannot be measured."""

    def sketches(self, task: Task, count: int, seed: int, patience_s: float) -> Sequence[Choice]:
        """Schedules for the kernel that TVM itself makes of an op; none if it takes too long."""


@dataclass(slots=True)
class _State:
    """What is known of an op while it is tuned."""

    task: Task
    default_s: float
    candidates: Iterator[Choice]
    tried: set[Choice]
    first: Sequence[Choice]
    gains: dict[Choice, float] = field(default_factory=dict)
    rechecked: set[Choice] = field(default_factory=set)
    stale: int = 0
    done: bool = False
    written: bool = False

    @property
    def winner(self) -> Choice | None:
        """What beats the rule's kernel by most, of what was measured thoroughly."""
        best = max(self.gains, key=lambda choice: self.gains[choice], default=None)
        return best if best is not None and self.gains[best] > 1 + MARGIN else None

    @property
    def best(self) -> float:
        """The rule's time over the winner's, 1 if there is none."""
        return self.gains[self.winner] if self.winner is not None else 1.0

    @property
    def total_s(self) -> float:
        """What the best kernel so far takes of the model's time."""
        return self.task.calls * self.default_s / self.best

    @property
    def claim(self) -> float:
        """How much it deserves to be next."""
        return self.total_s * _PATIENCE**self.stale


@dataclass(slots=True)
class Search:
    """Tunes the ops of a model on one device with one number of threads.

    Time goes to the op that takes most of the model's time, less the more candidates in a row
    have brought it nothing. Every candidate is measured in turns with the rule's kernel, and one
    that seems to beat the best so far is at once measured again, thoroughly; so whatever ends the
    search, what it has found is kept.

    Attributes
    ----------
    threads : int
    measurer : Measurer
    write : callable
        Takes rows as they are found.
    until : float
        End of the search by `time.monotonic`; nothing that takes long is begun to end after it.
    seed : int
        Of the schedules drawn.
    known : mapping of str to sequence of Row
        What an earlier search found, by op, for this number of threads: is not measured again.
    first : mapping of str to sequence of Choice
        By op what is tried first, the likeliest in front, and measured thoroughly even if it
        loses: it won under other conditions, and would be taken here too.
    """

    threads: int
    measurer: Measurer
    write: Write
    until: float
    seed: int = 0
    known: Mapping[str, Sequence[Row]] = field(default_factory=dict)
    first: Mapping[str, Sequence[Choice]] = field(default_factory=dict)
    states: list[_State] = field(default_factory=list)
    measured: int = 0

    def begin(self, task: Task) -> None:
        """Measure the rules' kernel of an op, which from now on is a candidate for time.

        Raises
        ------
        TuningError
            If it cannot be measured.
        """
        self.states.append(self._state(task))

    def step(self) -> str | None:
        """Measure the next candidates of an op.

        Returns
        -------
        str or None
            The name of its op; None where no op has a candidate left.
        """
        while True:
            open_ = [state for state in self.states if not state.done]
            if not open_:
                return None
            state = max(open_, key=lambda one: one.claim)
            choices = self._next(state)
            if not choices:
                state.done = True
                continue
            self._try(state, choices)
            return state.task.name

    def recheck(self) -> str | None:
        """Measure an op's winner once more: the best of many was also the luckiest of them.

        Where it now loses, the next best takes its place, to be measured again in turn.

        Returns
        -------
        str or None
            The name of the op; None where all winners have stood it.
        """
        pending = [one for one in self.states if one.winner not in (None, *one.rechecked)]
        if not pending:
            return None
        state = max(pending, key=lambda one: one.task.calls * one.default_s * (1 - 1 / one.best))
        winner = state.winner
        assert winner is not None
        state.rechecked.add(winner)
        (found,) = self._at_pace(state, (winner,), _CONFIRM_ROUNDS)
        self._keep(state, winner, found or (LOST_S,))
        return state.task.name

    @property
    def speed(self) -> float:
        """Estimated time of the model by the rules' kernels over that by the best ones."""
        return sum(one.task.calls * one.default_s for one in self.states) / max(
            1e-12, sum(one.total_s for one in self.states)
        )

    @property
    def finished(self) -> int:
        """Ops that nothing more is tried for."""
        return sum(state.done for state in self.states)

    def _state(self, task: Task) -> _State:
        rows = self.known.get(task.op, ())
        default = [row.median_s for row in rows if row.choice == _RULE]
        if default:
            default_s = default[-1]
        else:
            (times,) = self.measurer.measure(task, (_RULE,), _ROUNDS)
            default_s = statistics.median(times)
        first = self.first.get(task.op, ())
        state = _State(
            task=task,
            default_s=default_s,
            candidates=iter(()),
            tried={row.choice for row in rows},
            first=first,
            written=bool(default),
        )
        state.candidates = self._candidates(state)
        for row in rows:
            if row.choice != _RULE and len(row.seconds) >= CONFIRMED:
                state.gains[row.choice] = default_s / row.median_s
        return state

    def _candidates(self, state: _State) -> Iterator[Choice]:
        task = state.task
        yield from state.first
        yield from (Choice(tile=tile) for tile in task.tiles)
        if task.tiles or task.calls * state.default_s < _WORTH * self._total_s():
            return
        for turn in itertools.count(1):
            # Other ones than an earlier search has drawn.
            seed = 1 + self.seed + len(state.tried) + turn
            left_s = max(0.0, self.until - time.monotonic())
            drawn = self.measurer.sketches(task, _SKETCHES, seed, left_s)
            # A small design space is soon drawn whole.
            new = [choice for choice in drawn if choice not in state.tried]
            if not new:
                return
            yield from new

    def _total_s(self) -> float:
        return sum(state.total_s for state in self.states)

    def _next(self, state: _State) -> list[Choice]:
        if state.stale >= _STALLED:
            return []
        new = (choice for choice in state.candidates if choice not in state.tried)
        return list(itertools.islice(new, self.measurer.batch))

    def _try(self, state: _State, choices: Sequence[Choice]) -> None:
        state.tried.update(choices)
        self.measured += len(choices)
        state.stale += len(choices)
        found = self._at_pace(state, choices, _ROUNDS)
        if not state.written:
            # Only now, so that a search without time for a candidate leaves nothing behind.
            self._write(state, _RULE, (state.default_s,))
            state.written = True
        gains = {}
        for choice, times in zip(choices, found, strict=True):
            median_s = statistics.median(times) if times else LOST_S
            self._write(state, choice, (median_s,))
            gains[choice] = state.default_s / median_s
        # The best first: the others have to beat it then.
        for choice in sorted(choices, key=lambda one: -gains[one]):
            known_elsewhere = choice in state.first and gains[choice] > state.default_s / LOST_S
            if known_elsewhere or gains[choice] > state.best * (1 + MARGIN):
                self._confirm(state, choice)

    def _confirm(self, state: _State, choice: Choice) -> None:
        (found,) = self._at_pace(state, (choice,), _CONFIRM_ROUNDS)
        if not found:
            return
        before = state.best
        self._keep(state, choice, found)
        if state.best > before * (1 + MARGIN):
            state.stale = 0

    def _keep(self, state: _State, choice: Choice, found: tuple[float, ...]) -> None:
        """Write what was measured thoroughly, and go by it."""
        # What is far behind is measured once; that it lost is certain all the same.
        seconds = found if len(found) >= CONFIRMED else found * CONFIRMED
        self._write(state, choice, seconds)
        state.gains[choice] = state.default_s / statistics.median(seconds)

    def _at_pace(
        self, state: _State, choices: Sequence[Choice], rounds: int
    ) -> list[tuple[float, ...]]:
        """Times of candidates at the pace at which the rule's kernel was first measured."""
        try:
            rule, *others = self.measurer.measure(
                state.task, (_RULE, *choices), rounds, expected_s=state.default_s
            )
        except TuningError:
            return [() for _ in choices]
        # One that is far behind has fewer.
        return [
            tuple(s / rule_s * state.default_s for rule_s, s in zip(rule, own, strict=False))
            for own in others
        ]

    def _write(self, state: _State, choice: Choice, seconds: tuple[float, ...]) -> None:
        self.write(Row(state.task.op, self.threads, choice, seconds), state.task)
