"""What the rules that replace high-level operators by kernels of their own share."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm import relax, tirx
from tvm.ir.expr import GenericConst

from partitioner.lowering.choice import Tile

__all__ = ["Replacement", "const_array", "pick", "static_shape"]

_MOST_TILES = 64


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
    tiles : tuple of tuple of int
        The tiles that the rule knows for this operator, the one that it would take by itself first.
    shape : tuple of int or None
        Shape of its output where it is not that of the operator (same elements, same order).
    """

    name: str
    func: Any
    args: tuple[Any, ...]
    tiles: tuple[Tile, ...]
    shape: tuple[int, ...] | None = None


def pick(tiles: Iterable[Tile], wanted: Tile | None) -> tuple[Tile, ...]:
    """Tiles by estimated time, cut to a number worth trying, with the wanted one in front.

    Parameters
    ----------
    tiles : iterable of tuple of int
        In order of estimated time, each once.
    wanted : tuple of int or None
        Ignored where it is not among them: a record may come from another version of the rule.
    """
    known = tuple(tiles)
    if wanted in known:
        known = (wanted, *(tile for tile in known if tile != wanted))
    return known[:_MOST_TILES]


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
