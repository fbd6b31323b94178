"""Batch normalization at inference: into the convolution before it, or one multiply and one add.

With constant statistics ``gamma * (x - mean) / sqrt(variance + epsilon) + beta`` is
``x * scale + shift``. TVM's own decomposition leaves four operators, and its folding pass loses
binding names.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from tvm import relax

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

__all__ = ["fold_batch_norm"]

_Array = np.ndarray[Any, Any]


def fold_batch_norm(function: Any) -> Any:
    """Replace every batch normalization whose statistics are constants.

    Parameters
    ----------
    function : relax.Function
        Straight-line, without aliases (see `simplify`); not modified.

    Returns
    -------
    relax.Function
        Equal up to rounding. The normalization's result keeps its name.
    """
    bindings = bindings_of(function)
    uses = Counter(
        handle(variable)
        for value in (*(binding.value for binding in bindings), result_of(function))
        for variable in variables_of(value)
    )
    kept = {handle(binding.var): binding for binding in bindings}
    for binding in bindings:
        item = binding.value
        if not isinstance(item, relax.TupleGetItem) or int(item.index) != 0:
            continue
        source = item.tuple_value
        normalization = kept.get(handle(source))
        # The running statistics it also returns must not be read.
        if normalization is None or uses[handle(source)] != 1:
            continue
        folded = _scale_and_shift(normalization.value)
        if folded is not None:
            _replace(kept, uses, normalization, binding, *folded)
    return rebuild(function, list(kept.values()), {})


def _scale_and_shift(call: Any) -> tuple[_Array, _Array] | None:
    if not is_call(call, "relax.nn.batch_norm") or call.attrs.training:
        return None
    parameters = [array_of(argument) for argument in call.args[1:5]]
    if any(p is None for p in parameters) or int(call.args[0].ty.ndim) < 2:
        return None
    gamma, beta, mean, variance = (np.asarray(p, dtype=np.float64) for p in parameters)
    scale = 1.0 / np.sqrt(variance + float(call.attrs.epsilon))
    scale = scale * gamma if call.attrs.scale else scale
    shift = -mean * scale
    return scale, shift + beta if call.attrs.center else shift


def _replace(
    kept: dict[int, Any],
    uses: Counter[int],
    normalization: Any,
    binding: Any,
    scale: _Array,
    shift: _Array,
) -> None:
    call = normalization.value
    x = call.args[0]
    axis, rank = int(call.attrs.axis), int(x.ty.ndim)
    per_channel = [1] * rank
    per_channel[axis] = -1
    dtype = str(binding.var.ty.dtype)

    def weight(values: _Array) -> Any:
        return constant(values.reshape(per_channel).astype(dtype))

    into = _scale_convolution(kept, uses, x, scale) if axis % rank == 1 and rank == 4 else None
    if into is not None:
        del kept[handle(normalization.var)]
        scaled, bias = into
        total = relax.op.add(scaled, weight(shift + bias))
    else:
        # The tuple's name passes to the product, so nothing is left without a known name.
        scaled = relax.Var(normalization.var.name, binding.var.ty)
        product = relax.op.multiply(x, weight(scale))
        kept[handle(normalization.var)] = relax.VarBinding(scaled, _typed(product))
        total = relax.op.add(scaled, weight(shift))
    kept[handle(binding.var)] = relax.VarBinding(binding.var, _typed(total))


def _scale_convolution(
    kept: dict[int, Any], uses: Counter[int], x: Any, scale: _Array
) -> tuple[Any, _Array | float] | None:
    """Scale the weights of the convolution that makes `x`, looking through one bias.

    Returns
    -------
    (relax.Var, ndarray or float) or None
        The convolution's variable and the scaled bias; None when `x` is made otherwise, or is
        read elsewhere too.
    """
    bias: _Array | float = 0.0
    made_by = kept.get(handle(x))
    bias_binding = None
    if made_by is not None and is_call(made_by.value, "relax.add"):
        left, right = made_by.value.args
        array = array_of(right)
        if array is None or uses[handle(x)] != 1 or not isinstance(left, relax.Var):
            return None
        if array.size != 1 and (array.size != scale.size or array.shape[-3:-2] != scale.shape):
            return None
        bias = array.astype(np.float64).reshape(-1) * scale
        bias_binding, x, made_by = made_by, left, kept.get(handle(left))
    if made_by is None or not is_call(made_by.value, "relax.nn.conv2d"):
        return None
    call = made_by.value
    weights = array_of(call.args[1])
    layouts = (str(call.attrs.data_layout), str(call.attrs.kernel_layout))
    if weights is None or layouts != ("NCHW", "OIHW") or uses[handle(x)] != 1:
        return None
    if str(call.attrs.out_layout) not in ("", "NCHW") or weights.shape[0] != scale.size:
        return None
    if bias_binding is not None:
        del kept[handle(bias_binding.var)]
    scaled = constant((weights * scale.reshape(-1, 1, 1, 1)).astype(weights.dtype))
    fresh = relax.Call(call.op, [call.args[0], scaled], call.attrs, call.ty_args)
    kept[handle(made_by.var)] = relax.VarBinding(made_by.var, _typed(fresh))
    return made_by.var, bias


def _typed(call: Any) -> Any:
    """`call` with its result type, which operator calls lack until they are normalized."""
    return relax.BlockBuilder().normalize(call)
