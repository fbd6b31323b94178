"""Operators on constants, evaluated with NumPy.

TVM folds a constant by compiling and running one kernel for it, some 40 ms each: half a minute
for a network with a hundred batch normalizations. What weights commonly pass through is folded
here in microseconds; TVM folds the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tvm import relax

from partitioner.frontend.straight import array_of

__all__ = ["evaluate"]

_Array = np.ndarray[Any, Any]


def evaluate(call: Any, arguments: Sequence[Any]) -> _Array | None:
    """Value of an operator call on constants.

    Parameters
    ----------
    call : relax.Call
        The call, for its operator and attributes.
    arguments : sequence of expression
        Its arguments with known constants in place of variables.

    Returns
    -------
    ndarray or None
        None when an argument is no constant, or the operator is not one of the common ones.
    """
    rule = _RULES.get(str(getattr(call.op, "name", "")))
    if rule is None:
        return None
    values = [_value(argument) for argument in arguments]
    if any(value is None for value in values):
        return None
    with np.errstate(all="ignore"):  # infinities are as welcome here as in generated code
        result = rule(values, call.attrs)
    return None if result is None else np.asarray(result)


def _value(argument: Any) -> Any:
    if isinstance(argument, relax.Tuple):
        fields = [array_of(field) for field in argument.fields]
        return None if any(field is None for field in fields) else fields
    if isinstance(argument, relax.ShapeExpr):
        extents = [getattr(extent, "value", None) for extent in argument.values]
        return None if any(not isinstance(extent, int) for extent in extents) else tuple(extents)
    return array_of(argument)


def _axes(axis: Any) -> Any:
    return None if axis is None else tuple(int(a) for a in axis)


def _divide(values: list[Any], attrs: Any) -> _Array | None:
    # Integer division rounds differently in NumPy and in generated code: leave it to TVM.
    if not np.issubdtype(values[0].dtype, np.floating):
        return None
    quotient: _Array = np.divide(*values)
    return quotient


def _sqrt(values: list[Any], attrs: Any) -> _Array | None:
    if not np.issubdtype(values[0].dtype, np.floating) or np.any(values[0] < 0):
        return None
    root: _Array = np.sqrt(values[0])
    return root


_RULES: dict[str, Callable[[list[Any], Any], _Array | None]] = {
    "relax.add": lambda v, a: np.add(*v),
    "relax.subtract": lambda v, a: np.subtract(*v),
    "relax.multiply": lambda v, a: np.multiply(*v),
    "relax.divide": _divide,
    "relax.maximum": lambda v, a: np.maximum(*v),
    "relax.minimum": lambda v, a: np.minimum(*v),
    "relax.sqrt": _sqrt,
    "relax.isnan": lambda v, a: np.isnan(v[0]),
    "relax.where": lambda v, a: np.where(*v),
    "relax.negative": lambda v, a: np.negative(v[0]),
    "relax.reshape": lambda v, a: v[0].reshape(v[1]),
    "relax.broadcast_to": lambda v, a: np.broadcast_to(v[0], v[1]),
    "relax.expand_dims": lambda v, a: np.expand_dims(v[0], _axes(a.axis)),
    "relax.squeeze": lambda v, a: np.squeeze(v[0], _axes(a.axis)),
    "relax.permute_dims": lambda v, a: np.transpose(v[0], _axes(a.axes)),
    "relax.concat": lambda v, a: np.concatenate(v[0], axis=0 if a.axis is None else int(a.axis)),
}
