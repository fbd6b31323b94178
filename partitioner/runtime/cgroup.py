"""Control groups: a stage's processes join one, and a quota makes a core slower than it is.

Boards hand out cores and processor time by control groups; a process that is to have its device's
share must be in the device's group before it starts threads. `quota` makes such a group for a
stand-in: a machine whose cores are all equal gets slow ones.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from partitioner.errors import DeviceError

__all__ = ["join", "quota"]

_MEMBERS = "cgroup.procs"
_PREFIX = "partitioner-quota-"
_EMPTY_S = 5.0
_LOOK_UP_S = 0.02


def join(path: str) -> None:
    """Move this process, with all its threads, into a control group and confirm it.

    Parameters
    ----------
    path : str
        The group's directory, of either version of the interface.

    Raises
    ------
    DeviceError
        If there is no such group or this process may not join it.
    """
    members = Path(path) / _MEMBERS
    if not members.exists():
        raise DeviceError(
            f"control group {path}: there is no {_MEMBERS} in it, so it is none (or is gone); "
            "create the group before the pipeline starts, or take it out of the device's "
            "description."
        )
    pid = str(os.getpid())
    try:
        members.write_text(pid, encoding="ascii")
        joined = pid in members.read_text(encoding="ascii").split()
    except OSError as error:
        raise DeviceError(
            f"control group {path}: cannot join ({error.strerror}); needed: the right to write "
            f"{_MEMBERS} (root, or the folder given to this user), in a cpuset group cores and "
            "memory nodes, in the unified interface a group without groups below it."
        ) from error
    if not joined:
        raise DeviceError(
            f"control group {path}: process {pid} was written to {_MEMBERS} and is not in it; the "
            "folder is no control group, or one of another container's; name one of this host's."
        )


@contextmanager
def quota(share: float, *, cores: int = 1, period_s: float = 0.01) -> Iterator[str]:
    """Make a control group whose threads together run `share` of `cores` cores' time.

    The kernel stops a group at a clock tick once it has used up the time of a period, and lets it
    go on in the next. So a thread is not slow evenly: it runs at the core's full speed for a
    tick (1 to 10 ms, 4 ms with the usual 250 Hz) or more and then stands still. Times much longer
    than a period are `1 / share` times what they were; of times much shorter, most are what they
    were and some have a whole stop in them: their mean is right and their median is not. Periods
    shorter than a tick or two miss the share, long ones make long stops.

    Parameters
    ----------
    share : float
        Part of each core's time, above 0 and below 1.
    cores : int
        How many cores the group's threads use.
    period_s : float
        Over which the share holds, 0.001 to 1 s.

    Yields
    ------
    str
        The group's directory, for `Device.cgroup`. It is removed at the end; what a killed
        process left is removed by the next call.

    Raises
    ------
    DeviceError
        If the system lets this process make none; with the reason.
    """
    if not 0 < share < 1 or cores < 1 or not 0.001 <= period_s <= 1:
        raise DeviceError(
            f"quota: found a share of {share} of {cores} cores in periods of {period_s} s; needed "
            "a share between 0 and 1, a core or more, and a period from 0.001 to 1 s."
        )
    parent = _parent()
    for left in parent.glob(f"{_PREFIX}*"):
        owner = re.match(rf"{_PREFIX}(\d+)-", left.name)
        if owner and not Path(f"/proc/{owner[1]}").exists():
            with suppress(OSError):  # Workers of a killed caller may be about to end.
                left.rmdir()
    group = parent / f"{_PREFIX}{os.getpid()}-{time.monotonic_ns()}"
    try:
        group.mkdir()
    except OSError as error:
        raise DeviceError(
            f"quota: cannot make a control group below {parent} ({error.strerror}); run as root, "
            "or have the folder given to this user."
        ) from error
    try:
        _limit(group, round(share * cores * period_s * 1e6), round(period_s * 1e6))
        yield str(group)
    finally:
        _remove(group)


def _parent() -> Path:
    """This process's own group under the processor-time controller.

    Version 1 has a tree for the controller; in version 2 one tree serves all, and a group's
    ``cgroup.subtree_control`` says whether groups below it can have quotas.
    """
    own = {}
    for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines():
        _, controllers, path = line.split(":", 2)
        own.update(dict.fromkeys(controllers.split(","), path))
    for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split()[:3]
        mount = Path(before.split()[4])
        if kind == "cgroup" and "cpu" in options.split(","):
            group = mount / own.get("cpu", "/").lstrip("/")
            return group if group.exists() else mount
        if kind == "cgroup2":
            group = mount / own.get("", "/").lstrip("/")
            for folder in (group, group.parent, mount):
                enabled = folder / "cgroup.subtree_control"
                if enabled.exists() and "cpu" in enabled.read_text(encoding="ascii").split():
                    return folder
    raise DeviceError(
        "quota: no control group of this process can limit processor time (no cpu controller is "
        "mounted, or not handed on to groups below); run on a host, or in a container, that has it."
    )


def _limit(group: Path, quota_us: int, period_us: int) -> None:
    try:
        if (group / "cpu.max").exists():
            (group / "cpu.max").write_text(f"{quota_us} {period_us}", encoding="ascii")
        else:
            (group / "cpu.cfs_period_us").write_text(str(period_us), encoding="ascii")
            (group / "cpu.cfs_quota_us").write_text(str(quota_us), encoding="ascii")
    except OSError as error:
        raise DeviceError(
            f"quota: {group} refuses {quota_us} us of every {period_us} us ({error.strerror}); "
            "the least is 1000 us, and the group above may have a limit of its own."
        ) from error


def _remove(group: Path) -> None:
    """Remove a group; whoever is still in it is moved to the group above."""
    until = time.monotonic() + _EMPTY_S
    while True:
        try:
            left = (group / _MEMBERS).read_text(encoding="ascii").split()
            for pid in left:
                with suppress(ProcessLookupError):  # It has ended meanwhile.
                    (group.parent / _MEMBERS).write_text(pid, encoding="ascii")
            group.rmdir()
            return
        except FileNotFoundError:
            return  # Somebody else has removed it.
        except OSError as error:  # Busy for as long as a process in it takes to end.
            if time.monotonic() > until:
                raise DeviceError(
                    f"quota: cannot remove {group} ({error.strerror}); end what is in its "
                    f"{_MEMBERS} and remove the folder."
                ) from error
        time.sleep(_LOOK_UP_S)
