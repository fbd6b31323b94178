"""A full-speed core beside one that a quota makes slow: profile, plan, run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from emulated import quota_or_skip

from partitioner import Machine, Partition, auto_partition
from partitioner.frontend import Grouped
from partitioner.host import allowed_cpus
from partitioner.machine import Device
from partitioner.runtime.build import BuildCache

SHARE = 0.25
SECONDS = 1.0
"""Measuring time: a visit must be long against the quota's period."""


@pytest.fixture(scope="module")
def unequal(grouped: Grouped, builds: BuildCache) -> Iterator[Partition]:
    """The small network cut for the two."""
    cpus = allowed_cpus()
    if len(cpus) < 2:
        pytest.skip(f"two devices need two cores; this process may use {cpus}")
    with quota_or_skip(SHARE) as group:
        devices = (Device("big", cpus=cpus[:1]), Device("little", cpus=cpus[1:2], cgroup=group))
        yield auto_partition(
            grouped,
            Machine("big and little", devices),
            strategy="pipeline",
            replicas=1,
            profile_seconds=SECONDS,
            builds=builds,
        )


def compute_s(part: Partition, device: str, ops: tuple[str, ...]) -> float:
    """Time of some ops on a device, by the profile."""
    option = part.problem.option_names.index(device)
    return float(sum(part.problem.time_s[part.graph.find_op(name).id, option] for name in ops))


def test_the_profile_sees_the_slow_core(unequal: Partition) -> None:
    """Four times as slow; what else the host does can only blur that."""
    whole = tuple(op.name for op in unequal.graph.ops)
    ratio = compute_s(unequal, "little", whole) / compute_s(unequal, "big", whole)
    assert ratio > 1.5


def test_the_slow_core_gets_the_smaller_part(unequal: Partition) -> None:
    parts = {stage.placements[0].device: stage.ops for stage in unequal.plan.stages}
    assert parts.keys() == {"big", "little"}
    assert compute_s(unequal, "big", parts["big"]) >= compute_s(unequal, "big", parts["little"])


def test_only_the_slow_cores_worker_is_in_its_group(unequal: Partition) -> None:
    device = unequal.machine.device("little")
    assert device.cgroup is not None
    members = Path(device.cgroup) / "cgroup.procs"
    with unequal.pipeline() as pipe:
        pipe(unequal.samples(1)[0])
        (slow,) = [worker for worker in pipe.workers if worker.cpus == device.cpus]
        assert members.read_text().split() == [str(slow.pid)]
    assert members.read_text() == ""


def test_outputs_are_the_uncut_models(unequal: Partition) -> None:
    assert unequal.check(unequal.samples(3)).max_abs_diff == 0
