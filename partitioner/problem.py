"""What a solver is given and what it returns: plain arrays and enums, no TVM, no solver.

Indices: an *op* is a row, an *option* (one device with one number of its cores) a column. The
caller, who hands in the model's inputs and takes its outputs, is the endpoint after the last
option in every transfer array.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any

import numpy as np
import numpy.typing as npt

from partitioner.problem_check import check_problem

__all__ = [
    "Evaluation",
    "LatencyModel",
    "Objective",
    "Problem",
    "Solution",
    "SolveStats",
    "Status",
    "TransferCost",
]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

# Stands for an array whose length only the problem knows; filled in when it is made.
_UNSET: Ints = np.zeros(0, dtype=np.int64)


class Objective(Enum):
    """What is minimized."""

    PERIOD = "period"
    """Steady-state seconds between completions."""
    LATENCY = "latency"
    """Seconds of one item, by the latency model."""
    COPIES = "copies"
    """Tensors moved from a stage to another, once for each stage that reads them."""
    MEMORY = "memory"
    """Bytes demanded of all pools together."""
    DEVICES = "devices"
    """Replicas of all stages together."""


class LatencyModel(Enum):
    """How one item's time through the stages is counted."""

    SERIAL = "serial"
    """Everything in a row: the sum of op times, host times and transfers."""
    ATOMIC = "atomic"
    """Each stage runs as a whole once its inputs are there; independent stages overlap."""
    LIST = "list"
    """Each stage runs one op at a time in op order, each as soon as its own inputs are there;
    stages overlap (`partitioner.list_schedule`). The ops of a stage may lie anywhere."""


class Status(Enum):
    """What a solver claims."""

    OPTIMAL = "OPTIMAL"
    FEASIBLE = "FEASIBLE"
    INFEASIBLE = "INFEASIBLE"
    UNKNOWN = "UNKNOWN"


@dataclass(frozen=True, slots=True, eq=False)
class TransferCost:
    """Seconds to move a tensor of `amount` units between endpoints: ``base + amount * per_unit``.

    Attributes
    ----------
    base_s, per_unit_s : array, shape (n_options + 1, n_options + 1)
        From row to column; the last endpoint is the caller.
    """

    base_s: Floats
    per_unit_s: Floats

    def __post_init__(self) -> None:
        for name, array in _arrays(self).items():
            object.__setattr__(self, name, _frozen(array))

    @staticmethod
    def zero(n_options: int) -> TransferCost:
        """No cost anywhere."""
        nothing = np.zeros((n_options + 1, n_options + 1))
        return TransferCost(nothing, nothing)

    def seconds(self, source: int, target: int, amount: float) -> float:
        """Time for `amount` units from endpoint `source` to endpoint `target`."""
        return float(self.base_s[source, target] + amount * self.per_unit_s[source, target])


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """A partitioning problem, frozen.

    Attributes
    ----------
    op_names : tuple of str, length n_ops
        Ops in a topological order.
    option_names : tuple of str, length n_options
        Placement options, e.g. ``"big x2"``.
    time_s : array, shape (n_ops, n_options)
        Seconds an op takes; inf where it cannot run.
    allowed : array of bool, shape (n_ops, n_options)
        False where a pin or the user forbids it.
    host_s : array, shape (n_options,)
        Fixed seconds an item costs a stage on that option, besides its ops and transfers.
    uses : array of int, shape (n_options, n_resources)
        Units of each resource (a core, a device) that one stage on that option occupies.
    capacity : array of int, shape (n_resources,)
        Units there are.
    pool_of : array of int, shape (n_options,)
        Memory pool each option draws on.
    pool_bytes : array, shape (n_pools,)
        Budget of each pool; inf for none.
    producer : array of int, shape (n_tensors,)
        Op that makes each tensor, -1 for a model input.
    consumers : tuple of tuple of int, length n_tensors
        Distinct ops that read each tensor.
    to_caller : array of bool, shape (n_tensors,)
        Model outputs.
    amount : array, shape (n_tensors,)
        Units a transfer is priced by (bytes).
    tensor_bytes : array, shape (n_tensors,)
        Memory that a tensor takes.
    send, recv, link : TransferCost
        Part of a transfer charged to the producing stage, to the consuming stage, and to the link
        between them. ``sync`` transfers have no link part, ``async`` ones nothing else.
    bus_of : array of int, shape (n_options + 1, n_options + 1)
        Links with the same number >= 0 share one bus and add up; -1 is a link of its own.
    send_once : bool
        True: a producer pays one send however many stages read the tensor (it goes to a memory
        that all can read), the dearest of them. False: one for each consuming stage.
    constant_bytes : array, shape (n_constants,)
        Size of each constant, stored once in every stage that reads it.
    constant_ops : tuple of tuple of int, length n_constants
        Ops that read it.
    live_bytes : array, shape (n_ops,)
        Activation bytes alive while the op runs; a stage needs the largest of its ops.
    queue_slots : int
        Copies of every tensor that enters a stage held in the stage's pool.
    colocate : tuple of tuple of int
        Groups of ops that must share a stage.
    same_option : tuple of tuple of int
        Groups of ops that must be on one option, in one stage or in several. It differs from
        `colocate` on an option without `uses` only, where stages are without end.
    max_stages : int
        Largest number of stages.
    contiguous : bool
        True: stages are numbered along the edges, so that a pipeline can run them in order.
        False: the ops of a stage may lie anywhere and stage numbers are labels; latency is then
        the serial sum, unless the model is ``LIST``.
    replicas : array of int, shape (n_options,)
        Equal replicas that a stage on that option runs as; they share items, so that its period
        is its busy time over their number, and each holds the stage's memory. `uses` counts all
        of them; times and transfers are those of one item. One each by default.
    host_core : array of int, shape (n_options,)
        Host core whose time `host_s` of that option takes, besides the stage's own; -1 (default)
        for none.
    objective : Objective
        What is minimized.
    second : Objective or None
        What is minimized next, among assignments whose first objective is within 1e-6 of the
        least, relatively.
    period_cap_s, latency_cap_s : float
        Limits on the period and the latency; inf for none.
    latency_model : LatencyModel
        How latency is counted; ``LIST`` needs a problem that is not contiguous.

    Raises
    ------
    ProblemError
        If shapes disagree, order is broken, or a value is NaN, negative or infinite where it
        must not be.
    """

    op_names: tuple[str, ...]
    option_names: tuple[str, ...]
    time_s: Floats
    allowed: Bools
    host_s: Floats
    uses: Ints
    capacity: Ints
    pool_of: Ints
    pool_bytes: Floats
    producer: Ints
    consumers: tuple[tuple[int, ...], ...]
    to_caller: Bools
    amount: Floats
    tensor_bytes: Floats
    send: TransferCost
    recv: TransferCost
    link: TransferCost
    bus_of: Ints
    constant_bytes: Floats
    constant_ops: tuple[tuple[int, ...], ...]
    live_bytes: Floats
    max_stages: int
    queue_slots: int = 0
    send_once: bool = False
    colocate: tuple[tuple[int, ...], ...] = ()
    same_option: tuple[tuple[int, ...], ...] = ()
    contiguous: bool = True
    replicas: Ints = field(default_factory=lambda: _UNSET)
    host_core: Ints = field(default_factory=lambda: _UNSET)
    objective: Objective = Objective.PERIOD
    second: Objective | None = None
    period_cap_s: float = float("inf")
    latency_cap_s: float = float("inf")
    latency_model: LatencyModel = LatencyModel.ATOMIC

    def __post_init__(self) -> None:
        for name, usual in (("replicas", 1), ("host_core", -1)):
            if getattr(self, name) is _UNSET:
                object.__setattr__(self, name, np.full(self.n_options, usual, dtype=np.int64))
        check_problem(self)
        for name, array in _arrays(self).items():
            object.__setattr__(self, name, _frozen(array))

    @property
    def n_ops(self) -> int:
        """Number of ops."""
        return len(self.op_names)

    @property
    def n_options(self) -> int:
        """Number of placement options; also the index of the caller as an endpoint."""
        return len(self.option_names)

    @property
    def n_tensors(self) -> int:
        """Number of tensors."""
        return len(self.consumers)

    @property
    def edges(self) -> tuple[tuple[int, int], ...]:
        """Distinct (producer op, consumer op) pairs, sorted."""
        return tuple(
            sorted(
                {
                    (int(producer), consumer)
                    for producer, readers in zip(self.producer, self.consumers, strict=True)
                    if producer >= 0
                    for consumer in readers
                }
            )
        )

    def runs(self) -> Bools:
        """Where an op may and can run, shape (n_ops, n_options)."""
        return np.asarray(self.allowed & np.isfinite(self.time_s))


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What an assignment costs, by `partitioner.evaluation.evaluate`.

    Attributes
    ----------
    period_s : float
        Steady-state seconds between completions.
    latency_s : float
        Seconds of one item through an empty pipeline, by the problem's latency model.
    compute_s, send_s, recv_s, busy_s : tuple of tuple of float
        For each stage, for each of its replicas: op times; transfers out and in charged to it;
        all of it with host time.
    stage_period_s : tuple of float
        Busy time of each stage over its replicas.
    link_s : tuple of (str, float)
        Busy time of links, buses and the caller, those above zero.
    stage_bytes : tuple of float
        Memory of one replica of each stage.
    pool_bytes : tuple of float
        Memory demanded of each pool.
    copies : int
        Tensors moved from a stage to another, once for each stage that reads them.
    devices : int
        Replicas of all stages together.
    bottleneck : str
        What sets the period, e.g. ``"stage 1"``.
    violations : tuple of str
        Rules broken; empty when feasible.
    """

    period_s: float
    latency_s: float
    compute_s: tuple[tuple[float, ...], ...]
    send_s: tuple[tuple[float, ...], ...]
    recv_s: tuple[tuple[float, ...], ...]
    busy_s: tuple[tuple[float, ...], ...]
    stage_period_s: tuple[float, ...]
    link_s: tuple[tuple[str, float], ...]
    stage_bytes: tuple[float, ...]
    pool_bytes: tuple[float, ...]
    copies: int
    devices: int
    bottleneck: str
    violations: tuple[str, ...] = ()

    @property
    def feasible(self) -> bool:
        """Whether every rule holds."""
        return not self.violations

    @property
    def memory_bytes(self) -> float:
        """Memory demanded of all pools together."""
        return sum(self.pool_bytes)

    def value(self, objective: Objective) -> float:
        """The objective; inf when infeasible."""
        if not self.feasible:
            return float("inf")
        values = {
            Objective.PERIOD: self.period_s,
            Objective.LATENCY: self.latency_s,
            Objective.COPIES: self.copies,
            Objective.MEMORY: self.memory_bytes,
            Objective.DEVICES: self.devices,
        }
        return float(values[objective])


@dataclass(frozen=True, slots=True)
class SolveStats:
    """How a solution was found and what is proven.

    Attributes
    ----------
    status : Status
        OPTIMAL only with a proven bound within 1e-6 relative of the objective.
    objective, bound : float
        Value by `evaluation` and the proven lower bound, in the objective's unit.
    wall_s : float
        Seconds spent.
    method : str
        Which solver.
    second, second_bound : float or None
        The same of the second objective, where the problem has one: no assignment that is as good
        in the first is below the bound in the second.
    """

    status: Status
    objective: float
    bound: float
    wall_s: float
    method: str
    second: float | None = None
    second_bound: float | None = None

    @property
    def gap(self) -> float:
        """``(objective - bound) / objective``; 0 when both are 0, inf without an objective."""
        if not np.isfinite(self.objective):
            return float("inf")
        if self.objective <= 0:
            return 0.0
        return max(0.0, (self.objective - self.bound) / self.objective)


@dataclass(frozen=True, slots=True)
class Solution:
    """An assignment with its score.

    Attributes
    ----------
    stage_of : tuple of int, length n_ops
        Stage of each op; in a contiguous problem stages are numbered so that no edge goes back.
    placements : tuple of tuple of int
        For each stage the options its replicas run on (one entry: no replicas). Unequal replicas
        share items in proportion to their speed.
    evaluation : Evaluation
        Scored by `partitioner.evaluation`.
    stats : SolveStats
        How it was found.
    """

    stage_of: tuple[int, ...]
    placements: tuple[tuple[int, ...], ...]
    evaluation: Evaluation
    stats: SolveStats = field(
        default_factory=lambda: SolveStats(Status.FEASIBLE, float("nan"), 0.0, 0.0, "given")
    )


def _arrays(value: Problem | TransferCost) -> dict[str, npt.NDArray[Any]]:
    found = {f.name: getattr(value, f.name) for f in fields(value)}
    return {name: array for name, array in found.items() if isinstance(array, np.ndarray)}


def _frozen(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    copy = array.copy()
    copy.setflags(write=False)
    return copy
