"""What tuning has found, by op, kind of CPU and number of threads."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from partitioner.errors import TuningError
from partitioner.lowering import Choice
from partitioner.lowering.isa import kind_of
from partitioner.tuning.database import Row, folders, read

__all__ = ["CONFIRMED", "MARGIN", "Kept", "Records", "kept_of"]

CONFIRMED = 5
"""So many times in a row of the database say that it was measured thoroughly."""

MARGIN = 0.02
"""By so much a kernel must beat the rule's to be taken: less is noise."""


@dataclass(frozen=True, slots=True)
class Kept:
    """What is known of an op on a number of threads.

    Attributes
    ----------
    choice : Choice or None
        None where nothing beats the rule's kernel.
    gain : float
        Time of the rule's kernel over that of the choice; 1 where that is None.
    tried : frozenset of Choice
        All that was measured here, the choice included.
    """

    choice: Choice | None
    gain: float
    tried: frozenset[Choice]


def kept_of(rows: Iterable[Row]) -> dict[str, dict[int, Kept]]:
    """The best of each op and number of threads, where anything was measured thoroughly.

    A row counts against the last row of the rule's kernel before it, and of two rows of one choice
    the later.

    Parameters
    ----------
    rows : iterable of Row
        In the order of writing.
    """
    default_s: dict[tuple[str, int], float] = {}
    gains: dict[tuple[str, int], dict[Choice, float]] = {}
    tried: dict[tuple[str, int], set[Choice]] = {}
    for row in rows:
        key = (row.op, row.threads)
        if row.choice == Choice():
            default_s[key] = row.median_s
            continue
        tried.setdefault(key, set()).add(row.choice)
        if len(row.seconds) >= CONFIRMED and key in default_s:
            gains.setdefault(key, {})[row.choice] = default_s[key] / row.median_s
    found: dict[str, dict[int, Kept]] = {}
    for key, by_choice in gains.items():
        best, gain = max(by_choice.items(), key=lambda pair: pair[1])
        wins = gain > 1 + MARGIN
        kept = Kept(best if wins else None, gain if wins else 1.0, frozenset(tried[key]))
        found.setdefault(key[0], {})[key[1]] = kept
    return found


@dataclass(frozen=True, slots=True)
class Records:
    """A view of a folder of records: how the kernels of ops are made where the rules are beaten.

    Records are for a kind of CPU (`partitioner.lowering.isa.kind_of`) and a number of threads; a
    lookup takes those for as many threads as asked for, else for the nearest smaller number, else
    for the nearest larger.

    Attributes
    ----------
    folder : Path or None
        Where they are from; None for no folder.
    notes : tuple of str
        What reading them found odd, in words.
    """

    folder: Path | None
    notes: tuple[str, ...] = ()
    _kinds: Mapping[str, Mapping[str, Mapping[int, Kept]]] = field(default_factory=dict, repr=False)
    _label: str = field(default="", repr=False)
    _below: Records | None = field(default=None, repr=False)

    @classmethod
    def load(cls, folder: str | Path) -> Records:
        """Read a folder that `partitioner tune` made.

        Parameters
        ----------
        folder : path
            Holds a folder for each kind of CPU. Nothing in it is changed.

        Raises
        ------
        TuningError
            If it is not there, cannot be read, or is of another TVM version.
        """
        path = Path(folder)
        if not path.is_dir():
            raise TuningError(
                f"{path}: there is no such folder of tuning records; `partitioner tune` makes one"
            )
        return cls._read(path, str(path))

    @classmethod
    def shipped(cls) -> Records:
        """The records that come with the product; none where it was installed without them."""
        package = Path(__file__).resolve().parents[1]
        # A wheel has them in the package (setup.py), a source tree beside it.
        found = [each / "profiles" for each in (package, package.parent)]
        folder = next((each for each in found if each.is_dir()), None)
        if folder is None:
            return cls.none()
        try:
            return cls._read(folder, "shipped")
        except TuningError as error:
            # They are an extra: with another TVM everything works by the rules.
            return cls(None, (f"shipped tuning records are not used: {error}",))

    @classmethod
    def none(cls) -> Records:
        """No records: every kernel as the rules make it."""
        return cls(None)

    @classmethod
    def _read(cls, folder: Path, label: str) -> Records:
        kinds: dict[str, dict[str, dict[int, Kept]]] = {}
        notes: list[str] = []
        try:
            paths = list(folders(folder))
        except OSError as error:
            raise TuningError(
                f"{folder}: cannot look for tuning records: {error.strerror}; make the folder "
                "readable or name another"
            ) from error
        for path in paths:
            content = read(path)
            kinds[path.name] = kept_of(content.rows)
            notes.extend(content.notes)
        return cls(folder, tuple(notes), kinds, label)

    def over(self, other: Records) -> Records:
        """A view in which `other` is asked where these records have nothing.

        Parameters
        ----------
        other : Records
            What was measured here and is not better than the rule is not taken from it either.
        """
        below = self._below.over(other) if self._below else other
        return Records(self.folder, (*self.notes, *other.notes), self._kinds, self._label, below)

    def choice(self, signature: str, target: Any, threads: int) -> Choice | None:
        """How an op's kernel is made, None where the rule decides.

        Parameters
        ----------
        signature : str
            The op's.
        target : tvm.target.Target
        threads : int
            Of the stage that it runs in.
        """
        return self._found(signature, kind_of(target), threads)[0]

    def digest(self, signature: str, target: Any, threads: int) -> str:
        """What the choice is, as 12 hexadecimal digits; empty where the rule decides."""
        choice = self.choice(signature, target, threads)
        if choice is None:
            return ""
        return hashlib.sha256(repr((choice.tile, choice.trace)).encode()).hexdigest()[:12]

    def source(self, signature: str, target: Any, threads: int) -> str:
        """Where the choice is from: a folder, or ``"shipped"``; empty where the rule decides."""
        return self._found(signature, kind_of(target), threads)[1]

    def __len__(self) -> int:
        """Choices, for all kinds of CPU and numbers of threads."""
        return len(self._all())

    def _all(self) -> set[tuple[str, str, int]]:
        own = {
            (kind, op, threads)
            for kind, ops in self._kinds.items()
            for op, by_threads in ops.items()
            for threads, kept in by_threads.items()
            if kept.choice is not None
        }
        return own | (self._below._all() if self._below else set())

    def _found(self, op: str, kind: str, threads: int) -> tuple[Choice | None, str]:
        by_threads = self._kinds.get(kind, {}).get(op, {})
        kept = by_threads[_nearest(by_threads, threads)] if by_threads else None
        if kept is not None and kept.choice is not None:
            return kept.choice, self._label
        if self._below is None:
            return None, ""
        choice, source = self._below._found(op, kind, threads)
        beaten = kept is not None and choice in kept.tried
        return (None, "") if beaten else (choice, source)


def _nearest(known: Iterable[int], threads: int) -> int:
    """The number itself, else the nearest smaller one, else the nearest larger."""
    return min(known, key=lambda number: (number > threads, abs(number - threads)))
