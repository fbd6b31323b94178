"""From a stage's module to a shared library on disk, kept so that nothing is compiled twice."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import tvm
import tvm_ffi

import partitioner.lowering
from partitioner import lowering
from partitioner.core_list import format_cpus
from partitioner.errors import BuildError, DeviceError, InputError
from partitioner.files import cache_home, require_writable, write_json
from partitioner.frontend.signature import signature
from partitioner.host import host_info
from partitioner.lowering.inline import group_calls
from partitioner.lowering.isa import kind_of
from partitioner.machine import Device, Machine
from partitioner.profiling.table import Origin
from partitioner.tuning.defaults import default_records
from partitioner.tuning.records import Records

__all__ = ["BuildCache", "Built", "Recorded", "lowering_hash", "origin_of", "target_of"]

_MOST_BYTES = 4 << 30


@dataclass(frozen=True, slots=True)
class Built:
    """A compiled stage.

    Attributes
    ----------
    path : Path
        The shared library.
    kernels : tuple of (str, tuple of str)
        For each op, in the order they run, the symbols of its kernels.
    recorded : tuple of str
        The ops whose kernels are made by a record of tuning; the others' are by rule.
    """

    path: Path
    kernels: tuple[tuple[str, tuple[str, ...]], ...]
    recorded: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Recorded:
    """How tuning found that an op's kernel is best made on a device.

    Attributes
    ----------
    choice : Choice
        A tile or a trace.
    digest : str
        Hash of the choice: what a time measured with such a kernel is known by.
    source : str
        Where the record is from, in words.
    """

    choice: lowering.Choice
    digest: str
    source: str


class BuildCache:
    """Compiled stages by content: module, target, records of tuning, TVM and lowering.

    Parameters
    ----------
    folder : path, optional
        Where to keep them. Default: ``$XDG_CACHE_HOME/partitioner/builds``, which is thinned out,
        the longest unused first, when it grows over 4 GiB.
    records : Records, optional
        By which kernels are made. Default: the user's and the shipped ones, read when first
        needed; ``Records.none()`` leaves everything to the rules.
    """

    def __init__(self, folder: str | Path | None = None, records: Records | None = None) -> None:
        self.folder = Path(folder) if folder else cache_home() / "builds"
        self._records = records

    @property
    def records(self) -> Records:
        """By which kernels are made."""
        if self._records is None:
            self._records = default_records()
        return self._records

    def using(self, records: Records) -> BuildCache:
        """The same folder, with kernels made by other records."""
        return BuildCache(self.folder, records)

    def recorded(self, signatures: Iterable[str], device: Device) -> dict[str, Recorded]:
        """Those ops, by signature, whose kernels a record decides on this many of these cores.

        Raises
        ------
        DeviceError
            As `target_of`.
        TuningError
            If the records cannot be read.
        """
        if not self.records:
            return {}
        target, threads, records = target_of(device), device.threads, self.records
        found = {}
        for each in dict.fromkeys(signatures):
            choice = records.choice(each, target, threads)
            if choice is not None:
                digest = records.digest(each, target, threads)
                source = f"{records.source(each, target, threads)} for {kind_of(target)}"
                found[each] = Recorded(choice, digest, source)
        return found

    def build(self, module: Any, device: Device) -> Built:
        """Lower and compile a stage's module, or find it already compiled.

        Parameters
        ----------
        module : tvm.IRModule
            As `partitioner.rewrite.split` makes it: `main` calls one function an op.
        device : Device
            Where it will run; its target decides the kernels, its number of cores which records
            count. Where they make no difference, one build serves any number of threads.

        Raises
        ------
        BuildError
            If it cannot be lowered, compiled or linked.
        TuningError
            If the records cannot be read.
        """
        target = target_of(device)
        recorded = self._recorded_groups(module, device)
        choices = {op: each.choice for op, each in recorded.items()}
        digests = {op: each.digest for op, each in recorded.items()}
        library = self.folder / f"{_key(module, target, digests)}.so"
        record = library.with_suffix(".json")
        if library.exists() and record.exists():
            os.utime(library)
            kernels = json.loads(record.read_text(encoding="utf-8"))
            named = tuple((op, tuple(symbols)) for op, symbols in kernels)
            return Built(library, named, tuple(recorded))
        lowered = lowering.lower(module, target, choices)
        kernels = lowering.kernels_of(lowered)
        self._make_room()
        try:
            executable = lowering.build(lowered, target)
        except tvm.error.InternalError as error:
            raise BuildError(
                f"TVM cannot compile the stage {kernels[0][0]}..{kernels[-1][0]} for "
                f"{device.name!r}: {' '.join(str(error).split())}; export the model without that "
                "operator"
            ) from error
        _export(executable, library)
        write_json(record, kernels)
        return Built(library, kernels, tuple(recorded))

    def _recorded_groups(self, module: Any, device: Device) -> dict[str, Recorded]:
        """What records say of a module's groups, by name."""
        if not self.records:  # then nothing is hashed either
            return {}
        groups = group_calls(module["main"], module)
        signatures = {var.name_hint: signature(module, module[var]) for var in groups}
        found = self.recorded(signatures.values(), device)
        return {name: found[each] for name, each in signatures.items() if each in found}

    def _make_room(self) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._thin_out()
            require_writable(self.folder / "stage.so")
        except (OSError, InputError) as error:
            raise BuildError(
                f"{self.folder}: cannot keep compiled stages here: {error}; set XDG_CACHE_HOME to "
                "a folder that can be written, or give auto_partition a BuildCache"
            ) from error

    def _thin_out(self) -> None:
        libraries = sorted(self.folder.glob("*.so"), key=lambda path: -path.stat().st_mtime)
        total = 0
        for library in libraries:
            total += library.stat().st_size
            if total > _MOST_BYTES:
                library.unlink(missing_ok=True)
                library.with_suffix(".json").unlink(missing_ok=True)


def target_of(device: Device) -> Any:
    """TVM target of a device: its own, or this host's.

    Raises
    ------
    DeviceError
        If the target is malformed or of a kind that nothing is lowered for.
    """
    if device.kind != "cpu":
        raise DeviceError(
            f"device {device.name!r}: stages are lowered for CPU devices only; "
            f"give cores instead of {device.kind!r}"
        )
    if device.target is None:
        # Threads are set when a stage runs, so that the target is the same for any number of them.
        return lowering.host_target(1)
    try:
        text = device.target
        return tvm.target.Target(json.loads(text) if text.lstrip().startswith("{") else text)
    except (ValueError, TypeError, RuntimeError) as error:
        raise DeviceError(
            f"device {device.name!r}: TVM takes no target {device.target!r}: {error}"
        ) from error


def origin_of(machine: Machine) -> Origin:
    """What times measured here and now, on these devices, depend on."""
    return Origin(
        host=host_info(),
        tvm=str(tvm.__version__),
        lowering=lowering_hash(),
        targets=tuple(
            (device.name, f"{target_of(device)} on cores {format_cpus(device.cpus)}")
            for device in machine.devices
        ),
    )


@cache
def lowering_hash() -> str:
    """Hash of the lowering's own sources: other schedules make other kernels."""
    digest = hashlib.sha256()
    for source in sorted(Path(partitioner.lowering.__file__).parent.glob("*.py")):
        digest.update(source.read_bytes())
    return digest.hexdigest()[:12]


def _key(module: Any, target: Any, digests: Mapping[str, str]) -> str:
    # Constants count: two stages of one shape with other weights are different libraries. Names
    # count too, since the record of kernels refers to ops by name.
    parts = (
        tvm_ffi.structural_hash(module),
        sorted(var.name_hint for var in module.get_global_vars()),
        str(target),
        tvm.__version__,
        lowering_hash(),
        *sorted(digests.items()),
    )
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:24]


def _export(executable: Any, library: Path) -> None:
    if shutil.which("g++") is None and shutil.which("c++") is None:
        raise BuildError(
            "no C++ compiler is there to link a stage with; install one (Debian: apt-get install "
            "g++)"
        )
    # Its own folder: the linker writes beside its output, and the library must appear whole.
    with tempfile.TemporaryDirectory(prefix=".build-", dir=library.parent) as folder:
        temporary = Path(folder) / "stage.so"
        try:
            executable.export_library(str(temporary))
        except RuntimeError as error:
            raise BuildError(f"linking {library.name} failed: {error}") from error
        temporary.replace(library)
