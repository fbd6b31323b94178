"""Arithmetic in matrix products and convolutions, which is nearly all there is in a network."""

from __future__ import annotations

import math
from typing import Any

from tvm import relax

from partitioner.frontend.straight import is_call

__all__ = ["flops"]

_CONVOLUTIONS = ("conv1d", "conv2d", "conv3d")


def flops(value: Any) -> float:
    """Floating-point operations of one operator call, a multiply-add as two.

    Parameters
    ----------
    value : relax.Expr
        What a binding computes, with fixed shapes.

    Returns
    -------
    float
        0 for anything but a high-level matrix product or convolution.
    """
    if not isinstance(value, relax.Call):
        return 0.0
    if is_call(value, "relax.matmul"):
        inner = _extents(value.args[0])
        return 2.0 * math.prod(_extents(value)) * (inner[-1] if inner else 0)
    for name in _CONVOLUTIONS:
        if is_call(value, f"relax.nn.{name}"):
            # Each output element sums over one filter, whatever the layout and the groups.
            filters = _extents(value.args[1])
            channels = filters[str(value.attrs.kernel_layout).index("O")]
            return 2.0 * math.prod(_extents(value)) * math.prod(filters) / channels
        if is_call(value, f"relax.nn.{name}_transpose"):
            filters = _extents(value.args[1])
            channels = filters[str(value.attrs.kernel_layout).index("I")]
            return 2.0 * math.prod(_extents(value.args[0])) * math.prod(filters) / channels
    return 0.0


def _extents(expr: Any) -> list[int]:
    return [int(extent) for extent in expr.ty.shape.values]
