"""The profile table: what was measured, where, and with which kernels. Versioned JSON.

A row's key is its op's signature, a device and a number of threads; the table as a whole belongs
to one host, one TVM version and one lowering. A row also says which kernel it is a time of, since
tuning gives an op other kernels: a time of another kernel than the one that would run is no time.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from partitioner.errors import ProfileError
from partitioner.files import write_json
from partitioner.host import HostInfo

__all__ = ["Handover", "Measurement", "OpKey", "Origin", "ProfileTable"]

VERSION = 1
# Interquartile range over median above which a measurement is called noisy.
NOISY = 0.15


@dataclass(frozen=True, slots=True)
class Measurement:
    """Median, spread and number of runs.

    Attributes
    ----------
    median_s, iqr_s : float
        Median and interquartile range, seconds.
    runs : int
        How many runs; 0 for a time that nobody measured.
    interpolated : bool
        Whether it lies between measured times of the same op with more and fewer threads.
    kernel : str
        Digest of the record that the kernel was made by, empty where it was made by rule.
    """

    median_s: float
    iqr_s: float = 0.0
    runs: int = 0
    interpolated: bool = False
    kernel: str = ""

    def __post_init__(self) -> None:
        for name in ("median_s", "iqr_s"):
            _require_time(f"a measurement's {name}", getattr(self, name))

    @property
    def noisy(self) -> bool:
        """Whether the spread is wide against the median."""
        return self.iqr_s > NOISY * self.median_s

    @staticmethod
    def of(times_s: Iterable[float]) -> Measurement:
        """Summarize runs, seconds each.

        Raises
        ------
        ProfileError
            If there are none.
        """
        times = np.asarray(list(times_s), dtype=float)
        if times.size == 0:
            raise ProfileError("nothing was measured: there are no runs to summarize")
        low, middle, high = np.percentile(times, [25, 50, 75])
        return Measurement(float(middle), float(high - low), int(times.size))


@dataclass(frozen=True, slots=True, order=True)
class OpKey:
    """Which kernel, on which device, with how many threads."""

    signature: str
    device: str
    threads: int


@dataclass(frozen=True, slots=True)
class Handover:
    """Cost of handing tensors from one stage to another, per hop.

    Attributes
    ----------
    send_base_s, send_s_per_byte : float
        What the producing stage spends: copying into the channel and waking the consumer.
    recv_base_s, recv_s_per_byte : float
        What the consuming stage spends besides waiting.
    """

    send_base_s: float
    send_s_per_byte: float
    recv_base_s: float
    recv_s_per_byte: float

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            _require_time(f"the hand-over's {name}", value)


@dataclass(frozen=True, slots=True)
class Origin:
    """What the times depend on besides the op.

    Attributes
    ----------
    host : HostInfo
        Processor and system.
    tvm : str
        Version of TVM.
    lowering : str
        Hash of the lowering's rules, which make the kernels; records of tuning are in the rows.
    targets : tuple of (str, str)
        Device name and its TVM target and cores, in words.
    """

    host: HostInfo
    tvm: str
    lowering: str
    targets: tuple[tuple[str, str], ...] = ()

    def differs_from(self, here: Origin) -> tuple[str, ...]:
        """Each fact that differs, in words; empty when the times are valid here."""
        found = list(self.host.differs_from(here.host))
        for name in ("tvm", "lowering"):
            if getattr(self, name) != getattr(here, name):
                found.append(f"{name}: {getattr(self, name)}, here {getattr(here, name)}")
        known = dict(self.targets)
        for device, target in here.targets:
            if known.get(device, target) != target:
                found.append(f"target of {device}: {known[device]}, here {target}")
        return tuple(found)


@dataclass(frozen=True, slots=True)
class ProfileTable:
    """Measured times of ops and hand-over.

    Attributes
    ----------
    origin : Origin
        Where and with what it was measured.
    ops : mapping of OpKey to Measurement
        Seconds a kernel takes, in place in its model.
    host_s : mapping of (device, threads) to float
        Seconds an item costs besides kernels: VM dispatch per op.
    handover : Handover or None
        None until measured.
    estimated : bool
        True when the times come from a model of the machine instead of a clock.
    contended : mapping of OpKey to Measurement
        The same kernels' times while all other cores of the machine were busy, where that was
        measured.
    contended_host_s : mapping of (device, threads) to float
        `host_s` at such times.
    notes : tuple of str
        What was seen while measuring that the times may suffer from.
    """

    origin: Origin
    ops: Mapping[OpKey, Measurement] = field(default_factory=dict)
    host_s: Mapping[tuple[str, int], float] = field(default_factory=dict)
    handover: Handover | None = None
    estimated: bool = False
    contended: Mapping[OpKey, Measurement] = field(default_factory=dict)
    contended_host_s: Mapping[tuple[str, int], float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def time_s(self, key: OpKey) -> float:
        """Median seconds.

        Raises
        ------
        ProfileError
            If this kernel was not measured there.
        """
        try:
            return self.ops[key].median_s
        except KeyError:
            raise ProfileError(
                f"the profile has no time for kernel {key.signature} on {key.device!r} with "
                f"{key.threads} threads; profile again with this device"
            ) from None

    def missing(self, keys: Iterable[OpKey]) -> tuple[OpKey, ...]:
        """Those of `keys` that have no time, each once, in order."""
        return tuple(key for key in dict.fromkeys(keys) if key not in self.ops)

    def unmeasured(self, keys: Iterable[OpKey]) -> tuple[OpKey, ...]:
        """Those of `keys` that have no time or an interpolated one, each once, in order."""
        return tuple(
            key for key in dict.fromkeys(keys) if key not in self.ops or self.ops[key].interpolated
        )

    def without_other_kernels(self, kernels: Mapping[OpKey, str]) -> ProfileTable:
        """Without the times of kernels that are made in another way now.

        Parameters
        ----------
        kernels : mapping of OpKey to str
            Digest of the record that each kernel is made by now, empty for those by rule. Rows
            that are not in it stay.
        """

        def current(rows: Mapping[OpKey, Measurement]) -> dict[OpKey, Measurement]:
            return {
                key: row for key, row in rows.items() if kernels.get(key, row.kernel) == row.kernel
            }

        return replace(self, ops=current(self.ops), contended=current(self.contended))

    def noisy(self) -> tuple[tuple[OpKey, Measurement], ...]:
        """Rows whose spread is wide, the longest first."""
        rows = [(key, row) for key, row in self.ops.items() if row.noisy]
        return tuple(sorted(rows, key=lambda pair: -pair[1].median_s))

    def merged(self, other: ProfileTable) -> ProfileTable:
        """With the rows of `other` added; where both have a row, that of `other`.

        What was measured stays where `other` has only interpolated for the same kernel. One that
        was estimated makes the whole estimated.

        Raises
        ------
        ProfileError
            If they were measured under different conditions.
        """
        differences = self.origin.differs_from(other.origin)
        if differences:
            raise ProfileError("cannot merge profiles that differ in " + "; ".join(differences))
        targets = dict(self.origin.targets) | dict(other.origin.targets)
        return replace(
            self,
            origin=replace(self.origin, targets=tuple(sorted(targets.items()))),
            ops=_merged(self.ops, other.ops),
            host_s={**self.host_s, **other.host_s},
            handover=other.handover or self.handover,
            estimated=self.estimated or other.estimated,
            contended=_merged(self.contended, other.contended),
            contended_host_s={**self.contended_host_s, **other.contended_host_s},
            notes=tuple(dict.fromkeys((*self.notes, *other.notes))),
        )

    def require_from(self, here: Origin) -> None:
        """Refuse times from another machine, build or lowering.

        Raises
        ------
        ProfileError
            Naming each difference.
        """
        differences = self.origin.differs_from(here)
        if differences:
            raise ProfileError(
                "the profile was not made here: " + "; ".join(differences) + ". Profile again, or "
                "allow it (allow_foreign_profile=True, --allow-foreign-profile) to plan for that "
                "machine"
            )

    @property
    def hash(self) -> str:
        """Short hash of everything in it."""
        text = json.dumps(self.to_data(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def to_data(self) -> dict[str, Any]:
        """JSON-ready form."""
        return {
            "version": VERSION,
            "origin": asdict(self.origin),
            "estimated": self.estimated,
            "handover": None if self.handover is None else asdict(self.handover),
            "host_s": [[*key, value] for key, value in sorted(self.host_s.items())],
            "ops": _rows(self.ops),
            "contended": _rows(self.contended),
            "contended_host_s": [
                [*key, value] for key, value in sorted(self.contended_host_s.items())
            ],
            "notes": list(self.notes),
        }

    def save(self, path: str | Path) -> None:
        """Write the table as JSON, whole or not at all."""
        write_json(path, self.to_data())

    @staticmethod
    def load(path: str | Path) -> ProfileTable:
        """Read a table.

        Raises
        ------
        ProfileError
            If the file cannot be read or is no profile.
        """
        try:
            return ProfileTable.from_data(json.loads(Path(path).read_text(encoding="utf-8")))
        except OSError as error:
            raise ProfileError(f"{path}: cannot read the profile: {error.strerror}") from error
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise ProfileError(f"{path}: not JSON ({error}); profile again") from error
        except ProfileError as error:
            raise ProfileError(f"{path}: {error}") from error

    @staticmethod
    def from_data(data: Any) -> ProfileTable:
        """Inverse of `to_data`.

        Raises
        ------
        ProfileError
            If a key is missing or of the wrong kind.
        """
        if not isinstance(data, dict) or data.get("version") != VERSION:
            found = data.get("version") if isinstance(data, dict) else type(data).__name__
            raise ProfileError(
                f"not a profile of version {VERSION} (found {found!r}); profile again"
            )
        try:
            origin = data["origin"]
            return ProfileTable(
                origin=Origin(
                    host=HostInfo(**origin["host"]),
                    tvm=origin["tvm"],
                    lowering=origin["lowering"],
                    targets=tuple((name, target) for name, target in origin["targets"]),
                ),
                ops=dict(_row(row) for row in data["ops"]),
                host_s=_host_times(data["host_s"]),
                handover=None if data["handover"] is None else Handover(**data["handover"]),
                estimated=bool(data["estimated"]),
                # Tables made before these were taken have none of them.
                contended=dict(_row(row) for row in data.get("contended", ())),
                contended_host_s=_host_times(data.get("contended_host_s", ())),
                notes=tuple(str(note) for note in data.get("notes", ())),
            )
        except KeyError as error:
            raise ProfileError(f"the profile lacks the key {error}; profile again") from error
        except (TypeError, ValueError, AttributeError) as error:
            raise ProfileError(f"malformed profile ({error}); profile again") from error


def _require_time(what: str, value: float) -> float:
    if not (math.isfinite(value) and value >= 0):
        raise ProfileError(f"{what} is {value}, which is no time; measure it again")
    return value


def _merged(
    ours: Mapping[OpKey, Measurement], theirs: Mapping[OpKey, Measurement]
) -> dict[OpKey, Measurement]:
    """Rows of both; theirs win, unless they are interpolated and ours measured on that kernel."""
    better = {
        key: row
        for key, row in theirs.items()
        if not row.interpolated
        or key not in ours
        or ours[key].interpolated
        or ours[key].kernel != row.kernel
    }
    return {**ours, **better}


def _host_times(rows: Iterable[Any]) -> dict[tuple[str, int], float]:
    return {
        (str(device), int(threads)): _require_time("a host time", float(seconds))
        for device, threads, seconds in rows
    }


def _rows(rows: Mapping[OpKey, Measurement]) -> list[dict[str, Any]]:
    data = [{**asdict(key), **asdict(row)} for key, row in sorted(rows.items())]
    for row in data:
        if not row["kernel"]:  # by rule: written as it was before there were records
            del row["kernel"]
    return data


def _row(row: dict[str, Any]) -> tuple[OpKey, Measurement]:
    return (
        OpKey(str(row["signature"]), str(row["device"]), int(row["threads"])),
        Measurement(
            float(row["median_s"]),
            float(row["iqr_s"]),
            int(row["runs"]),
            bool(row.get("interpolated", False)),
            str(row.get("kernel", "")),
        ),
    )
