"""The plan: stages, placements and predicted figures; JSON in and out; its structural check.

A stage lists its ops by name, so that a person can move an op from one stage to the next in the
file. Everything that follows from the ops (tensors, hashes) is worked out again on reading.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from partitioner.errors import DeviceError, PlanError
from partitioner.files import write_json
from partitioner.graph import OpGraph
from partitioner.machine import Device, Machine, format_cpus, parse_cpus

__all__ = ["Alternative", "Placement", "Plan", "Predicted", "Stage", "stage_tensors", "verify_plan"]

VERSION = 1


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
    busy_s : float or None
        Predicted seconds an item keeps it busy; None when the plan was edited.
    """

    device: str
    cpus: tuple[int, ...]
    share: float = 1.0
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
    compute_s, send_s, recv_s : float or None
        Predicted parts of the busy time, on the first placement.
    bytes : float or None
        Predicted memory of one replica.
    """

    ops: tuple[str, ...]
    placements: tuple[Placement, ...]
    compute_s: float | None = None
    send_s: float | None = None
    recv_s: float | None = None
    bytes: float | None = None


@dataclass(frozen=True, slots=True)
class Predicted:
    """The solver's figures, frozen before the plan first runs.

    Attributes
    ----------
    period_s, latency_s : float
        Steady-state seconds between completions; seconds of one item through an empty pipeline.
    bound_s : float
        Proven lower bound of the objective over all plans that were open to the solver.
    status, method : str
        ``"OPTIMAL"`` or ``"FEASIBLE"``, and which solver.
    bottleneck : str
        What sets the period.
    latency_model, transfer_model : str
        How they were counted (SEMANTICS).
    estimated : bool
        True when the times behind it were not measured.
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

    def gap(self, objective: str) -> float:
        """``(objective - bound) / objective``."""
        value = self.period_s if objective == "period" else self.latency_s
        return max(0.0, (value - self.bound_s) / value) if value > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Alternative:
    """A simple plan that competed, with its predicted figures."""

    name: str
    period_s: float
    latency_s: float


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
        ``"pipeline"``, or the alternative that won, e.g. ``"all cores"``.
    objective : str
        ``"period"`` or ``"latency"``.
    stages : tuple of Stage
        In an order along the graph's edges.
    predicted : Predicted or None
        None once the stages were edited.
    alternatives : tuple of Alternative
        What it was compared with.
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

    def stage_of(self, graph: OpGraph) -> tuple[int, ...]:
        """Stage of each op of `graph`.

        Raises
        ------
        PlanError
            If an op is missing, listed twice, or not in the graph.
        """
        return _stage_of(self, graph)

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
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise PlanError(f"malformed plan: {type(error).__name__} {error}") from error
        if not plan.stages:
            raise PlanError("the plan has no stages; it needs at least one")
        return plan if plan.assignment_hash == data.get("assignment_hash") else plan.stripped()

    def stripped(self) -> Plan:
        """Without predicted figures, as after an edit."""
        stages = tuple(
            Stage(s.ops, tuple(replace(p, busy_s=None) for p in s.placements)) for s in self.stages
        )
        return replace(self, stages=stages, predicted=None, alternatives=())


def stage_tensors(
    graph: OpGraph, stage_of: Sequence[int]
) -> tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]:
    """For each stage the tensor ids that enter and that leave it, ascending.

    A tensor needed by several stages enters each of them; one that only the model's caller needs
    leaves as well.
    """
    count = max(stage_of) + 1
    enter: list[set[int]] = [set() for _ in range(count)]
    leave: list[set[int]] = [set() for _ in range(count)]
    for tensor in graph.tensors:
        home = None if tensor.producer is None else stage_of[tensor.producer]
        targets = {stage_of[consumer] for consumer in tensor.consumers} - {home}
        for target in targets:
            enter[target].add(tensor.id)
        if home is not None and (targets or tensor.id in graph.outputs):
            leave[home].add(tensor.id)
    return tuple((tuple(sorted(i)), tuple(sorted(o))) for i, o in zip(enter, leave, strict=True))


def verify_plan(plan: Plan, graph: OpGraph, machine: Machine) -> None:
    """Check that a plan can be built: model, each op once, order, devices, cores, pins, budgets.

    Raises
    ------
    PlanError
        Naming the first rule broken and what to do.
    """
    if plan.graph_hash != graph.hash:
        raise PlanError(
            f"the plan is for model {plan.model!r} (graph {plan.graph_hash}), this is "
            f"{graph.name!r} (graph {graph.hash}); plan again for this model"
        )
    stage_of = plan.stage_of(graph)
    for u, v in graph.edges:
        if stage_of[u] > stage_of[v]:
            raise PlanError(
                f"op {graph.ops[u].name!r} in stage {stage_of[u]} feeds {graph.ops[v].name!r} in "
                f"the earlier stage {stage_of[v]}; move one so that no edge goes back"
            )
    owner: dict[int, int] = {}
    for index, stage in enumerate(plan.stages):
        if not stage.placements:
            raise PlanError(f"stage {index} has no placement; give it a device")
        for placement in stage.placements:
            _verify_placement(index, placement, machine, owner)
        _verify_pins(index, stage, graph)
    _verify_memory(plan, machine)


def _verify_placement(
    index: int, placement: Placement, machine: Machine, owner: dict[int, int]
) -> None:
    device = _device_for(machine, placement)
    extra = set(placement.cpus) - set(device.cpus)
    if extra:
        raise PlanError(
            f"stage {index} wants core {format_cpus(sorted(extra))} of device {device.name!r}, "
            f"which has {format_cpus(device.cpus)}"
        )
    for cpu in placement.cpus:
        if cpu in owner:
            raise PlanError(
                f"core {cpu} is given to stage {owner[cpu]} and again to stage {index}; "
                "a core serves one replica of one stage"
            )
        owner[cpu] = index
    if not 0 < placement.share <= 1:
        raise PlanError(f"stage {index}: share {placement.share} must be above 0 and at most 1")


def _device_for(machine: Machine, placement: Placement) -> Device:
    together = machine.all_cores()
    if together is not None and placement.device == together.name:
        return together
    try:
        return machine.device(placement.device)
    except DeviceError as error:
        raise PlanError(f"the plan needs a device that is absent: {error}") from error


def _verify_pins(index: int, stage: Stage, graph: OpGraph) -> None:
    for name in stage.ops:
        pin = graph.find_op(name).pinned_to
        for placement in stage.placements:
            if pin is not None and placement.device != pin:
                raise PlanError(
                    f"op {name!r} is pinned to {pin!r} but stage {index} runs on "
                    f"{placement.device!r}; move the op or lift the pin"
                )


def _verify_memory(plan: Plan, machine: Machine) -> None:
    demand: dict[str, float] = {}
    for stage in plan.stages:
        for placement in stage.placements:
            pool = _device_for(machine, placement).memory
            demand[pool] = demand.get(pool, 0.0) + (stage.bytes or 0.0)
    for memory in machine.memories:
        need = demand.get(memory.name, 0.0)
        if memory.bytes is not None and need > memory.bytes:
            raise PlanError(
                f"memory pool {memory.name!r} needs {need:.0f} bytes, its budget is "
                f"{memory.bytes}; raise the budget or plan again with it"
            )


def _stage_of(plan: Plan, graph: OpGraph) -> tuple[int, ...]:
    ids = {op.name: op.id for op in graph.ops}
    stage_of = [-1] * len(ids)
    for index, stage in enumerate(plan.stages):
        if not stage.ops:
            raise PlanError(f"stage {index} has no ops; remove it")
        for name in stage.ops:
            if name not in ids:
                raise PlanError(f"stage {index} lists {name!r}, which the model does not have")
            if stage_of[ids[name]] >= 0:
                raise PlanError(
                    f"op {name!r} is in stage {stage_of[ids[name]]} and in stage {index}; "
                    "each op belongs to one stage"
                )
            stage_of[ids[name]] = index
    lost = [op.name for op in graph.ops if stage_of[op.id] < 0]
    if lost:
        raise PlanError(f"{len(lost)} ops are in no stage, the first is {lost[0]!r}; add them")
    return tuple(stage_of)


def _stage_data(stage: Stage) -> dict[str, Any]:
    data = asdict(stage)
    for placement in data["placements"]:
        placement["cpus"] = format_cpus(placement["cpus"])
    return data


def _stage_from(row: dict[str, Any]) -> Stage:
    placements = tuple(
        Placement(**{**p, "cpus": parse_cpus(p["cpus"], p["device"]) if p["cpus"] else ()})
        for p in row["placements"]
    )
    return Stage(**{**row, "ops": tuple(row["ops"]), "placements": placements})
