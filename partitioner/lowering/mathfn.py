"""Elementary functions as arithmetic, so that they run in vector registers.

TVM calls the C library for each element; these polynomials work on whole vectors and are as
deterministic as any other arithmetic. Coefficients: Cephes (`expf`), and the rational minimax forms
of Eigen (`tanh`, `erf`).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

from tvm import tirx
from tvm.ir import Call
from tvm_ffi import structural_map

__all__ = ["inline_math"]

_EXP = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 0.5)
_TANH_TOP = (
    -2.76076847742355e-16,
    2.00018790482477e-13,
    -8.60467152213735e-11,
    5.12229709037114e-08,
    1.48572235717979e-05,
    6.37261928875436e-04,
    4.89352455891786e-03,
)
_TANH_BOTTOM = (
    1.19825839466702e-06,
    1.18534705686654e-04,
    2.26843463243900e-03,
    4.89352518554385e-03,
)
_ERF_TOP = (
    -2.72614225801306e-10,
    2.77068142495902e-08,
    -2.10102402082508e-06,
    -5.69250639462346e-05,
    -7.34990630326855e-04,
    -2.95459980854025e-03,
    -1.60960333262415e-02,
)
_ERF_BOTTOM = (
    -1.45660718464996e-05,
    -2.13374055278905e-04,
    -1.68282697438203e-03,
    -7.37332916720468e-03,
    -1.42647390514189e-02,
)


def _f(value: float) -> Any:
    return tirx.const(value, "float32")


def _let(value: Any, body: Callable[[Any], Any]) -> Any:
    var = tirx.Var("t", value.ty)
    return tirx.Let(var, value, body(var))


def _horner(x: Any, coefficients: tuple[float, ...]) -> Any:
    return functools.reduce(lambda acc, c: acc * x + _f(c), coefficients[1:], _f(coefficients[0]))


def _clamp(x: Any, low: float, high: float) -> Any:
    return tirx.max(tirx.min(x, _f(high)), _f(low))


def _exp(x: Any) -> Any:
    low, high = -87.33654, 88.37626

    def from_power(x: Any, n: Any) -> Any:
        def from_rest(r: Any) -> Any:
            # The polynomial on the rest, times 2^n by way of the exponent's bits.
            value = _horner(r, _EXP) * r * r + r + _f(1.0)
            bits = (tirx.Cast("int32", n) + tirx.const(127, "int32")) << tirx.const(23, "int32")
            return value * tirx.reinterpret("float32", bits)

        return _let(x - n * _f(0.693359375) + n * _f(2.12194440e-4), from_rest)

    def bounded(x: Any) -> Any:
        return _let(tirx.floor(x * _f(math.log2(math.e)) + _f(0.5)), lambda n: from_power(x, n))

    def whole(x: Any) -> Any:
        value = _let(_clamp(x, low, high), bounded)
        value = tirx.Select(x < _f(low), _f(0.0), value)
        value = tirx.Select(x > _f(high), _f(math.inf), value)
        return tirx.Select(tirx.isnan(x), x, value)

    return _let(x, whole)


def _tanh(x: Any) -> Any:
    def rational(x: Any) -> Any:
        return _let(x * x, lambda s: x * _horner(s, _TANH_TOP) / _horner(s, _TANH_BOTTOM))

    return _keep_nan(x, lambda x: _let(_clamp(x, -7.90531, 7.90531), rational))


def _erf(x: Any) -> Any:
    def rational(x: Any) -> Any:
        return _let(x * x, lambda s: x * _horner(s, _ERF_TOP) / _horner(s, _ERF_BOTTOM))

    return _keep_nan(x, lambda x: _let(_clamp(x, -4.0, 4.0), rational))


def _keep_nan(x: Any, value: Callable[[Any], Any]) -> Any:
    return _let(x, lambda x: tirx.Select(tirx.isnan(x), x, value(x)))


def _sigmoid(x: Any) -> Any:
    return _f(1.0) / (_f(1.0) + _exp(-x))


_FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "tirx.exp": _exp,
    "tirx.tanh": _tanh,
    "tirx.erf": _erf,
    "tirx.sigmoid": _sigmoid,
}


def _power(x: Any, exponent: float) -> Any | None:
    """Power by square roots where the exponent is a small multiple of a quarter."""
    quarters = exponent * 4
    if quarters != int(quarters) or not 0 < quarters <= 16:
        return None

    def product(x: Any) -> Any:
        whole, rest = divmod(int(quarters), 4)
        root = tirx.sqrt(x)
        factors = [x] * whole
        factors += [root] if rest & 2 else []
        factors += [tirx.sqrt(root)] if rest & 1 else []
        return functools.reduce(lambda a, b: a * b, factors)

    return _let(x, product)


def _replace(call: Any) -> Any:
    name = getattr(call.op, "name", "")
    if str(call.ty.dtype) != "float32":
        return call
    if name in _FUNCTIONS:
        return _FUNCTIONS[name](call.args[0])
    if name == "tirx.pow" and isinstance(call.args[1], tirx.FloatImm):
        value = _power(call.args[0], float(call.args[1].value))
        return call if value is None else value
    return call


def inline_math(func: Any) -> Any:
    """Kernel with exp, tanh, erf, sigmoid and simple powers of float32 as arithmetic.

    Relative error is a few units in the last place (exp, sigmoid, tanh), absolute error below 1e-6
    (erf). NaN stays NaN, exp over- and underflows to infinity and zero.

    Parameters
    ----------
    func : tvm.tirx.PrimFunc

    Returns
    -------
    tvm.tirx.PrimFunc
    """
    return structural_map(func, (Call, _replace))
