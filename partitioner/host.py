"""The host: its processor and system, and the cores that this process may use."""

from __future__ import annotations

import hashlib
import os
import platform
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from partitioner.sysfs import ROOT, read_cpus, read_fact

__all__ = ["CpuSets", "HostInfo", "allowed_cpus", "cpu_quota", "cpu_sets", "host_info"]


@dataclass(frozen=True, slots=True)
class HostInfo:
    """What a profile depends on besides the kernels: processor and system.

    Attributes
    ----------
    cpu, arch, system : str
        Model name, architecture, operating system.
    cores : int
        Logical cores.
    features : str
        Short hash of the instruction-set flags.
    """

    cpu: str
    arch: str
    system: str
    cores: int
    features: str

    def differs_from(self, other: HostInfo) -> tuple[str, ...]:
        """Each fact that differs, as ``"cpu: A, here B"``; the system's name is left out."""
        return tuple(
            f"{name}: {getattr(self, name)}, here {getattr(other, name)}"
            for name in ("cpu", "arch", "cores", "features")
            if getattr(self, name) != getattr(other, name)
        )


@cache
def host_info(root: Path = ROOT) -> HostInfo:
    """Facts of the host that this process runs on.

    Parameters
    ----------
    root : path
        Where ``proc`` is.
    """
    facts: dict[str, str] = {}
    for line in (read_fact(root / "proc/cpuinfo") or "").splitlines():
        key, _, value = line.partition(":")
        facts.setdefault(key.strip().lower(), value.strip())
    # A board's processor has no name of its own, only types of cores: the board is named then.
    board = (read_fact(root / "proc/device-tree/model") or "").strip("\0")
    names = facts.get("model name"), board, facts.get("hardware"), facts.get("cpu part")
    model = next(filter(None, names), platform.processor() or platform.machine())
    flags = facts.get("flags") or facts.get("features") or ""
    return HostInfo(
        cpu=model,
        arch=platform.machine(),
        system=platform.system(),
        cores=os.cpu_count() or 1,
        features=hashlib.sha256(" ".join(sorted(flags.split())).encode()).hexdigest()[:8],
    )


def allowed_cpus() -> tuple[int, ...]:
    """Cores this process may use, ascending."""
    return tuple(sorted(os.sched_getaffinity(0)))


@dataclass(frozen=True, slots=True)
class CpuSets:
    """CPUs of this host: all of them, those switched on, and those this process may use."""

    present: tuple[int, ...]
    online: tuple[int, ...]
    allowed: tuple[int, ...]


def cpu_sets(root: Path = ROOT) -> CpuSets:
    """Which CPUs there are, are on, and are allowed.

    Parameters
    ----------
    root : path
        Where ``sys`` is; what is allowed is asked of the running system.
    """
    allowed = allowed_cpus()
    folder = root / "sys/devices/system/cpu"
    online = read_cpus(folder / "online") or allowed
    return CpuSets(read_cpus(folder / "present") or online, online, allowed)


def cpu_quota(root: Path = ROOT) -> float | None:
    """CPU seconds a second that this process's control group, or one around it, may take.

    Parameters
    ----------
    root : path
        Where ``sys`` and ``proc`` are.

    Returns
    -------
    float or None
        None for any.
    """
    quotas = []
    for line in (read_fact(root / "proc/self/cgroup") or "").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            mounts = [root / "sys/fs/cgroup", root / "sys/fs/cgroup/unified"]
        elif "cpu" in controllers.split(","):
            mounts = [root / "sys/fs/cgroup/cpu", root / f"sys/fs/cgroup/{controllers}"]
        else:
            continue
        inner = Path(path.lstrip("/"))
        quotas += [_quota(mount / part) for mount in mounts for part in (inner, *inner.parents)]
    return min((quota for quota in quotas if quota is not None), default=None)


def _quota(group: Path) -> float | None:
    """Of one control group, in version 2's file or version 1's."""
    if (text := read_fact(group / "cpu.max")) is not None:
        quota, period = text.split()
    else:
        quota = read_fact(group / "cpu.cfs_quota_us") or "-1"
        period = read_fact(group / "cpu.cfs_period_us") or "0"
    return None if quota in ("max", "-1") else int(quota) / int(period)
