"""Trees of files as Linux shows its CPUs, for tests that need a machine that is not there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path


def put(root: Path, path: str, text: object) -> None:
    """A file under the root, with the line end that the kernel writes."""
    place = root / path
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(f"{text}\n", encoding="utf-8")


def put_cpus(
    root: Path,
    cpus: Iterable[int],
    *,
    capacity: int | None = None,
    max_khz: int | None = None,
    cur_khz: int | None = None,
    governor: str = "schedutil",
    own_frequency: bool = False,
    threads: int = 1,
    midr: str | None = None,
    caches: Sequence[tuple[int, str, int]] = (),
) -> None:
    """CPUs that are alike and numbered one after the other.

    `threads` neighbours make a core; `caches` are level, size, and how many neighbours share it.
    """
    listed = list(cpus)

    def around(cpu: int, count: int) -> list[int]:
        first = (cpu - listed[0]) // count * count
        return listed[first : first + count]

    for cpu in listed:
        folder = f"sys/devices/system/cpu/cpu{cpu}"
        siblings = ",".join(map(str, around(cpu, threads)))
        put(root, f"{folder}/topology/thread_siblings_list", siblings)
        put(root, f"{folder}/topology/physical_package_id", cpu)
        if capacity is not None:
            put(root, f"{folder}/cpu_capacity", capacity)
        if max_khz is not None:
            domain = [cpu] if own_frequency else listed
            put(root, f"{folder}/cpufreq/cpuinfo_max_freq", max_khz)
            put(root, f"{folder}/cpufreq/related_cpus", " ".join(map(str, domain)))
            put(root, f"{folder}/cpufreq/scaling_governor", governor)
        if cur_khz is not None:
            put(root, f"{folder}/cpufreq/scaling_cur_freq", cur_khz)
        if midr is not None:
            put(root, f"{folder}/regs/identification/midr_el1", midr)
        put(root, f"{folder}/cache/index0/level", 1)
        put(root, f"{folder}/cache/index0/size", "32K")
        put(root, f"{folder}/cache/index0/type", "Instruction")
        for index, (level, size, sharers) in enumerate(caches, start=1):
            cache = f"{folder}/cache/index{index}"
            put(root, f"{cache}/level", level)
            put(root, f"{cache}/size", size)
            put(root, f"{cache}/type", "Unified")
            put(root, f"{cache}/shared_cpu_list", ",".join(map(str, around(cpu, sharers))))


def put_sets(root: Path, present: str, online: str | None = None) -> None:
    """Which CPUs there are, and which are switched on (default: all)."""
    put(root, "sys/devices/system/cpu/present", present)
    put(root, "sys/devices/system/cpu/online", present if online is None else online)


def put_hikey970(root: Path) -> None:
    """Four Cortex-A53 and four Cortex-A73."""
    little, big = [(2, "512K", 4)], [(2, "2048K", 4)]
    put_cpus(root, range(4), capacity=462, max_khz=1844000, midr="0x410fd034", caches=little)
    put_cpus(root, range(4, 8), capacity=1024, max_khz=2362000, midr="0x410fd092", caches=big)
    for cpu in range(4):
        put(root, f"sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_governor", "ondemand")
    put_sets(root, "0-7")
