"""The host: its processor and system, and the cores that this process may use."""

from __future__ import annotations

import hashlib
import os
import platform
from dataclasses import dataclass
from functools import cache
from pathlib import Path

__all__ = ["HostInfo", "allowed_cpus", "host_info"]


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
def host_info() -> HostInfo:
    """Facts of the host that this process runs on."""
    model, flags = platform.processor() or platform.machine(), ""
    source = Path("/proc/cpuinfo")
    if source.exists():
        facts: dict[str, str] = {}
        for line in source.read_text(encoding="utf-8", errors="replace").splitlines():
            key, _, value = line.partition(":")
            facts.setdefault(key.strip().lower(), value.strip())
        model = facts.get("model name") or facts.get("hardware") or facts.get("cpu part") or model
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
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))
