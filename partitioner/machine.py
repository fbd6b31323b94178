"""Devices, memory pools and links of one machine; TOML in and out; detection of this host's."""

from __future__ import annotations

import math
import platform
import re
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tomli_w

from partitioner.clusters import HostClusters, find_clusters
from partitioner.core_list import format_cpus, parse_cpus
from partitioner.errors import DeviceError
from partitioner.files import write_text
from partitioner.host import CpuSets, cpu_sets

__all__ = ["Device", "Link", "Machine", "MemoryPool"]

_MACHINE_FILE = (
    "a machine file has a name and [[device]] tables with name and cpus, optionally [[memory]] and "
    "[[link]]"
)
_DEVICE_KEYS = {"name", "kind", "cpus", "index", "target", "memory", "cgroup", "capacity"}
_KINDS = ("cpu", "cuda", "opencl", "vulkan", "metal")


@dataclass(frozen=True, slots=True)
class Device:
    """A core cluster, any number of whose cores a stage can have, or an accelerator.

    Attributes
    ----------
    name : str
        Unique in its machine; the string it was made from unless given.
    kind : str
        ``"cpu"`` or TVM's name of an accelerator kind.
    cpus : tuple of int
        For a CPU device the cores that its stages' threads are bound to, one thread a core; for
        an accelerator the cores of the thread that drives it, empty for any.
    index : int
        Which accelerator of its kind.
    target : str or None
        TVM target as JSON text or tag; None for the host's own instruction set.
    memory : str
        Name of the memory pool that it draws on.
    cgroup : str or None
        Folder of a control group that every process of a stage here joins: a quota or CPU set
        of the system's.
    capacity : float
        Speed of one core, 1 for the machine's fastest; what guesses go by, never measured times.
    """

    name: str
    kind: str = "cpu"
    cpus: tuple[int, ...] = ()
    index: int = 0
    target: str | None = None
    memory: str = "host"
    cgroup: str | None = None
    capacity: float = 1.0

    def __post_init__(self) -> None:
        if self.kind not in _KINDS:
            raise DeviceError(
                f"device {self.name!r} is of kind {self.kind!r}; known: {', '.join(_KINDS)}"
            )
        if self.kind == "cpu" and not self.cpus:
            raise DeviceError(f"CPU device {self.name!r} lists no cores; give it at least one")
        if any(not isinstance(cpu, int) or cpu < 0 for cpu in self.cpus):
            raise DeviceError(
                f"device {self.name!r} lists cores {list(self.cpus)}; cores are whole numbers "
                "from 0 up"
            )
        if len(set(self.cpus)) != len(self.cpus):
            raise DeviceError(f"device {self.name!r} lists a core twice: {format_cpus(self.cpus)}")
        if self.cgroup is not None and not Path(self.cgroup).is_absolute():
            raise DeviceError(
                f"device {self.name!r} has the control group {self.cgroup!r}; give the folder's "
                "whole path, such as /sys/fs/cgroup/little"
            )
        if not 0 < self.capacity < math.inf:
            raise DeviceError(
                f"device {self.name!r} has a capacity of {self.capacity!r}; give a core's speed "
                "above 0, where 1 is the machine's fastest"
            )

    @property
    def threads(self) -> int:
        """Threads that run a stage's kernels here."""
        return max(1, len(self.cpus)) if self.kind == "cpu" else 1

    @staticmethod
    def parse(text: str) -> Device:
        """Read ``"cores:0-3"``, ``"cores:4,5"`` or ``"cuda:0"``.

        Raises
        ------
        DeviceError
            If the text is none of these.
        """
        name = text.strip()
        kind, _, rest = name.partition(":")
        if kind == "cores":
            return Device(name=name, cpus=parse_cpus(rest, name))
        if kind in _KINDS and kind != "cpu" and re.fullmatch(r"\d+", rest or "0"):
            return Device(name=name, kind=kind, index=int(rest or 0), memory=name)
        raise DeviceError(
            f"unknown device {text!r}; write cores:0-3, cores:4,5, cpu (this host's clusters), or "
            "an accelerator such as cuda:0"
        )


@dataclass(frozen=True, slots=True)
class MemoryPool:
    """Memory that some devices share; `bytes` None for no budget."""

    name: str
    bytes: int | None = None

    def __post_init__(self) -> None:
        if self.bytes is not None and not (isinstance(self.bytes, int) and self.bytes >= 0):
            raise DeviceError(
                f"memory {self.name!r} has a budget of {self.bytes!r} bytes; give a whole number, "
                "zero or more, or leave it out"
            )


@dataclass(frozen=True, slots=True)
class Link:
    """A directed link: ``latency_s + bytes / bytes_per_s``."""

    source: str
    target: str
    latency_s: float
    bytes_per_s: float

    def __post_init__(self) -> None:
        if not (0 <= self.latency_s < math.inf and self.bytes_per_s > 0):
            raise DeviceError(
                f"link {self.source!r} > {self.target!r} has latency_s {self.latency_s} and "
                f"bytes_per_s {self.bytes_per_s}; a latency is zero or more, a rate above zero"
            )


@dataclass(frozen=True, slots=True)
class Machine:
    """Devices with the memory and links between them.

    Raises
    ------
    DeviceError
        If names repeat, devices share a core, or a pool or link end is not there.
    """

    name: str
    devices: tuple[Device, ...]
    memories: tuple[MemoryPool, ...] = ()
    links: tuple[Link, ...] = field(default=())

    def __post_init__(self) -> None:
        if not self.devices:
            raise DeviceError(f"machine {self.name!r} has no devices; name at least one")
        owner: dict[int, str] = {}
        names: set[str] = set()
        for device in self.devices:
            if device.name in names:
                raise DeviceError(
                    f"machine {self.name!r} has two devices named {device.name!r}; names are unique"
                )
            names.add(device.name)
            for cpu in device.cpus:
                if cpu in owner:
                    raise DeviceError(
                        f"core {cpu} belongs to both {owner[cpu]!r} and {device.name!r}; "
                        "give each core to one device"
                    )
                owner[cpu] = device.name
        if len({pool.name for pool in self.memories}) < len(self.memories):
            raise DeviceError(
                f"machine {self.name!r} has two memories of one name among "
                f"{', '.join(pool.name for pool in self.memories)}; names are unique"
            )
        for link in self.links:
            for end in (link.source, link.target):
                if end not in names:
                    raise DeviceError(
                        f"a link of machine {self.name!r} ends at {end!r}; "
                        f"its devices are {', '.join(sorted(names))}"
                    )
        missing = {device.memory for device in self.devices} - {m.name for m in self.memories}
        implied = tuple(MemoryPool(name) for name in sorted(missing))
        object.__setattr__(self, "memories", (*self.memories, *implied))

    @staticmethod
    def of(devices: Machine | Sequence[Device | str | object] | str | Device | None) -> Machine:
        """A machine from whatever a user names devices by.

        Parameters
        ----------
        devices : None, Machine, Device, str, TVM device, or a sequence of these
            None, ``"cpu"`` and TVM's CPU device are this host's clusters.

        Raises
        ------
        DeviceError
            For unknown strings, overlapping core lists, or objects that name no device.
        """
        if devices is None:
            return Machine.detect()
        if isinstance(devices, Machine):
            return devices
        listed: Iterable[object] = (
            [devices] if isinstance(devices, str | Device) or not _is_sequence(devices) else devices
        )
        found = tuple(device for item in listed for device in _devices(item))
        return Machine(platform.node() or "host", found)

    @staticmethod
    def detect(found: HostClusters | None = None) -> Machine:
        """This host's core clusters, a device each, as far as this process may use them.

        Parameters
        ----------
        found : HostClusters, optional
            What `partitioner.clusters.find_clusters` gave; default: ask it.
        """
        clusters = (found or find_clusters()).clusters
        devices = (Device(each.name, cpus=each.cpus, capacity=each.capacity) for each in clusters)
        return Machine(platform.node() or "host", tuple(devices))

    def device(self, name: str) -> Device:
        """The device of that name.

        Raises
        ------
        DeviceError
            If there is none; the known names are listed.
        """
        for device in self.devices:
            if device.name == name:
                return device
        known = ", ".join(device.name for device in self.devices)
        raise DeviceError(f"machine {self.name!r} has no device {name!r}; it has {known}")

    def all_cores(self) -> Device | None:
        """All CPU devices joined into one, to run the whole model with a thread a core.

        None when there are fewer than two, or they differ in target, memory or control group.
        """
        parts = [device for device in self.devices if device.kind == "cpu"]
        alike = {(part.target, part.memory, part.cgroup) for part in parts}
        if len(parts) < 2 or len(alike) > 1:
            return None
        cpus = tuple(sorted(cpu for part in parts for cpu in part.cpus))
        return Device(
            name=f"cores:{format_cpus(cpus)}",
            cpus=cpus,
            target=parts[0].target,
            memory=parts[0].memory,
            cgroup=parts[0].cgroup,
            # Kernels give each thread an equal part, so all wait for the slowest.
            capacity=min(part.capacity for part in parts),
        )

    def require_present(self, sets: CpuSets | None = None) -> None:
        """Check that this host has the cores and lets this process use them.

        Parameters
        ----------
        sets : CpuSets, optional
            The CPUs there are; default: ask the system.

        Raises
        ------
        DeviceError
            Naming the cores that are absent, offline or forbidden, and what to do.
        """
        sets = sets or cpu_sets()
        for device in self.devices:
            lacking = set(device.cpus) - (set(sets.allowed) & set(sets.online))
            if lacking:
                raise DeviceError(
                    f"device {device.name!r}: {_why_lacking(lacking, sets)}, or plan for cores out "
                    f"of {format_cpus(sorted(set(sets.allowed) & set(sets.online)))}"
                )

    @staticmethod
    def load(path: str | Path) -> Machine:
        """Read a machine from TOML.

        Raises
        ------
        DeviceError
            If the file cannot be read or its keys are wrong.
        """
        try:
            data = tomllib.loads(Path(path).read_text(encoding="utf-8"))
            return Machine._from_data(data)
        except OSError as error:
            raise DeviceError(f"{path}: cannot read the machine: {error.strerror}") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise DeviceError(f"{path}: not TOML ({error}); correct or rewrite it") from error
        except DeviceError as error:
            raise DeviceError(f"{path}: {error}") from error
        except KeyError as error:
            raise DeviceError(f"{path}: the key {error} is missing; {_MACHINE_FILE}") from error
        except (TypeError, ValueError, AttributeError) as error:
            raise DeviceError(
                f"{path}: not a machine description ({error}); {_MACHINE_FILE}"
            ) from error

    def save(self, path: str | Path, notes: Iterable[str] = ()) -> None:
        """Write the machine as TOML, under lines of comment."""
        comments = "".join(f"# {note}\n" for note in notes)
        write_text(path, comments + tomli_w.dumps(self.to_data()))

    def to_data(self) -> dict[str, Any]:
        """TOML- and JSON-ready form."""
        devices = []
        for device in self.devices:
            row: dict[str, Any] = {"name": device.name, "kind": device.kind}
            if device.cpus:
                row["cpus"] = format_cpus(device.cpus)
            if device.index:
                row["index"] = device.index
            if device.target is not None:
                row["target"] = device.target
            row["memory"] = device.memory
            if device.cgroup is not None:
                row["cgroup"] = device.cgroup
            if device.capacity != 1.0:
                row["capacity"] = device.capacity
            devices.append(row)
        memories = [
            {"name": m.name} if m.bytes is None else {"name": m.name, "bytes": m.bytes}
            for m in self.memories
        ]
        links = [
            {
                "source": link.source,
                "target": link.target,
                "latency_s": link.latency_s,
                "bytes_per_s": link.bytes_per_s,
            }
            for link in self.links
        ]
        return {"name": self.name, "device": devices, "memory": memories, "link": links}

    @staticmethod
    def _from_data(data: dict[str, Any]) -> Machine:
        devices = []
        for row in data["device"]:
            unknown = set(row) - _DEVICE_KEYS
            if unknown:
                raise ValueError(f"device {row.get('name')!r} has unknown keys {sorted(unknown)}")
            cpus = row.get("cpus", "")
            listed = parse_cpus(cpus, row["name"]) if isinstance(cpus, str) and cpus else cpus
            devices.append(Device(**{**row, "cpus": tuple(listed or ())}))
        return Machine(
            str(data["name"]),
            tuple(devices),
            tuple(MemoryPool(**row) for row in data.get("memory", ())),
            tuple(Link(**row) for row in data.get("link", ())),
        )


def _why_lacking(lacking: set[int], sets: CpuSets) -> str:
    """What keeps these cores from being used, and what would lift it."""
    if absent := sorted(lacking - set(sets.present)):
        return (
            f"this host has no core {format_cpus(absent)} (it has {format_cpus(sets.present)}); "
            "use a machine file of this host"
        )
    if offline := sorted(lacking - set(sets.online)):
        return (
            f"core {format_cpus(offline)} is offline; switch it on in "
            f"/sys/devices/system/cpu/cpu{offline[0]}/online"
        )
    return (
        f"this process may not use core {format_cpus(sorted(lacking))}; widen its CPU set "
        "(taskset, or its container's cpuset)"
    )


def _is_sequence(value: object) -> bool:
    return isinstance(value, list | tuple)


def _devices(item: object) -> tuple[Device, ...]:
    """What one of a user's items stands for."""
    if isinstance(item, Device):
        return (item,)
    text = item if isinstance(item, str) else _tvm_name(item)
    return Machine.detect().devices if text.strip() == "cpu" else (Device.parse(text),)


def _tvm_name(item: object) -> str:
    # A TVM device prints as "cpu:0", "cuda:1"; this module does not import TVM to find out.
    if type(item).__module__.split(".")[0] in ("tvm", "tvm_ffi"):
        kind, _, index = str(item).partition(":")
        return "cpu" if kind == "cpu" else f"{kind}:{index or 0}"
    raise DeviceError(
        f"{item!r} names no device; give a string such as 'cores:0-3', a Device, or a TVM device"
    )
