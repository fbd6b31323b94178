"""Machine files that come with the product: boards that are not here, planned for offline."""

from __future__ import annotations

from pathlib import Path

import pytest
import tvm

from partitioner import Machine, auto_partition
from partitioner.cli import main
from partitioner.errors import DeviceError
from partitioner.frontend import Grouped
from partitioner.host import CpuSets, host_info
from partitioner.lowering.isa import isa_of

PROFILES = Path(__file__).parents[2] / "profiles"
BOARDS = sorted(PROFILES.glob("*/machine.toml"))


def test_the_boards() -> None:
    assert {path.parent.name for path in BOARDS} >= {"hikey970", "rk3588"}


@pytest.mark.parametrize("path", BOARDS, ids=lambda path: path.parent.name)
def test_a_board_loads_anywhere(path: Path) -> None:
    machine = Machine.load(path)
    assert machine.name == path.parent.name
    for device in machine.devices:
        assert device.target is not None
        assert isa_of(tvm.target.Target(device.target)).lanes == 4, "four float32 of NEON"


def test_hikey970() -> None:
    little, big = Machine.load(PROFILES / "hikey970/machine.toml").devices
    assert (little.cpus, big.cpus) == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert '"cortex-a53"' in str(little.target)
    assert '"cortex-a73"' in str(big.target)
    assert little.capacity < big.capacity == 1.0


def test_a_board_is_not_this_host(capsys: pytest.CaptureFixture[str]) -> None:
    path = PROFILES / "hikey970/machine.toml"
    assert main(["devices", "--machine", str(path)]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"hikey970, as {path} describes it\n")
    assert host_info().cpu not in said


def test_a_board_is_planned_for_offline(
    grouped: Grouped, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By guesses, and by a profile collected elsewhere, here a saved one of guesses."""
    machine = Machine.load(PROFILES / "hikey970/machine.toml")
    part = auto_partition(grouped, machine, profile="estimate", strategy="pipeline")
    cores = [cpu for stage in part.plan.stages for p in stage.placements for cpu in p.cpus]
    assert len(part.plan.stages) > 1
    assert len(set(cores)) == len(cores)
    assert set(cores) <= set(range(8))

    part.profile.save(tmp_path / "profile.json")
    again = auto_partition(
        grouped,
        machine,
        profile=tmp_path / "profile.json",
        allow_foreign_profile=True,
        strategy="pipeline",
    )
    assert again.plan.predicted == part.plan.predicted

    sets = CpuSets((0, 1), (0, 1), (0, 1))
    monkeypatch.setattr("partitioner.machine.cpu_sets", lambda: sets)
    with pytest.raises(DeviceError, match=r"'little': this host has no core 2-3 \(it has 0-1\)"):
        auto_partition(grouped, machine, profile=tmp_path / "none.json")
