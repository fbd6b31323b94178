"""What a pipeline consists of, as plain values: tensors, runners, replicas, stages."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from partitioner.errors import PlanError
from partitioner.runtime.affinity import allowed_cpus

__all__ = [
    "PipelineSpec",
    "ReplicaSpec",
    "RunnerSpec",
    "StageSpec",
    "TensorId",
    "TensorSpec",
]

TensorId = int | str


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor that crosses a stage's border.

    Attributes
    ----------
    name : str
        The name shown in messages and used for inputs given by name.
    shape : tuple of int
        Fixed extents; ``()`` for a scalar.
    dtype : str
        NumPy's name for the element type, or one that ``ml_dtypes`` defines (``"bfloat16"``).
    """

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        """The element type as NumPy has it."""
        try:
            dtype: np.dtype[Any] = np.dtype(self.dtype)
            return dtype
        except TypeError:
            import ml_dtypes  # Only the types NumPy lacks need it.

            found = getattr(ml_dtypes, self.dtype, None)
            if found is None:
                raise PlanError(
                    f"tensor {self.name!r}: unknown element type {self.dtype!r}; needed one of "
                    "NumPy's or ml_dtypes' names, such as 'float32' or 'bfloat16'."
                ) from None
            extended: np.dtype[Any] = np.dtype(found)
            return extended

    @property
    def nbytes(self) -> int:
        """Size of the dense tensor in bytes."""
        return math.prod(self.shape) * self.numpy_dtype.itemsize

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}{list(self.shape)}"


@dataclass(frozen=True, slots=True)
class RunnerSpec:
    """How a worker obtains the thing that computes its stage.

    The worker imports `factory` and calls it as ``factory(*args, threads=..., cpus=...)``. It must
    return an object with ``run(inputs)``, from a tuple of arrays to a tuple of arrays. Outputs may
    be the runner's own memory, valid until the next ``run``, and may alias inputs.

    Attributes
    ----------
    factory : str
        ``"package.module:function"``.
    args : tuple
        Positional arguments; they travel as JSON, so nothing but what JSON holds.
    """

    factory: str
    args: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class ReplicaSpec:
    """One worker of a stage.

    Attributes
    ----------
    cpus : tuple of int
        The CPUs its threads may use.
    threads : int
        How many threads its kernels use.
    runner : RunnerSpec
        What it computes with.
    env : tuple of (str, str)
        Further environment of a worker process, for instance
        ``("TVM_THREAD_POOL_SPIN_COUNT", "0")``. A worker thread cannot have its own.
    cgroup : str or None
        Directory of the control group that a worker process joins. A worker thread cannot.
    """

    cpus: tuple[int, ...]
    threads: int
    runner: RunnerSpec
    env: tuple[tuple[str, str], ...] = ()
    cgroup: str | None = None


@dataclass(frozen=True, slots=True)
class StageSpec:
    """A set of equal or unequal workers that compute the same part of the model.

    Attributes
    ----------
    name : str
        Shown in messages and traces.
    replicas : tuple of ReplicaSpec
        The workers.
    inputs, outputs : tuple of tensor ids
        In the order in which the runner takes and returns them.
    pattern : tuple of int
        Item ``i`` goes to replica ``pattern[i % len(pattern)]``.
    """

    name: str
    replicas: tuple[ReplicaSpec, ...]
    inputs: tuple[TensorId, ...]
    outputs: tuple[TensorId, ...]
    pattern: tuple[int, ...] = (0,)


@dataclass(frozen=True)
class PipelineSpec:
    """Stages in an order in which no stage needs a later one, and the tensors between them.

    Attributes
    ----------
    stages : tuple of StageSpec
        In topological order.
    tensors : mapping of tensor id to TensorSpec
        Every tensor that crosses a border.
    inputs : tuple of tensor ids
        What the caller provides, in order.
    outputs : tuple of tensor ids
        What the caller gets back, in order; an input may be among them.

    Raises
    ------
    PlanError
        If the parts do not fit together.
    DeviceError
        Not here: CPU lists are checked when a pipeline starts.
    """

    stages: tuple[StageSpec, ...]
    tensors: Mapping[TensorId, TensorSpec]
    inputs: tuple[TensorId, ...]
    outputs: tuple[TensorId, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "tensors", MappingProxyType(dict(self.tensors)))
        _verify(self)

    def producer(self, tensor: TensorId) -> int | None:
        """Index of the stage that makes `tensor`, None for one the caller provides."""
        for index, stage in enumerate(self.stages):
            if tensor in stage.outputs:
                return index
        return None

    def unusable_cpus(self) -> tuple[str, ...]:
        """Each stage that names CPUs this process may not use, with these CPUs, in words."""
        return tuple(
            f"stage {index} ({stage.name}) names CPUs {sorted(lacking)}"
            for index, stage in enumerate(self.stages)
            if (lacking := {c for one in stage.replicas for c in one.cpus} - allowed_cpus())
        )


def _verify(spec: PipelineSpec) -> None:
    if not spec.stages:
        raise PlanError("pipeline: no stages were given, at least one is needed.")
    if not spec.outputs:
        raise PlanError("pipeline: no outputs were given; name the tensors the caller wants.")
    _no_repeats("pipeline inputs", spec.inputs)
    made: dict[TensorId, str] = dict.fromkeys(spec.inputs, "an input of the pipeline")
    for index, stage in enumerate(spec.stages):
        where = f"stage {index} ({stage.name})"
        _verify_replicas(where, stage)
        _no_repeats(f"{where} inputs", stage.inputs)
        _no_repeats(f"{where} outputs", stage.outputs)
        for tensor in stage.inputs:
            if tensor not in made:
                raise PlanError(
                    f"{where}: input {tensor!r} is made by no earlier stage and is no pipeline "
                    "input; order the stages so that producers come first."
                )
        for tensor in stage.outputs:
            if tensor in made:
                raise PlanError(
                    f"{where}: output {tensor!r} is already {made[tensor]}; "
                    "a tensor has one producer."
                )
        made.update((tensor, f"an output of {where}") for tensor in stage.outputs)
    for tensor in spec.outputs:
        if tensor not in made:
            raise PlanError(f"pipeline: output {tensor!r} is made by no stage.")
    for tensor in made:
        if tensor not in spec.tensors:
            raise PlanError(
                f"pipeline: tensor {tensor!r}, {made[tensor]}, has no TensorSpec; add it."
            )
    wanted = set(spec.outputs).union(*(stage.inputs for stage in spec.stages))
    for index, stage in enumerate(spec.stages):
        if wanted.isdisjoint(stage.outputs):
            raise PlanError(
                f"stage {index} ({stage.name}): nobody needs any of its outputs "
                f"{list(stage.outputs)}; leave the stage out."
            )


def _verify_replicas(where: str, stage: StageSpec) -> None:
    count = len(stage.replicas)
    if sorted(set(stage.pattern)) != list(range(count)) or not count:
        raise PlanError(
            f"{where}: dispatch pattern {list(stage.pattern)} must use each of its "
            f"{count} replicas, numbered from 0, and no other."
        )
    for number, replica in enumerate(stage.replicas):
        if not replica.cpus or replica.threads < 1:
            raise PlanError(
                f"{where}, replica {number}: found CPUs {list(replica.cpus)} and "
                f"{replica.threads} threads; at least one of each is needed."
            )


def _no_repeats(where: str, tensors: tuple[TensorId, ...]) -> None:
    repeated = [tensor for tensor, count in Counter(tensors).items() if count > 1]
    if repeated:
        raise PlanError(f"{where}: {repeated} listed more than once; list each tensor once.")
