"""Whether a CPU quota stops this process now and then: what its control groups have counted."""

from __future__ import annotations

from pathlib import Path

__all__ = ["throttle_count"]


def throttle_count(
    groups: str | Path = "/proc/self/cgroup", root: str | Path = "/sys/fs/cgroup"
) -> int:
    """How often the control groups of this process have run out of their quota so far.

    Parameters
    ----------
    groups : path
        Where the kernel lists the process's groups.
    root : path
        Where the control group file systems are mounted.

    Returns
    -------
    int
        Over the process's own group and all around it; 0 where none counts.
    """
    try:
        lines = Path(groups).read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0
    total = 0
    for line in lines:
        _, controllers, path = line.split(":", 2)
        # Version 2 has one tree without a name, version 1 one for each set of controllers.
        if controllers and "cpu" not in controllers.split(","):
            continue
        tree = Path(root) / controllers
        group = tree / path.lstrip("/")
        for folder in (group, *group.parents):
            if not folder.is_relative_to(tree):
                break
            total += _counted(folder / "cpu.stat")
    return total


def _counted(file: Path) -> int:
    try:
        text = file.read_text(encoding="utf-8")
    except OSError:
        return 0
    facts = dict(line.split(maxsplit=1) for line in text.splitlines() if " " in line)
    return int(facts.get("nr_throttled", 0))
