"""The plan: stages, placements and predicted figures; JSON in and out.

A stage lists its ops by name, so that a person can move an op from one stage to the next in the
file. Everything that follows from the ops (tensors, hashes) is worked out again on reading.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from partitioner.core_list import format_cpus, parse_cpus
from partitioner.errors import DeviceError, PlanError
from partitioner.files import write_json

__all__ = ["MOST_REPLICAS", "STRATEGIES", "Alternative", "Placement", "Plan", "Predicted", "Stage"]

VERSION = 1

MOST_REPLICAS = 16
"""Most replicas of a stage or of the whole model, unless asked for otherwise."""

STRATEGIES: Mapping[str, str] = {
    "best": "whichever is best: a pipeline or a simple alternative",
    "pipeline": "at least two stages, on cores of their own",
    "single": "the model uncut on the best single device, or on all cores",
    "replicas": "the whole model on several devices, items shared by speed",
}
"""What a user may ask for, and what it means."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Where one replica of a stage runs.

    Attributes
    ----------
    device : str
        Name of the device.
    cpus : tuple of int
        Cores its threads are bound to; one thread a core.
    share : float
        Part of the items that go to this replica.
    compute_s, copy_s, busy_s : float or None
        Predicted seconds an item takes it: its ops; hand-over in and out; both together. None
        when the plan was edited.
    """

    device: str
    cpus: tuple[int, ...]
    share: float = 1.0
    compute_s: float | None = None
    copy_s: float | None = None
    busy_s: float | None = None


@dataclass(frozen=True, slots=True)
class Stage:
    """Ops that run as one executable.

    Attributes
    ----------
    ops : tuple of str
        Op names in module order.
    placements : tuple of Placement
        One, or one a replica.
    in_bytes, out_bytes : float or None
        Bytes an item that enter from other stages or the caller, and that leave to them, counted
        once for each stage that reads them.
    leaves : tuple of (str, int)
        Name and bytes of each tensor that leaves the stage.
    bytes : float or None
        Predicted memory of one replica.
    """

    ops: tuple[str, ...]
    placements: tuple[Placement, ...]
    in_bytes: float | None = None
    out_bytes: float | None = None
    leaves: tuple[tuple[str, int], ...] = ()
    bytes: float | None = None


@dataclass(frozen=True, slots=True)
class Predicted:
    """The solver's figures, frozen before the plan first runs.

    Attributes
    ----------
    period_s, latency_s : float
        Steady-state seconds between completions; seconds of one item through an empty pipeline.
    bound_s : float
        Proven lower bound of the objective over all plans of the strategy asked for.
    status, method : str
        ``"OPTIMAL"`` or ``"FEASIBLE"``, and which solver.
    bottleneck : str
        What sets the period.
    latency_model, transfer_model : str
        How they were counted (`partitioner.problem.LatencyModel`; docs/architecture.md, Time).
    estimated : bool
        True when the times behind it were not measured.
    interpolated : int
        Kernels whose times lie between measured ones with more and with fewer threads.
    """

    period_s: float
    latency_s: float
    bound_s: float
    status: str
    method: str
    bottleneck: str
    latency_model: str = "atomic"
    transfer_model: str = "sync"
    estimated: bool = False
    interpolated: int = 0

    def value(self, objective: str) -> float:
        """Period or latency, seconds."""
        return self.period_s if objective == "period" else self.latency_s

    def gap(self, objective: str) -> float:
        """``(objective - bound) / objective``."""
        value = self.value(objective)
        return max(0.0, (value - self.bound_s) / value) if value > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Alternative:
    """Another plan, or a small change to this one, with its predicted figures."""

    name: str
    period_s: float
    latency_s: float

    def value(self, objective: str) -> float:
        """Period or latency, seconds."""
        return self.period_s if objective == "period" else self.latency_s


@dataclass(frozen=True, slots=True)
class Plan:
    """How a model is cut and placed.

    Attributes
    ----------
    model, graph_hash : str
        Name and `OpGraph.hash` of the model it is for.
    machine, profile_hash : str
        The machine's name and the profile behind the predictions.
    name : str
        ``"pipeline"``, ``"replicas"``, or what runs it uncut, e.g. ``"single cores:0-1"``.
    objective : str
        ``"period"`` or ``"latency"``.
    stages : tuple of Stage
        In an order along the graph's edges.
    predicted : Predicted or None
        None once the stages were edited.
    alternatives : tuple of Alternative
        The simple plans that it was compared with.
    neighbours : tuple of Alternative
        The best plans one step away, the best first: why a cut is where it is.
    sources : tuple of (str, tuple of str)
        For each op the source model's nodes that it holds.
    """

    model: str
    graph_hash: str
    machine: str
    profile_hash: str
    name: str
    objective: str
    stages: tuple[Stage, ...]
    predicted: Predicted | None
    alternatives: tuple[Alternative, ...] = ()
    neighbours: tuple[Alternative, ...] = ()
    sources: tuple[tuple[str, tuple[str, ...]], ...] = ()

    def __str__(self) -> str:
        from partitioner.plan_table import plan_table

        return plan_table(self)

    @property
    def assignment_hash(self) -> str:
        """Hash of the stages' ops and placements: differs once a person has moved something."""
        text = json.dumps(
            [[s.ops, [(p.device, p.cpus, p.share) for p in s.placements]] for s in self.stages]
        )
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def to_data(self) -> dict[str, Any]:
        """JSON-ready form."""
        return {
            "version": VERSION,
            "model": self.model,
            "graph_hash": self.graph_hash,
            "machine": self.machine,
            "profile_hash": self.profile_hash,
            "name": self.name,
            "objective": self.objective,
            "assignment_hash": self.assignment_hash,
            "predicted": None if self.predicted is None else asdict(self.predicted),
            "stages": [_stage_data(stage) for stage in self.stages],
            "alternatives": [asdict(alternative) for alternative in self.alternatives],
            "neighbours": [asdict(neighbour) for neighbour in self.neighbours],
            "sources": {op: list(names) for op, names in self.sources},
        }

    def save(self, path: str | Path) -> None:
        """Write the plan as JSON, whole or not at all."""
        write_json(path, self.to_data())

    @staticmethod
    def load(path: str | Path) -> Plan:
        """Read a plan; one whose stages were edited comes back without predicted figures.

        Raises
        ------
        PlanError
            If the file cannot be read or is no plan.
        """
        try:
            return Plan.from_data(json.loads(Path(path).read_text(encoding="utf-8")))
        except OSError as error:
            raise PlanError(f"{path}: cannot read the plan: {error.strerror}") from error
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise PlanError(f"{path}: not JSON ({error}); restore it or plan again") from error
        except PlanError as error:
            raise PlanError(f"{path}: {error}") from error

    @staticmethod
    def from_data(data: Any) -> Plan:
        """Inverse of `to_data`.

        Raises
        ------
        PlanError
            If a key is missing or of the wrong kind.
        """
        if not isinstance(data, dict) or data.get("version") != VERSION:
            found = data.get("version") if isinstance(data, dict) else type(data).__name__
            raise PlanError(f"not a plan of version {VERSION} (found {found!r}); plan again")
        try:
            for key in ("predicted", "stages", "alternatives", "neighbours"):
                _require_figures(data[key], key)
            plan = Plan(
                model=str(data["model"]),
                graph_hash=str(data["graph_hash"]),
                machine=str(data["machine"]),
                profile_hash=str(data["profile_hash"]),
                name=str(data["name"]),
                objective=str(data["objective"]),
                stages=tuple(_stage_from(row) for row in data["stages"]),
                predicted=None if data["predicted"] is None else Predicted(**data["predicted"]),
                alternatives=tuple(Alternative(**row) for row in data["alternatives"]),
                neighbours=tuple(Alternative(**row) for row in data["neighbours"]),
                sources=tuple((op, tuple(names)) for op, names in data["sources"].items()),
            )
        except KeyError as error:
            raise PlanError(f"the plan lacks the key {error}; restore it or plan again") from error
        except (TypeError, ValueError, AttributeError, DeviceError) as error:
            raise PlanError(f"malformed plan ({error}); restore it or plan again") from error
        if not plan.stages:
            raise PlanError("the plan has no stages; it needs at least one")
        if plan.objective not in ("period", "latency"):
            raise PlanError(
                f"the plan's objective is {plan.objective!r}; it must be 'period' or 'latency'"
            )
        return plan if plan.assignment_hash == data.get("assignment_hash") else plan.stripped()

    def stripped(self) -> Plan:
        """Without predicted figures, as after an edit."""
        stages = tuple(
            Stage(s.ops, tuple(Placement(p.device, p.cpus, p.share) for p in s.placements))
            for s in self.stages
        )
        return replace(self, stages=stages, predicted=None, alternatives=(), neighbours=())


def _stage_data(stage: Stage) -> dict[str, Any]:
    data = asdict(stage)
    for placement in data["placements"]:
        placement["cpus"] = format_cpus(placement["cpus"])
    return data


def _stage_from(row: dict[str, Any]) -> Stage:
    ops = row["ops"]
    if not isinstance(ops, list):
        raise TypeError(f"a stage's ops are {ops!r}; a list of names is needed")
    return Stage(
        **{
            **row,
            "ops": tuple(map(str, ops)),
            "placements": tuple(_placement_from(placement) for placement in row["placements"]),
            "leaves": tuple((str(name), int(size)) for name, size in row["leaves"]),
        }
    )


def _placement_from(row: dict[str, Any]) -> Placement:
    cpus, device = row["cpus"], str(row["device"])
    if not isinstance(cpus, str):
        raise TypeError(f'cpus of {device!r} are {cpus!r}; text such as "0-3" or "4,5" is needed')
    return Placement(**{**row, "device": device, "cpus": parse_cpus(cpus, device) if cpus else ()})


_ABOVE_ZERO = ("period_s", "latency_s", "share")
_MAY_BE_NONE = ("compute_s", "copy_s", "busy_s", "in_bytes", "out_bytes", "bytes")


def _require_figures(value: Any, where: str) -> None:
    """Refuse what is no finite number: JSON admits NaN, and what prints a plan divides."""
    if isinstance(value, list):
        for index, item in enumerate(value):
            _require_figures(item, f"{where}[{index}]")
    if not isinstance(value, dict):
        return
    for key, item in value.items():
        if key not in (*_ABOVE_ZERO, *_MAY_BE_NONE, "bound_s"):
            _require_figures(item, f"{where}.{key}")
        elif not (item is None and key in _MAY_BE_NONE):
            number = isinstance(item, int | float) and math.isfinite(item)
            if not number or item < 0 or (item == 0 and key in _ABOVE_ZERO):
                least = "above zero" if key in _ABOVE_ZERO else "zero or more"
                raise ValueError(f"{where}.{key} is {item!r}; a number {least} is needed")
