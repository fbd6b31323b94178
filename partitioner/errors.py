"""One exception a phase; every message says where, what was found, what was needed, what next."""

from __future__ import annotations

__all__ = [
    "BuildError",
    "DeviceError",
    "GraphError",
    "ImportModelError",
    "InfeasibleError",
    "InputError",
    "NoneFoundError",
    "OutputError",
    "PartitionerError",
    "PlanError",
    "ProblemError",
    "ProfileError",
    "StageError",
    "TuningError",
]


class PartitionerError(Exception):
    """Base of every error that a user's input can cause."""


class ImportModelError(PartitionerError):
    """The model file or object cannot be read or imported."""


class GraphError(PartitionerError):
    """The imported module cannot be turned into an op graph, or a graph is malformed."""


class DeviceError(PartitionerError):
    """A device, core list or machine description is wrong or absent on this host."""


class ProfileError(PartitionerError):
    """A profile is malformed, incomplete, or belongs to another machine or build."""


class ProblemError(PartitionerError):
    """A problem's arrays do not fit together or hold impossible values."""


class InfeasibleError(PartitionerError):
    """No assignment satisfies the problem's limits."""


class NoneFoundError(InfeasibleError):
    """No assignment was found in the time given; there may be one all the same."""


class PlanError(PartitionerError):
    """A plan is malformed, belongs to another model, or breaks a rule."""


class BuildError(PartitionerError):
    """A stage cannot be lowered or compiled for its device."""


class TuningError(PartitionerError):
    """Records of tuning cannot be used, or kernels cannot be measured."""


class InputError(PartitionerError):
    """Run-time inputs do not fit the model's inputs (name, shape or dtype)."""


class OutputError(PartitionerError):
    """A plan's outputs are not the uncut model's."""


class StageError(PartitionerError):
    """A stage failed while it ran.

    Attributes
    ----------
    stage : int
        Index of the stage that failed.
    item : int or None
        Number of the item it was working on, None when it failed outside any item.
    """

    def __init__(self, message: str, *, stage: int, item: int | None = None) -> None:
        super().__init__(message)
        self.stage = stage
        self.item = item
