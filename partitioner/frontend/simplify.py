"""Rewrites for inference that keep binding names: constants, shapes, aliases, dropout.

TVM has passes for these, but theirs rename bindings and fold each constant by compiling a kernel.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax

from partitioner.frontend.evaluate import evaluate
from partitioner.frontend.straight import (
    array_of,
    bindings_of,
    constant,
    handle,
    is_call,
    rebuild,
    result_of,
    variables_of,
)

__all__ = ["simplify"]


def simplify(function: Any) -> Any:
    """Fold what depends on constants only, drop aliases, tuples taken apart again, and dropout.

    Parameters
    ----------
    function : relax.Function
        Straight-line function with uniquely named variables; not modified.

    Returns
    -------
    relax.Function
        Equal to it at inference. Bindings that remain keep their names.
    """
    known: dict[int, Any] = {}  # variable -> the constant or other variable it equals
    bound: dict[int, Any] = {}  # variable -> its value as written
    kept = []

    def resolve(expr: Any) -> Any:
        if isinstance(expr, relax.Var):
            return known.get(handle(expr), expr)
        if isinstance(expr, relax.Tuple):
            return relax.Tuple([resolve(field) for field in expr.fields])
        return expr

    def replacement(value: Any) -> Any:
        """What `value` equals, None when it has to be computed."""
        if isinstance(value, relax.Var) or array_of(value) is not None:
            return resolve(value)
        if isinstance(value, relax.TupleGetItem):
            source, index = resolve(value.tuple_value), int(value.index)
            made_by: Any = bound.get(handle(source)) if isinstance(source, relax.Var) else source
            if isinstance(made_by, relax.Tuple):
                return resolve(made_by.fields[index])
            if index == 0 and is_call(made_by, "relax.nn.dropout"):
                return resolve(made_by.args[0])
        if isinstance(value, relax.Call):
            folded = evaluate(value, [resolve(argument) for argument in value.args])
            return None if folded is None else constant(folded)
        return None

    def fits(binding: Any, equal: Any) -> bool:
        """Whether a folded constant has exactly the type that the binding has."""
        array, declared = array_of(equal), binding.var.ty
        return array is None or (
            str(declared.dtype) == str(array.dtype)
            and isinstance(declared.shape, relax.ShapeExpr)
            and [int(extent) for extent in declared.shape.values] == list(array.shape)
        )

    for binding in bindings_of(function):
        bound[handle(binding.var)] = binding.value
        equal = None
        if not isinstance(binding, relax.MatchCast):
            # With fixed shapes a shape is a literal, which TVM's legalization insists on.
            shape = _fixed_shape(binding.var)
            equal = replacement(binding.value) if shape is None else shape
        if equal is None or not fits(binding, equal):
            kept.append(binding)
        else:
            known[handle(binding.var)] = equal
    return _without_unread_items(rebuild(function, kept, known))


def _fixed_shape(variable: Any) -> Any:
    """The literal that a variable of shape type stands for, None for any other variable."""
    if not isinstance(variable.ty, relax.ShapeType) or variable.ty.values is None:
        return None
    extents = list(variable.ty.values)
    if all(isinstance(extent, tvm.tirx.IntImm) for extent in extents):
        return relax.ShapeExpr(extents)
    return None


def _without_unread_items(function: Any) -> Any:
    """Drop tuple fields that nobody reads: importers take every output of a node apart."""
    bindings = bindings_of(function)
    values = [*(binding.value for binding in bindings), result_of(function)]
    read = {handle(variable) for value in values for variable in variables_of(value)}
    kept = [
        binding
        for binding in bindings
        if handle(binding.var) in read or not isinstance(binding.value, relax.TupleGetItem)
    ]
    return rebuild(function, kept, {})
