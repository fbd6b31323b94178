"""Tuning records on disk: MetaSchedule's own database in a folder for each kind of CPU.

What is kept of an op is looked up by its signature, so that nothing has to be lowered for it. The
workload of a tile is not the op's kernel but one empty function for all of them, and the signature
stands in the record's trace: a rule makes the kernel, often several of them, from the tile alone,
and the kernel itself would be some 50 KB a record. The workload of a schedule from TVM's design
space is the kernel that it applies to, with the signature as an attribute.

A row's times are one of three things: several of them for what was measured against the rule's
kernel in alternation and with repeats (*confirmed*); one for what was tried; `LOST_S` for what did
not compile, crashed, hung or gave wrong results. All but the rule's own are at the pace of the
row of the rule's kernel before them: times that ratio which was measured.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tvm
from tvm import tirx
from tvm.s_tir import SBlock, SBlockRealize, Schedule
from tvm.s_tir.meta_schedule.database import JSONDatabase, TuningRecord, Workload
from tvm.s_tir.schedule import ScheduleError, Trace

from partitioner.errors import TuningError
from partitioner.files import write_json, write_text
from partitioner.lowering import Choice

__all__ = [
    "ABOUT",
    "LOST_S",
    "RECORDS",
    "WORKLOADS",
    "Content",
    "Database",
    "Row",
    "folders",
    "read",
    "require_usable",
    "trace_text",
    "with_cores",
]

WORKLOADS = "database_workload.json"
RECORDS = "database_tuning_record.json"
ABOUT = "about.json"
LOST_S = 1e10
"""Stands for the time of what cannot be measured, as in MetaSchedule's own records."""

_VERSION = 1
_OP = "partitioner.op"
_TILE = "partitioner.tile"
_BAD = (
    tvm.error.InternalError,
    ScheduleError,
    ValueError,
    TypeError,
    KeyError,
    IndexError,
    AttributeError,
)


@dataclass(frozen=True, slots=True)
class Row:
    """One measured way of making an op's kernel.

    Attributes
    ----------
    op : str
        Signature.
    threads : int
    choice : Choice
        Neither tile nor trace: as the rules do by themselves.
    seconds : tuple of float
        See the module.
    """

    op: str
    threads: int
    choice: Choice
    seconds: tuple[float, ...]

    @property
    def median_s(self) -> float:
        """Median of the times."""
        return statistics.median(self.seconds)


@dataclass(frozen=True, slots=True)
class Content:
    """What a folder holds: rows in the order of writing, and the lines that are in order."""

    rows: tuple[Row, ...]
    workloads: tuple[str, ...] = ()
    records: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def folders(folder: Path) -> Iterator[Path]:
    """The folders of records below a folder, by name."""
    for path in sorted(folder.iterdir()):
        if any((path / name).exists() for name in (WORKLOADS, RECORDS)):
            yield path


def require_usable(folder: Path) -> None:
    """Check that a folder's records, if it has any, are of this TVM and this format.

    Raises
    ------
    TuningError
        If they are not. Nothing is changed.
    """
    needed = f"records of TVM {tvm.__version__} are needed"
    advice = "name another folder, or remove this one and tune again"
    if not any((folder / name).exists() for name in (WORKLOADS, RECORDS, ABOUT)):
        return
    try:
        about = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
        version, made_by = about["version"], about["tvm"]
    except OSError as error:
        raise TuningError(
            f"{folder}: {ABOUT} cannot be read ({error.strerror}), so nothing tells which TVM made "
            f"these tuning records; {needed}; {advice}"
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise TuningError(
            f"{folder}: {ABOUT} does not tell which TVM made these tuning records; {needed}; "
            f"{advice}"
        ) from error
    if made_by != tvm.__version__:
        raise TuningError(
            f"{folder}: these tuning records were made with TVM {made_by}; {needed}; {advice}"
        )
    if version != _VERSION:
        raise TuningError(
            f"{folder}: these tuning records have format {version!r}; {_VERSION} is needed; "
            f"{advice}"
        )


def read(folder: Path) -> Content:
    """Rows of a folder; lines that are no records, as a killed run leaves, are noted and left out.

    Raises
    ------
    TuningError
        If the records are of another TVM version or cannot be read.
    """
    require_usable(folder)
    try:
        workload_lines = _lines(folder / WORKLOADS)
        record_lines = _lines(folder / RECORDS)
    except OSError as error:
        raise TuningError(
            f"{error.filename}: cannot read tuning records: {error.strerror}; make the file "
            "readable or name another folder"
        ) from error
    found = [_workload(line) for line in workload_lines]
    rows, kept_records = [], []
    for line in record_lines:
        row = _row(line, found)
        if row is not None:
            rows.append(row)
            kept_records.append(line)
    # Rows name their workload by its place, so a bad line's place is kept.
    kept_workloads = [
        line if workload is not None else _placeholder(place)
        for place, (line, workload) in enumerate(zip(workload_lines, found, strict=False))
    ]
    bad = len(workload_lines) - sum(workload is not None for workload in found)
    lost = bad + len(record_lines) - len(kept_records)
    notes: tuple[str, ...] = ()
    if lost:
        notes = (
            f"{folder}: {lost} {'line is' if lost == 1 else 'lines are'} half-written or no tuning "
            f"record, as a killed run leaves; the other {len(rows)} are used",
        )
    return Content(tuple(rows), tuple(kept_workloads), tuple(kept_records), notes)


def _lines(path: Path) -> list[str]:
    if not path.exists():
        return []
    return path.read_text(encoding="utf-8", errors="replace").splitlines()


def _workload(line: str) -> Any | None:
    try:
        workload = Workload.from_json(json.loads(line))
        return workload if _OP in workload.mod["main"].attrs else None
    except _BAD:
        return None


def _row(line: str, workloads: Sequence[Any | None]) -> Row | None:
    try:
        index, data = json.loads(line)
        # Of a tile's workload nothing is needed.
        workload = workloads[index] or Workload(_module(_stub(), ""))
        record = TuningRecord.from_json(data, workload)
        row = Row(
            op=_notes(record.trace).get(_OP) or str(workload.mod["main"].attrs[_OP]),
            threads=int(record.target.attrs["num-cores"]),
            choice=_choice(record.trace),
            seconds=tuple(float(seconds.value) for seconds in record.run_secs),
        )
    except _BAD:
        return None
    return row if row.op and row.seconds else None


def _choice(trace: Any) -> Choice:
    notes = _notes(trace)
    if _TILE in notes:
        return Choice(tile=tuple(int(number) for number in notes[_TILE]))
    return Choice() if _OP in notes else Choice(trace=trace_text(trace))


def _notes(trace: Any) -> dict[str, Any]:
    """What this module has annotated."""
    notes = [inst for inst in trace.insts if str(inst.kind.name) == "Annotate"]
    return {
        str(inst.attrs[0]): inst.inputs[1] for inst in notes if str(inst.attrs[0]) in (_OP, _TILE)
    }


def trace_text(trace: Any) -> str:
    """A MetaSchedule trace as JSON, in which TVM leaves numbers of its own."""
    return json.dumps(trace.as_json(), default=lambda number: number.value)


def with_cores(target: Any, threads: int) -> Any:
    """A target for a number of cores: MetaSchedule wants to know it, and users leave it out."""
    return tvm.target.Target({**dict(target.export()), "num-cores": threads})


class Database:
    """Adds rows to a folder, a line at a time, so that a killed run loses none that is written.

    Parameters
    ----------
    folder : Path
        Of one kind of CPU. Made with the first row; half-written lines are then removed.
    about : mapping, optional
        What else ``about.json`` tells.

    Attributes
    ----------
    content : Content
        What was in the folder.
    added : list of Row
        What was added since.

    Raises
    ------
    TuningError
        If the folder's records are of another TVM version.
    """

    def __init__(self, folder: Path, about: dict[str, Any] | None = None) -> None:
        self.folder = folder
        self.content = read(folder)
        self.added: list[Row] = []
        self._about = about or {}
        self._was_about = _about(folder) or {}
        self._open: Any = None

    def add(self, row: Row, target: Any, workload: Any | None = None) -> None:
        """Write a row.

        Parameters
        ----------
        row : Row
        target : tvm.target.Target
            What the kernel was made for.
        workload : tvm.tirx.PrimFunc, optional
            What the row's trace applies to; only such rows need it.
        """
        database = self._opened()
        if row.choice.trace is not None:
            mod = _module(workload, row.op)
            sch = Schedule(mod)
            Trace.apply_json_to_schedule(json.loads(row.choice.trace), sch)
        else:
            mod = _module(_stub(), "")
            sch = Schedule(mod)
            root = sch.get_sblock("root")
            sch.annotate(root, _OP, row.op)
            if row.choice.tile is not None:
                sch.annotate(root, _TILE, list(row.choice.tile))
        cored = with_cores(target, row.threads)
        kept = database.commit_workload(mod)
        database.commit_tuning_record(TuningRecord(sch.trace, kept, list(row.seconds), cored))
        self.added.append(row)

    def made_with_other(self, name: str) -> bool:
        """Whether something that ``about.json`` tells was another when the content was made."""
        return bool(self.content.rows) and self._was_about.get(name) != self._about.get(name)

    def _opened(self) -> Any:
        if self._open is None:
            self.folder.mkdir(parents=True, exist_ok=True)
            about = {"version": _VERSION, "tvm": str(tvm.__version__), **self._about}
            write_json(self.folder / ABOUT, about)
            for name, lines in (
                (WORKLOADS, self.content.workloads),
                (RECORDS, self.content.records),
            ):
                _rewrite(self.folder / name, lines)
            self._open = JSONDatabase(str(self.folder / WORKLOADS), str(self.folder / RECORDS))
        return self._open


def _about(folder: Path) -> Any:
    path = folder / ABOUT
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def _rewrite(path: Path, lines: Sequence[str]) -> None:
    text = "".join(f"{line}\n" for line in lines)
    if not path.exists() or path.read_bytes() != text.encode():
        write_text(path, text)


def _placeholder(place: int) -> str:
    return json.dumps(Workload(_module(_stub(), f"line {place} was bad")).as_json())


def _module(func: Any, op: str) -> Any:
    return tvm.IRModule({"main": func.with_attr("global_symbol", "main").with_attr(_OP, op)})


def _stub() -> Any:
    block = SBlock([], [], [], "root", tirx.Evaluate(0))
    return tirx.PrimFunc([], SBlockRealize([], True, block))
