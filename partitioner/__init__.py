"""Cut a network into pipeline stages for unequal devices: measure, decide with proof, run.

The public names; each is imported when first used, so that a worker process that needs only the
runtime does not load compilers and solvers.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from partitioner.api import auto_partition, import_model, profile_model
    from partitioner.cost import build_problem
    from partitioner.errors import PartitionerError
    from partitioner.evaluation import evaluate
    from partitioner.graph import OpGraph
    from partitioner.machine import Device, Machine
    from partitioner.partition import Partition
    from partitioner.plan import Plan
    from partitioner.planning import choose, make_plan
    from partitioner.problem import Problem, Solution
    from partitioner.profiling.table import ProfileTable
    from partitioner.rewrite.split import split
    from partitioner.runtime.pipeline import Pipeline
    from partitioner.runtime.trace import Trace
    from partitioner.simulation import simulate
    from partitioner.solvers import solve
    from partitioner.tuning.records import Records
    from partitioner.tuning.session import tune

_HOME = {
    "auto_partition": "partitioner.api",
    "build_problem": "partitioner.cost",
    "choose": "partitioner.planning",
    "Device": "partitioner.machine",
    "evaluate": "partitioner.evaluation",
    "import_model": "partitioner.api",
    "Machine": "partitioner.machine",
    "make_plan": "partitioner.planning",
    "OpGraph": "partitioner.graph",
    "Partition": "partitioner.partition",
    "PartitionerError": "partitioner.errors",
    "Pipeline": "partitioner.runtime.pipeline",
    "Plan": "partitioner.plan",
    "Problem": "partitioner.problem",
    "profile_model": "partitioner.api",
    "ProfileTable": "partitioner.profiling.table",
    "Records": "partitioner.tuning.records",
    "Solution": "partitioner.problem",
    "simulate": "partitioner.simulation",
    "solve": "partitioner.solvers",
    "split": "partitioner.rewrite.split",
    "Trace": "partitioner.runtime.trace",
    "tune": "partitioner.tuning.session",
}

__all__ = [
    "Device",
    "Machine",
    "OpGraph",
    "Partition",
    "PartitionerError",
    "Pipeline",
    "Plan",
    "Problem",
    "ProfileTable",
    "Records",
    "Solution",
    "Trace",
    "auto_partition",
    "build_problem",
    "choose",
    "evaluate",
    "import_model",
    "make_plan",
    "profile_model",
    "simulate",
    "solve",
    "split",
    "tune",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'partitioner' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
