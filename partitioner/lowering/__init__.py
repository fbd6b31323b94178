"""One lowering a device kind, used by profiling and build alike: what was profiled is what runs."""

from partitioner.lowering.cpu import build, host_target, kernels_of, lower

__all__ = ["build", "host_target", "kernels_of", "lower"]
