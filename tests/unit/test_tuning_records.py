"""Records of tuning: what is taken, from where, and what a damaged or foreign folder does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tvm
from tvm import te
from tvm.s_tir import Schedule
from tvm.s_tir.meta_schedule.database import JSONDatabase

from partitioner.errors import TuningError
from partitioner.lowering import Choice, host_target
from partitioner.lowering.isa import kind_of
from partitioner.tuning.database import LOST_S, Database, Row
from partitioner.tuning.prune import prune
from partitioner.tuning.records import CONFIRMED, Records

OP, OTHER = "0123456789abcdef", "fedcba9876543210"
RULE, SMALL, WIDE = Choice(), Choice(tile=(8, 3)), Choice(tile=(4, 6, 1))


def target(mcpu: str) -> Any:
    return tvm.target.Target({"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": mcpu})


AVX512, AVX2 = target("skylake-avx512"), target("haswell")


def write(
    folder: Path, *rows: tuple[Choice, float], op: str = OP, threads: int = 1, runs: int = CONFIRMED
) -> Database:
    database = Database(folder / kind_of(AVX512))
    for choice, seconds in rows:
        database.add(Row(op, threads, choice, (seconds,) * runs), AVX512)
    return database


def test_what_beats_the_rule_is_found_again(tmp_path: Path) -> None:
    write(tmp_path, (RULE, 2.0), (SMALL, 1.5), (WIDE, 1.0))
    records = Records.load(tmp_path)
    assert records.choice(OP, AVX512, 1) == WIDE
    assert records.choice(OTHER, AVX512, 1) is None
    assert (len(records), records.folder, records.notes) == (1, tmp_path, ())
    assert records.source(OP, AVX512, 1) == str(tmp_path)
    assert records.source(OTHER, AVX512, 1) == ""
    digest = records.digest(OP, AVX512, 1)
    assert len(digest) == 12
    assert int(digest, 16)
    assert records.digest(OTHER, AVX512, 1) == ""


def test_digests_tell_choices_apart(tmp_path: Path) -> None:
    write(tmp_path, (RULE, 2.0), (SMALL, 1.0))
    write(tmp_path, (RULE, 2.0), (WIDE, 1.0), op=OTHER)
    records = Records.load(tmp_path)
    assert records.digest(OP, AVX512, 1) != records.digest(OTHER, AVX512, 1)
    assert records.digest(OP, AVX512, 1) == Records.load(tmp_path).digest(OP, AVX512, 1)


def test_another_kind_of_cpu_has_its_own(tmp_path: Path) -> None:
    write(tmp_path, (RULE, 2.0), (WIDE, 1.0))
    records = Records.load(tmp_path)
    assert records.choice(OP, AVX2, 1) is None
    # The same features, another processor.
    assert records.choice(OP, target("icelake-server"), 1) == WIDE


def test_no_record_within_noise_or_from_one_run(tmp_path: Path) -> None:
    write(tmp_path, (RULE, 1.0), (WIDE, 0.99))
    database = write(tmp_path, (RULE, 1.0), op=OTHER)
    database.add(Row(OTHER, 1, SMALL, (0.5,)), AVX512)
    database.add(Row(OTHER, 1, WIDE, (LOST_S,)), AVX512)
    records = Records.load(tmp_path)
    assert records.choice(OP, AVX512, 1) is None
    assert records.choice(OTHER, AVX512, 1) is None
    assert len(records) == 0


def test_rows_count_against_the_rule_as_it_was_measured_with_them(tmp_path: Path) -> None:
    """The machine became slower between the two pairs: WIDE is faster only to the eye."""
    write(tmp_path, (RULE, 2.0), (WIDE, 1.8), (RULE, 4.0), (SMALL, 2.0))
    assert Records.load(tmp_path).choice(OP, AVX512, 1) == SMALL
    write(tmp_path, (SMALL, 5.0))
    assert Records.load(tmp_path).choice(OP, AVX512, 1) == WIDE


def test_threads_take_the_nearest_smaller_number_first(tmp_path: Path) -> None:
    two, four = Choice(tile=(2,)), Choice(tile=(4,))
    write(tmp_path, (RULE, 2.0), (two, 1.0), threads=2)
    write(tmp_path, (RULE, 2.0), (four, 1.0), threads=4)
    records = Records.load(tmp_path)
    found = [records.choice(OP, AVX512, threads) for threads in (1, 2, 3, 4, 64)]
    assert found == [two, two, two, four, four]


def test_the_rule_can_be_best_on_more_threads(tmp_path: Path) -> None:
    write(tmp_path, (RULE, 2.0), (WIDE, 1.0))
    write(tmp_path, (RULE, 1.0), (WIDE, 1.5), threads=2)
    records = Records.load(tmp_path)
    assert records.choice(OP, AVX512, 1) == WIDE
    assert records.choice(OP, AVX512, 2) is None
    assert records.digest(OP, AVX512, 2) == ""


def test_own_records_over_others(tmp_path: Path) -> None:
    write(tmp_path / "own", (RULE, 2.0), (SMALL, 1.0))
    write(tmp_path / "other", (RULE, 2.0), (WIDE, 1.0))
    write(tmp_path / "other", (RULE, 2.0), (WIDE, 1.0), op=OTHER)
    own, other = Records.load(tmp_path / "own"), Records.load(tmp_path / "other")
    both = own.over(other)
    assert (both.choice(OP, AVX512, 1), both.choice(OTHER, AVX512, 1)) == (SMALL, WIDE)
    assert both.source(OP, AVX512, 1) == str(tmp_path / "own")
    assert both.source(OTHER, AVX512, 1) == str(tmp_path / "other")
    assert both.digest(OTHER, AVX512, 1) == other.digest(OTHER, AVX512, 1)
    assert (len(own), len(other), len(both)) == (1, 2, 2)
    three = own.over(Records.none()).over(other)
    assert three.choice(OTHER, AVX512, 1) == WIDE


def test_what_lost_here_is_not_taken_from_others(tmp_path: Path) -> None:
    write(tmp_path / "own", (RULE, 1.0), (SMALL, 1.5))
    write(tmp_path / "other", (RULE, 2.0), (SMALL, 1.0))
    own, other = Records.load(tmp_path / "own"), Records.load(tmp_path / "other")
    assert own.over(other).choice(OP, AVX512, 1) is None
    write(tmp_path / "other", (SMALL, 3.0), (WIDE, 1.0))
    assert own.over(Records.load(tmp_path / "other")).choice(OP, AVX512, 1) == WIDE


def traced() -> tuple[Any, str]:
    data = te.placeholder((64,), "float32", "data")
    func = te.create_prim_func([data, te.compute((64,), lambda i: data[i] + 1.0, "out")])
    sch = Schedule(func)
    sch.parallel(sch.get_loops(sch.get_sblock("out"))[0])
    return func, json.dumps(sch.trace.as_json())


def test_a_schedule_of_tvm_is_kept_as_its_trace(tmp_path: Path) -> None:
    func, trace = traced()
    database = write(tmp_path, (RULE, 2.0))
    choice = Choice(trace=trace)
    database.add(Row(OP, 1, choice, (1.0,) * CONFIRMED), AVX512, func)
    assert Records.load(tmp_path).choice(OP, AVX512, 1) == choice


def test_metaschedule_reads_the_folder(tmp_path: Path) -> None:
    write(tmp_path, (RULE, 2.0), (WIDE, 1.0))
    folder = tmp_path / kind_of(AVX512)
    database = JSONDatabase(
        str(folder / "database_workload.json"), str(folder / "database_tuning_record.json")
    )
    assert [[float(s) for s in r.run_secs] for r in database.get_all_tuning_records()] == [
        [1.0] * CONFIRMED,
        [2.0] * CONFIRMED,
    ]
    assert sum(path.stat().st_size for path in folder.iterdir()) < 6000


def test_a_half_written_line_costs_only_itself(tmp_path: Path) -> None:
    write(tmp_path, (RULE, 2.0), (WIDE, 1.0))
    path = tmp_path / kind_of(AVX512) / "database_tuning_record.json"
    with path.open("a", encoding="utf-8") as file:
        file.write('[0, [[[["GetSBl')
    damaged = path.read_bytes()
    records = Records.load(tmp_path)
    assert records.choice(OP, AVX512, 1) == WIDE
    (note,) = records.notes
    assert "1 line is half-written" in note
    assert "the other 2 are used" in note
    assert path.read_bytes() == damaged
    write(tmp_path, (SMALL, 0.5))
    records = Records.load(tmp_path)
    assert (records.choice(OP, AVX512, 1), records.notes) == (SMALL, ())


def test_a_bad_workload_leaves_the_others_where_they_are(tmp_path: Path) -> None:
    func, trace = traced()
    database = Database(tmp_path / kind_of(AVX512))
    schedule = Choice(trace=trace)
    for op, choice, seconds in ((OP, RULE, 2.0), (OP, schedule, 1.0), (OTHER, RULE, 2.0)):
        database.add(Row(op, 1, choice, (seconds,) * CONFIRMED), AVX512, func)
    write(tmp_path, (SMALL, 1.0), op=OTHER)
    path = tmp_path / kind_of(AVX512) / "database_workload.json"
    empty, kernel = path.read_text(encoding="utf-8").splitlines(keepends=True)

    # Of the empty function that all tiles have nothing is needed.
    path.write_text("not JSON\n" + kernel, encoding="utf-8")
    records = Records.load(tmp_path)
    assert records.choice(OP, AVX512, 1) is not None
    assert records.choice(OTHER, AVX512, 1) == SMALL
    assert "1 line is" in records.notes[0]

    path.write_text(empty + "not JSON\n", encoding="utf-8")
    records = Records.load(tmp_path)
    assert (records.choice(OP, AVX512, 1), records.choice(OTHER, AVX512, 1)) == (None, SMALL)
    assert "2 lines are" in records.notes[0]
    write(tmp_path, (RULE, 2.0), (WIDE, 1.0))
    records = Records.load(tmp_path)
    assert (records.choice(OP, AVX512, 1), records.choice(OTHER, AVX512, 1)) == (WIDE, SMALL)
    assert records.notes == ()


@pytest.mark.parametrize(
    ("about", "found"),
    [
        ('{"version": 1, "tvm": "0.1.2"}', "made with TVM 0.1.2"),
        (f'{{"version": 99, "tvm": "{tvm.__version__}"}}', "have format 99"),
        ("{}", "does not tell which TVM"),
        ("[", "does not tell which TVM"),
        (None, "cannot be read"),
    ],
)
def test_records_of_another_version_are_refused_and_kept(
    tmp_path: Path, about: str | None, found: str
) -> None:
    write(tmp_path, (RULE, 2.0), (WIDE, 1.0))
    folder = tmp_path / kind_of(AVX512)
    (folder / "about.json").unlink()
    if about is not None:
        (folder / "about.json").write_text(about, encoding="utf-8")
    before = {path: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(TuningError, match=f"{found}.*remove this one and tune again"):
        Records.load(tmp_path)
    with pytest.raises(TuningError, match=found):
        Database(folder)
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


def test_what_ships_makes_the_same_choices(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    write(one, (RULE, 2.0), (WIDE, 1.9))
    write(one, (SMALL, 0.1), runs=1)
    write(one, (RULE, 3.0), (SMALL, 1.5), (WIDE, 2.9))
    write(one, (RULE, 1.0), (SMALL, 1.1), threads=2)
    write(two, (RULE, 2.0), (WIDE, 1.0), op=OTHER)
    write(two, (RULE, 2.0), (WIDE, 2.0), op="never better")
    assert prune([one, two], tmp_path / "shipped") == 2
    shipped = Records.load(tmp_path / "shipped")
    assert shipped.choice(OP, AVX512, 1) == Records.load(one).choice(OP, AVX512, 1) == SMALL
    assert shipped.choice(OP, AVX512, 2) is None
    assert shipped.choice(OTHER, AVX512, 1) == WIDE
    lines = (tmp_path / "shipped" / kind_of(AVX512) / "database_tuning_record.json").read_text()
    assert len(lines.splitlines()) == 6
    assert prune([tmp_path / "shipped"], tmp_path / "again") == 2
    with pytest.raises(TuningError, match="no such folder"):
        prune([tmp_path / "absent"], tmp_path)


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(TuningError, match=r"no such folder.*`partitioner tune` makes one"):
        Records.load(tmp_path / "absent")


def test_no_records(tmp_path: Path) -> None:
    for records in (Records.none(), Records.load(tmp_path)):
        assert records.choice(OP, host_target(1), 1) is None
        assert records.digest(OP, host_target(1), 1) == ""
        assert len(records) == 0
        assert records.notes == ()


def test_shipped_records_can_be_read() -> None:
    assert Records.shipped().notes == ()


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("x86-64-avx512", {"mtriple": "x86_64-linux-gnu", "mcpu": "skylake-avx512"}),
        ("x86-64-avx2", {"mtriple": "x86_64-linux-gnu", "mcpu": "haswell"}),
        ("x86-64", {"mtriple": "x86_64-linux-gnu", "mcpu": "x86-64"}),
        ("aarch64-neon", {"mtriple": "aarch64-linux-gnu", "mattr": ["+neon"]}),
    ],
)
def test_kinds_of_cpu(kind: str, options: dict[str, Any]) -> None:
    assert kind_of(tvm.target.Target({"kind": "llvm", **options})) == kind
