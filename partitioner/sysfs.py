"""What Linux says of each CPU: type, speed, caches, where it sits; nothing is decided here.

Every function takes the folder under which ``sys`` and ``proc`` are found. Files that a kernel does
not have, or a container hides, leave their fact unknown.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from partitioner.core_list import parse_cpus

__all__ = ["ROOT", "Cache", "CpuFacts", "cpu_facts", "cpu_folder", "read_cpus", "read_fact"]

ROOT = Path("/")

# Names that Linux gives to the kinds of cores of one Intel processor.
_HYBRID = {
    "cpu_core": "performance core",
    "cpu_atom": "efficient core",
    "cpu_lowpower": "low-power core",
}

_ARM = 0x41
# Part numbers in the identification registers of Arm's own cores, from their reference manuals.
_ARM_PARTS = {
    0xD03: "Cortex-A53",
    0xD04: "Cortex-A35",
    0xD05: "Cortex-A55",
    0xD07: "Cortex-A57",
    0xD08: "Cortex-A72",
    0xD09: "Cortex-A73",
    0xD0A: "Cortex-A75",
    0xD0B: "Cortex-A76",
    0xD0C: "Neoverse-N1",
    0xD0D: "Cortex-A77",
    0xD40: "Neoverse-V1",
    0xD41: "Cortex-A78",
    0xD44: "Cortex-X1",
    0xD46: "Cortex-A510",
    0xD47: "Cortex-A710",
    0xD48: "Cortex-X2",
    0xD49: "Neoverse-N2",
    0xD4D: "Cortex-A715",
    0xD4E: "Cortex-X3",
    0xD4F: "Neoverse-V2",
    0xD80: "Cortex-A520",
    0xD81: "Cortex-A720",
    0xD82: "Cortex-X4",
}


@dataclass(frozen=True, slots=True)
class Cache:
    """A cache of data, with the CPUs that share it."""

    level: int
    bytes: int
    cpus: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CpuFacts:
    """One logical CPU.

    Attributes
    ----------
    cpu : int
        Its number.
    core_type : str
        ``"Cortex-A73"``, ``"performance core"``, else the processor's name; empty if unknown.
    capacity : int or None
        The scheduler's measure of its speed, 1024 for the fastest of a machine.
    max_freq_hz : int or None
        Highest frequency.
    governor : str or None
        What sets its frequency.
    frequency_domain : tuple of int
        CPUs that always have its frequency, itself included.
    node : int
        NUMA node; 0 if unknown.
    siblings : tuple of int
        Hardware threads of its core, itself included.
    caches : tuple of Cache
        Of data, from the first level up.
    """

    cpu: int
    core_type: str
    capacity: int | None
    max_freq_hz: int | None
    governor: str | None
    frequency_domain: tuple[int, ...]
    node: int
    siblings: tuple[int, ...]
    caches: tuple[Cache, ...]


def cpu_facts(cpus: Iterable[int], root: Path = ROOT) -> tuple[CpuFacts, ...]:
    """What is known of each of these CPUs."""
    types, nodes = _core_types(root), _nodes(root)
    return tuple(_facts(cpu, types.get(cpu), nodes.get(cpu, 0), root) for cpu in cpus)


def cpu_folder(cpu: int, root: Path = ROOT) -> Path:
    """Where a CPU's facts are."""
    return root / f"sys/devices/system/cpu/cpu{cpu}"


def read_fact(path: Path) -> str | None:
    """The text of a file, stripped; None if it cannot be read or is empty."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip() or None
    except OSError:  # some files exist and refuse to be read
        return None


def read_cpus(path: Path) -> tuple[int, ...] | None:
    """A list of CPUs, ``0-3,6`` or ``0 1 2``; None if the file cannot be read or is empty."""
    text = read_fact(path)
    return None if text is None else parse_cpus(",".join(text.split()), str(path))


def _facts(cpu: int, core_type: str | None, node: int, root: Path) -> CpuFacts:
    folder = cpu_folder(cpu, root)
    number = partial(_number, folder)
    max_freq_khz = number("cpufreq/cpuinfo_max_freq")
    return CpuFacts(
        cpu=cpu,
        core_type=core_type or _from_midr(folder) or "",
        capacity=number("cpu_capacity"),
        max_freq_hz=None if max_freq_khz is None else max_freq_khz * 1000,
        governor=read_fact(folder / "cpufreq/scaling_governor"),
        frequency_domain=read_cpus(folder / "cpufreq/related_cpus") or (cpu,),
        node=node,
        siblings=read_cpus(folder / "topology/thread_siblings_list") or (cpu,),
        caches=_caches(folder),
    )


def _number(folder: Path, name: str) -> int | None:
    text = read_fact(folder / name)
    return int(text) if text is not None and re.fullmatch(r"-?\d+", text) else None


def _caches(folder: Path) -> tuple[Cache, ...]:
    found = []
    for place in sorted((folder / "cache").glob("index*")):
        level, size = _number(place, "level"), read_fact(place / "size")
        match = re.fullmatch(r"(\d+)([KM]?)", size or "")
        if level is None or match is None or read_fact(place / "type") == "Instruction":
            continue
        amount = int(match[1]) << {"": 0, "K": 10, "M": 20}[match[2]]
        sharers = read_cpus(place / "shared_cpu_list") or (int(folder.name.removeprefix("cpu")),)
        found.append(Cache(level, amount, sharers))
    return tuple(sorted(found, key=lambda cache: cache.level))


def _nodes(root: Path) -> dict[int, int]:
    """NUMA node of each CPU."""
    return {
        cpu: int(place.name.removeprefix("node"))
        for place in (root / "sys/devices/system/node").glob("node[0-9]*")
        for cpu in read_cpus(place / "cpulist") or ()
    }


def _core_types(root: Path) -> dict[int, str]:
    """Type of each CPU as far as `/proc/cpuinfo` and the hybrid lists name it."""
    types: dict[int, str] = {}
    for block in (read_fact(root / "proc/cpuinfo") or "").split("\n\n"):
        lines = (line.partition(":") for line in block.splitlines())
        facts = {key.strip().lower(): value.strip() for key, _, value in lines}
        if facts.get("processor", "").isdigit() and (name := _type_name(facts)):
            types[int(facts["processor"])] = name
    for folder, name in _HYBRID.items():
        for cpu in read_cpus(root / f"sys/devices/{folder}/cpus") or ():
            types[cpu] = name
    return types


def _type_name(facts: Mapping[str, str]) -> str | None:
    if "cpu part" in facts:
        implementer = int(facts.get("cpu implementer", "0"), 0)
        return _part_name(implementer, int(facts["cpu part"], 0))
    return facts.get("model name") or facts.get("uarch")


def _from_midr(folder: Path) -> str | None:
    """Arm's main identification register names a core that `/proc/cpuinfo` does not."""
    text = read_fact(folder / "regs/identification/midr_el1")
    if text is None:
        return None
    register = int(text, 16)
    return _part_name(register >> 24 & 0xFF, register >> 4 & 0xFFF)


def _part_name(implementer: int, part: int) -> str:
    known = _ARM_PARTS.get(part) if implementer == _ARM else None
    return known or f"part {part:#x} of implementer {implementer:#x}"
