"""Largest values of windows, first down the columns, then along the rows.

Rows of a window are compared as whole vectors into one row that stays in cache; only the few
comparisons along it read with the stride of the windows.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

from tvm import te, tirx

from partitioner.lowering.blocks import block_names, inline_tail, schedule_rest
from partitioner.lowering.choice import Tile
from partitioner.lowering.isa import Isa
from partitioner.lowering.replace import Replacement, static_shape

__all__ = ["rewrite_max_pool2d", "schedule_pool"]


# Comparisons are written out, one for each row and column of a window.
_LARGEST = 16


@dataclass(frozen=True, slots=True)
class _Windows:
    """Windows over an image, NCHW; pairs are (rows, columns), `pad` is (top, left)."""

    data: tuple[int, ...]
    out: tuple[int, ...]
    size: tuple[int, int]
    stride: tuple[int, int]
    dilation: tuple[int, int]
    pad: tuple[int, int]


@functools.cache
def _pool_func(windows: _Windows, dtype: str) -> Any:
    """Unscheduled PrimFunc (image, largest values)."""
    batch, channels, out_h, out_w = windows.out
    height, width = windows.data[2:]
    (kh, kw), (sh, sw), (dh, dw) = windows.size, windows.stride, windows.dilation
    reach = (out_w - 1) * sw + (kw - 1) * dw + 1
    data = te.placeholder(windows.data, dtype, "data")
    least = tirx.min_value(dtype)

    def value(n: Any, c: Any, row: Any, column: Any) -> Any:
        inside = []
        if windows.pad[0]:
            inside.append(row >= 0)
        if (out_h - 1) * sh + (kh - 1) * dh - windows.pad[0] >= height:
            inside.append(row < height)
        if windows.pad[1]:
            inside.append(column >= 0)
        if reach - windows.pad[1] > width:
            inside.append(column < width)
        read = data[n, c, row, column]
        return tirx.if_then_else(tirx.all(*inside), read, least) if inside else read

    def down(n: Any, c: Any, y: Any, x: Any) -> Any:
        top, column = y * sh - windows.pad[0], x - windows.pad[1]
        return _largest([value(n, c, top + k * dh, column) for k in range(kh)])

    rows = te.compute((batch, channels, out_h, reach), down, "pool_rows")

    def along(n: Any, c: Any, y: Any, x: Any) -> Any:
        return _largest([rows[n, c, y, x * sw + k * dw] for k in range(kw)])

    out = te.compute(windows.out, along, "pool_out")
    kernel = te.create_prim_func([data, out], index_dtype_override="int64")
    return kernel.with_attr("op_pattern", 4)


def _largest(values: list[Any]) -> Any:
    return functools.reduce(te.max, values)


def rewrite_max_pool2d(
    call: Any, bindings: dict[Any, Any], isa: Isa, wanted: Tile | None = None
) -> Replacement | None:
    """Kernel for a `relax.nn.max_pool2d` of floats, None where this rule does not apply.

    Parameters
    ----------
    call : relax.Call
    bindings : dict
        What each variable of the function is bound to.
    isa : Isa
    wanted : tuple of int, optional
        There is but one way.
    """
    attrs = call.attrs
    data, out = static_shape(call.args[0]), static_shape(call)
    if data is None or out is None or str(attrs.layout) != "NCHW":
        return None
    dtype = str(call.args[0].ty.dtype)
    if dtype not in ("float32", "float64"):
        return None
    if max(attrs.pool_size) > _LARGEST:
        return None
    windows = _Windows(
        data=data,
        out=out,
        size=(int(attrs.pool_size[0]), int(attrs.pool_size[1])),
        stride=(int(attrs.strides[0]), int(attrs.strides[1])),
        dilation=(int(attrs.dilation[0]), int(attrs.dilation[1])),
        pad=(int(attrs.padding[0]), int(attrs.padding[1])),
    )
    return Replacement("max_pool2d", _pool_func(windows, dtype), (call.args[0],), ())


def schedule_pool(sch: Any, isa: Isa) -> bool:
    """Schedule a kernel that begins with `pool_rows`; False where it does not.

    Parameters
    ----------
    sch : tvm.s_tir.Schedule
        Changed in place.
    isa : Isa
    """
    if "pool_rows" not in block_names(sch):
        return False
    rows = sch.get_sblock("pool_rows")
    out = inline_tail(sch, sch.get_sblock("pool_out"))
    n, c, y, _ = sch.get_loops(out)
    sch.compute_at(rows, y)
    sch.parallel(sch.fuse(n, c))
    schedule_rest(sch, out, isa)
    return True
