"""From folders of a search, with all that was tried, to the records that a product ships."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from partitioner.errors import TuningError
from partitioner.files import write_text
from partitioner.lowering import Choice
from partitioner.tuning.database import ABOUT, RECORDS, WORKLOADS, Row, folders, read
from partitioner.tuning.records import CONFIRMED, Kept, kept_of

__all__ = ["prune"]


@dataclass(frozen=True, slots=True)
class _Line:
    row: Row
    record: str
    workload: str


def prune(sources: Sequence[str | Path], destination: str | Path) -> int:
    """Write what folders of records know better than the rules, and nothing else.

    Looked up there, every op has the choice that it has in the sources as one.

    Parameters
    ----------
    sources : sequence of path
        Folders that `tune` made; not changed. Of two records of an op the better one is taken.
    destination : path
        Gets a folder for each kind of CPU; what these held is replaced.

    Returns
    -------
    int
        Choices written.

    Raises
    ------
    TuningError
        If a source is not there, cannot be read, or is of another TVM version.
    """
    by_kind: dict[str, list[Path]] = {}
    for source in map(Path, sources):
        if not source.is_dir():
            raise TuningError(f"{source}: there is no such folder of tuning records; name others")
        for path in folders(source):
            by_kind.setdefault(path.name, []).append(path)
    count = 0
    for kind, paths in by_kind.items():
        lines = [line for path in paths for line in _lines(path)]
        kept = kept_of(line.row for line in lines)
        count += sum(one.choice is not None for by in kept.values() for one in by.values())
        _write(Path(destination) / kind, _worthy(lines, kept), paths[-1] / ABOUT)
    return count


def _lines(folder: Path) -> list[_Line]:
    content = read(folder)
    return [
        _Line(row, record, content.workloads[json.loads(record)[0]])
        for row, record in zip(content.rows, content.records, strict=True)
    ]


def _worthy(lines: Sequence[_Line], kept: dict[str, dict[int, Kept]]) -> list[_Line]:
    """The rows that make the same choices: each winner's, and that of the rule before it.

    Where the rule is best on some threads and not on others, a row that lost says so.
    """
    default: dict[tuple[str, int], _Line] = {}
    chosen: dict[tuple[str, int], tuple[_Line, _Line]] = {}
    for line in lines:
        key = (line.row.op, line.row.threads)
        by_threads = kept.get(line.row.op, {})
        if line.row.choice == Choice():
            default[key] = line
        elif len(line.row.seconds) >= CONFIRMED and key in default:
            choice = by_threads[line.row.threads].choice
            wins_somewhere = any(one.choice is not None for one in by_threads.values())
            if line.row.choice == choice or (choice is None and wins_somewhere):
                chosen[key] = (default[key], line)
    return [line for pair in chosen.values() for line in pair]


def _write(folder: Path, lines: Sequence[_Line], about: Path) -> None:
    workloads = list(dict.fromkeys(line.workload for line in lines))
    place = {workload: number for number, workload in enumerate(workloads)}
    records = [
        json.dumps([place[line.workload], json.loads(line.record)[1]], separators=(",", ":"))
        for line in lines
    ]
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / ABOUT, about.read_text(encoding="utf-8"))
    write_text(folder / WORKLOADS, "".join(f"{line}\n" for line in workloads))
    write_text(folder / RECORDS, "".join(f"{line}\n" for line in records))
