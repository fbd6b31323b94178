"""Identity of an op: a hash of what its kernel is generated from, and of nothing else."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import relax

from partitioner.frontend.straight import bindings_of, handle, rebuild

__all__ = ["SMALL_CONSTANT", "signature"]

SMALL_CONSTANT = 16
"""Constants up to this many elements count by value: code generation may build them in."""


def signature(module: Any, function: Any) -> str:
    """Hash of a group function: equal for groups that compile to the same kernel.

    Names of variables and functions do not count, nor do the values of weights; operators,
    attributes, shapes, types, small constants and called functions do. The same in every process.

    Parameters
    ----------
    module : IRModule
        Holds the functions that `function` calls.
    function : relax.Function
        The group, weights inside as constants.

    Returns
    -------
    str
        16 hexadecimal digits.
    """
    callees: dict[int, tuple[Any, Any]] = {}
    hashed = [tvm_ffi.structural_hash(_anonymous(function, callees))]
    # Callees are hashed in order of first call, and those that they call after them.
    done = 0
    while done < len(callees):
        callee, _ = list(callees.values())[done]
        body = module[callee]
        if body.attrs is not None and "global_symbol" in body.attrs:
            body = body.without_attr("global_symbol")
        hashed.append(tvm_ffi.structural_hash(_anonymous(body, callees)))
        done += 1
    text = " ".join(f"{number:016x}" for number in hashed)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _anonymous(function: Any, callees: dict[int, tuple[Any, Any]]) -> Any:
    """`function` with weights as parameters, and callees numbered in order of first use."""
    weights: dict[int, Any] = {}

    def of_constant(constant: Any) -> Any:
        shape = [int(extent) for extent in constant.value.shape]
        if int(np.prod(shape)) <= SMALL_CONSTANT:
            return constant
        return weights.setdefault(
            handle(constant.value), relax.Var(f"weight_{len(weights)}", constant.ty)
        )

    def of_callee(callee: Any) -> Any:
        # A global variable hashes by its address; a symbol hashes by its text.
        number = relax.ExternFunc(f"callee_{len(callees)}")
        return callees.setdefault(handle(callee), (callee, number))[1]

    mapped = tvm_ffi.structural_map(
        function, [(tvm.ir.GenericConst, of_constant), (tvm.ir.GlobalVar, of_callee)]
    )
    if not weights:
        return mapped
    params = [*mapped.params, *weights.values()]
    return rebuild(mapped, bindings_of(mapped), {}, params=params)
