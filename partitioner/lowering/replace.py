"""What the rules that replace high-level operators by kernels of their own share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm import relax, tirx
from tvm.ir.expr import GenericConst

__all__ = ["Replacement", "const_array", "static_shape"]


@dataclass(frozen=True, slots=True)
class Replacement:
    """A kernel that takes the place of one operator.

    Attributes
    ----------
    name : str
        Name that the kernel starts with.
    func : tvm.tirx.PrimFunc
        Unscheduled kernel, its outputs last.
    args : tuple of relax.Expr
        Its tensor inputs.
    shape : tuple of int or None
        Shape of its output where it is not that of the operator (same elements, same order).
    """

    name: str
    func: Any
    args: tuple[Any, ...]
    shape: tuple[int, ...] | None = None


def static_shape(expr: Any) -> tuple[int, ...] | None:
    """Shape of a tensor expression, None where a dimension or the shape is unknown."""
    shape = getattr(expr.ty, "shape", None)
    if not isinstance(shape, relax.ShapeExpr):
        return None
    if not all(isinstance(v, tirx.IntImm) for v in shape.values):
        return None
    return tuple(int(v) for v in shape.values)


def const_array(expr: Any, bindings: dict[Any, Any]) -> npt.NDArray[Any] | None:
    """Value of an expression that is a constant, seen through reshapes and transposes.

    Parameters
    ----------
    expr : relax.Expr
    bindings : dict
        What each variable of the function is bound to.

    Returns
    -------
    ndarray or None
        None where the value is not known.
    """
    while isinstance(expr, relax.Var) and expr in bindings:
        expr = bindings[expr]
    if isinstance(expr, GenericConst):
        return np.asarray(expr.value.numpy())
    if isinstance(expr, relax.Call):
        name = getattr(expr.op, "name", "")
        shape = static_shape(expr)
        if name in ("relax.permute_dims", "relax.reshape") and shape is not None:
            inner = const_array(expr.args[0], bindings)
            if inner is None:
                return None
            if name == "relax.reshape":
                return inner.reshape(shape)
            axes = expr.attrs.axes
            return inner.transpose(None if axes is None else [int(a) for a in axes])
    return None
