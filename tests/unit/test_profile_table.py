from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partitioner.errors import ProfileError
from partitioner.host import HostInfo
from partitioner.profiling.table import Handover, Measurement, OpKey, Origin, ProfileTable

HERE = Origin(HostInfo("A", "x86_64", "Linux", 2, "f1"), "0.27.0", "sched1", (("cores:0", "llvm"),))
KEY = OpKey("k0", "cores:0", 1)
TABLE = ProfileTable(
    HERE,
    {KEY: Measurement(2e-3, 1e-4, 20), OpKey("k0", "cores:0-1", 2): Measurement(1e-3)},
    {("cores:0", 1): 3e-6},
    Handover(1e-5, 1e-10, 2e-5, 0.0),
)

seconds = st.floats(0, 1e3, allow_nan=False)
keys = st.builds(OpKey, st.text(max_size=5), st.text(max_size=5), st.integers(1, 64))
rows = st.dictionaries(
    keys,
    st.builds(
        Measurement, seconds, seconds, st.integers(0, 1000), st.booleans(), st.text(max_size=3)
    ),
    max_size=6,
)
host_times = st.dictionaries(st.tuples(st.text(max_size=5), st.integers(1, 64)), seconds)
tables = st.builds(
    ProfileTable,
    st.just(HERE),
    rows,
    host_times,
    st.none() | st.builds(Handover, seconds, seconds, seconds, seconds),
    st.booleans(),
    rows,
    host_times,
    st.lists(st.text(max_size=9), max_size=2).map(tuple),
)


@given(tables)
def test_round_trip(tmp_path_factory: pytest.TempPathFactory, table: ProfileTable) -> None:
    path = tmp_path_factory.getbasetemp() / "profile.json"
    table.save(path)
    read = ProfileTable.load(path)
    assert read == table
    assert read.hash == table.hash


def test_hash_follows_the_content() -> None:
    slower = replace(TABLE, ops={**TABLE.ops, KEY: Measurement(3e-3, 1e-4, 20)})
    guessed = replace(TABLE, estimated=True)
    assert len({TABLE.hash, slower.hash, guessed.hash}) == 3


# Measurements


def test_summary_of_runs() -> None:
    # Quartiles of 1..5 are 2 and 4.
    assert Measurement.of([5.0, 1.0, 4.0, 2.0, 3.0]) == Measurement(3.0, 2.0, 5)


def test_nothing_measured() -> None:
    with pytest.raises(ProfileError, match="nothing was measured"):
        Measurement.of([])


@pytest.mark.parametrize("value", [-1e-9, math.nan, math.inf])
def test_times_that_are_none(value: float) -> None:
    with pytest.raises(ProfileError, match=r"measurement's median_s is .*measure it again"):
        Measurement(value)
    with pytest.raises(ProfileError, match="measurement's iqr_s is"):
        Measurement(1.0, value)
    with pytest.raises(ProfileError, match="hand-over's recv_s_per_byte is"):
        Handover(0.0, 0.0, 0.0, value)


def test_noisy_rows_longest_first() -> None:
    table = ProfileTable(
        HERE,
        {
            OpKey("calm", "d", 1): Measurement(9.0, 0.15 * 9.0, 5),
            OpKey("short", "d", 1): Measurement(1.0, 0.2, 5),
            OpKey("long", "d", 1): Measurement(2.0, 0.5, 5),
        },
    )
    assert [key.signature for key, _ in table.noisy()] == ["long", "short"]


# Looking up


def test_time_of_a_kernel() -> None:
    assert TABLE.time_s(KEY) == 2e-3
    with pytest.raises(ProfileError, match=r"no time for kernel k0 on 'cores:0' with 2 threads"):
        TABLE.time_s(OpKey("k0", "cores:0", 2))


def test_missing_each_once_in_order() -> None:
    late, early = OpKey("z", "d", 1), OpKey("a", "d", 1)
    assert TABLE.missing([late, KEY, early, late]) == (late, early)


def test_interpolated_is_not_measured() -> None:
    between = OpKey("k0", "cores:0-2", 2)
    table = replace(TABLE, ops={**TABLE.ops, between: Measurement(1.5e-3, interpolated=True)})
    absent = OpKey("k0", "cores:0-2", 4)
    assert table.missing([KEY, between, absent]) == (absent,)
    assert table.unmeasured([absent, between, KEY, between]) == (absent, between)


# Where it is from


def test_foreign_tables_name_what_differs() -> None:
    TABLE.require_from(HERE)
    elsewhere = Origin(
        replace(HERE.host, cpu="B", cores=8), "0.28.0", "sched2", (("cores:0", "llvm -mcpu=z"),)
    )
    with pytest.raises(ProfileError, match="not made here") as caught:
        TABLE.require_from(elsewhere)
    for part in (
        "cpu: A, here B",
        "cores: 2, here 8",
        "tvm: 0.27.0, here 0.28.0",
        "lowering: sched1, here sched2",
        "target of cores:0: llvm, here llvm -mcpu=z",
        "--allow-foreign-profile",
    ):
        assert part in str(caught.value)
    assert "arch" not in str(caught.value)


def test_a_device_that_the_table_does_not_know_is_no_difference() -> None:
    TABLE.require_from(replace(HERE, targets=(("cores:0", "llvm"), ("cores:1", "cuda"))))


def test_merging_adds_rows_and_devices() -> None:
    new, both = OpKey("k9", "cores:1", 1), KEY
    other = ProfileTable(
        replace(HERE, targets=(("cores:1", "llvm"),)),
        {new: Measurement(1.0), both: Measurement(7.0)},
        {("cores:1", 1): 4e-6},
    )
    merged = TABLE.merged(other)
    assert merged.ops.keys() == {*TABLE.ops, new}
    assert merged.time_s(both) == 7.0
    assert merged.host_s == {("cores:0", 1): 3e-6, ("cores:1", 1): 4e-6}
    assert merged.handover == TABLE.handover
    assert merged.origin.targets == (("cores:0", "llvm"), ("cores:1", "llvm"))
    assert TABLE.time_s(KEY) == 2e-3


def test_merging_keeps_what_was_measured() -> None:
    guess, better = Measurement(9.0, interpolated=True), Measurement(8.0, interpolated=True)
    both = replace(TABLE, ops={KEY: guess}, contended={KEY: guess}, notes=("slow", "hot"))
    assert TABLE.merged(both).ops[KEY] == TABLE.ops[KEY]
    assert both.merged(TABLE).ops[KEY] == TABLE.ops[KEY]
    assert both.merged(replace(both, ops={KEY: better})).ops[KEY] == better
    measured = replace(TABLE, contended={KEY: Measurement(3e-3)}, notes=("hot", "late"))
    assert both.merged(measured).contended == measured.contended
    assert both.merged(measured).notes == ("slow", "hot", "late")


def test_a_time_between_others_replaces_a_measured_one_of_another_kernel() -> None:
    tuned = Measurement(1e-3, interpolated=True, kernel="abc")
    assert TABLE.merged(replace(TABLE, ops={KEY: tuned})).ops[KEY] == tuned
    again = replace(TABLE, ops={KEY: replace(TABLE.ops[KEY], kernel="abc")})
    assert again.merged(replace(TABLE, ops={KEY: tuned})).ops[KEY] == again.ops[KEY]


# Kernels


def test_a_retuned_kernel_loses_its_time() -> None:
    tuned = replace(TABLE.ops[KEY], kernel="abc")
    other = OpKey("k0", "cores:0-1", 2)
    table = replace(TABLE, ops={**TABLE.ops, KEY: tuned}, contended={KEY: tuned})
    assert table.without_other_kernels({KEY: "abc"}) == table
    assert table.without_other_kernels({}) == table
    for now in ("", "abd"):
        left = table.without_other_kernels({KEY: now, other: ""})
        assert left.ops == {other: TABLE.ops[other]}
        assert left.contended == {}
        assert left.host_s == table.host_s
    assert table.without_other_kernels({other: "abc"}).ops == {KEY: tuned}


def test_only_rows_of_records_say_so_in_the_file(tmp_path: Path) -> None:
    rows = TABLE.to_data()["ops"]
    assert all("kernel" not in row for row in rows)
    tuned = replace(TABLE, ops={KEY: replace(TABLE.ops[KEY], kernel="abc")})
    assert [row["kernel"] for row in tuned.to_data()["ops"]] == ["abc"]
    assert tuned.hash != replace(TABLE, ops={KEY: TABLE.ops[KEY]}).hash


def test_merging_a_guess_makes_a_guess() -> None:
    guess = replace(TABLE, estimated=True)
    assert TABLE.merged(guess).estimated
    assert guess.merged(TABLE).estimated
    assert not TABLE.merged(TABLE).estimated


def test_merging_what_differs() -> None:
    other = replace(TABLE, origin=replace(HERE, lowering="sched2"))
    with pytest.raises(ProfileError, match=r"cannot merge .* lowering: sched1, here sched2"):
        TABLE.merged(other)


# Files


def change(key: str, value: Any) -> dict[str, Any]:
    return {**TABLE.to_data(), key: value}


ROW = {"signature": "k", "device": "d", "threads": 1, "median_s": 1.0, "iqr_s": 0.0, "runs": 3}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], r"not a profile of version 1 \(found 'list'\)"),
        ({}, r"not a profile of version 1 \(found None\)"),
        (change("version", 2), r"not a profile of version 1 \(found 2\)"),
        ({k: v for k, v in TABLE.to_data().items() if k != "ops"}, "lacks the key 'ops'"),
        (change("ops", [{k: v for k, v in ROW.items() if k != "runs"}]), "lacks the key 'runs'"),
        (change("ops", [{**ROW, "median_s": -1.0}]), "median_s is -1.0"),
        (change("ops", [{**ROW, "median_s": math.nan}]), "median_s is nan"),
        (change("ops", [{**ROW, "median_s": "fast"}]), "malformed profile"),
        (change("ops", 3), "malformed profile"),
        (change("host_s", [["d", 1, -1.0]]), "a host time is -1.0"),
        (change("host_s", [["d", 1]]), "malformed profile"),
        (change("handover", {"send_base_s": 1.0}), "malformed profile"),
        (change("handover", {**dict.fromkeys(TABLE.to_data()["handover"], "x")}), "malformed"),
        (change("origin", {"host": {}}), "malformed profile"),
        (change("contended", [{**ROW, "iqr_s": -1.0}]), "iqr_s is -1.0"),
        (change("contended_host_s", [["d", "many", 1.0]]), "malformed profile"),
    ],
)
def test_malformed_files_name_the_file(tmp_path: Path, data: Any, message: str) -> None:
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(data), encoding="utf-8")
    with pytest.raises(ProfileError, match=f"profile.json: .*{message}"):
        ProfileTable.load(path)


def test_files_without_contended_times_are_read(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    later = ("contended", "contended_host_s", "notes")
    data = {key: value for key, value in TABLE.to_data().items() if key not in later}
    data["ops"] = [{k: v for k, v in row.items() if k != "interpolated"} for row in data["ops"]]
    path.write_text(json.dumps(data), encoding="utf-8")
    assert ProfileTable.load(path) == TABLE


@pytest.mark.parametrize("content", [b"", b'{"version": 1, "ops": [', b"\xff\xfe"])
def test_files_that_are_not_json(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "profile.json"
    path.write_bytes(content)
    with pytest.raises(ProfileError, match=r"profile.json: not JSON \(.*\); profile again"):
        ProfileTable.load(path)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="cannot read the profile: No such file"):
        ProfileTable.load(tmp_path / "absent.json")
