"""One lowering a device kind, used by profiling and build alike: what was profiled is what runs."""

from partitioner.lowering.choice import Choice, Tile
from partitioner.lowering.cpu import build, host_target, kernels_of, lower, tiles_of, workload

__all__ = ["Choice", "Tile", "build", "host_target", "kernels_of", "lower", "tiles_of", "workload"]
