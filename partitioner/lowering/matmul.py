"""Matrix products by register tiles over panels of the right-hand matrix.

A tile is some rows of the left matrix by some vectors of columns of the right one; its sums stay in
registers while the reduction runs. A constant right-hand matrix is packed once into panels in which
a tile's columns are contiguous.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm import relax, te, tirx

from partitioner.lowering.blocks import (
    block_names,
    inline_tail,
    read_index,
    register_tile,
    schedule_rest,
)
from partitioner.lowering.choice import Tile
from partitioner.lowering.isa import Isa
from partitioner.lowering.replace import Replacement, const_array, pick, static_shape

__all__ = ["MatmulTile", "pack_panels", "rewrite_matmul", "schedule_matmul", "tiles"]


@dataclass(frozen=True, slots=True)
class MatmulTile:
    """Register tile of a matrix product.

    Attributes
    ----------
    rows : int
        Rows of the left matrix.
    cols : int
        Columns of the right matrix, a multiple of the vector's lanes.
    """

    rows: int
    cols: int

    @property
    def numbers(self) -> Tile:
        """As records keep it."""
        return (self.rows, self.cols)


def tiles(rows: int, cols: int, isa: Isa) -> tuple[MatmulTile, ...]:
    """Tiles by estimated time, the least first: wasted rows and columns against load pressure.

    Parameters
    ----------
    rows, cols : int
        Shape of the product.
    isa : Isa
    """
    sizes: tuple[tuple[int, int], ...]
    if isa.registers >= 32:
        sizes = ((8, 3), (6, 4), (8, 2), (4, 6), (4, 4), (2, 8), (1, 8), (1, 4), (4, 1), (8, 1))
    else:
        sizes = ((4, 3), (6, 2), (4, 2), (2, 6), (2, 4), (1, 8), (1, 4), (4, 1), (1, 1))

    def cost(size: tuple[int, int]) -> float:
        tile_rows, width = size[0], size[1] * isa.lanes
        sums = size[0] * size[1]
        computed = -(-rows // tile_rows) * tile_rows * (-(-cols // width) * width)
        return computed * max(sums, size[0] + size[1] + 1, 8) / sums

    return tuple(MatmulTile(rows, vectors * isa.lanes) for rows, vectors in sorted(sizes, key=cost))


def pack_panels(matrix: npt.NDArray[Any], cols: int) -> npt.NDArray[Any]:
    """Matrix cut into panels of columns, the last one filled up with zeros.

    Parameters
    ----------
    matrix : ndarray, (K, N)
    cols : int
        Columns in a panel.

    Returns
    -------
    ndarray, (panels, K, cols)
    """
    depth, width = matrix.shape
    panels = -(-width // cols)
    padded = np.pad(matrix, [(0, 0), (0, panels * cols - width)])
    return np.ascontiguousarray(padded.reshape(depth, panels, cols).transpose(1, 0, 2))


@functools.cache
def matmul_func(
    left: tuple[int, ...], right: tuple[int, ...], tile: MatmulTile, packed: bool, dtype: str
) -> Any:
    """Unscheduled PrimFunc (left, right, product).

    Parameters
    ----------
    left : tuple of int
        (..., M, K).
    right : tuple of int
        (..., K, N), leading dimensions equal to those of `left` or absent.
    tile : MatmulTile
    packed : bool
        Whether the right argument comes as the panels of `pack_panels`.
    dtype : str

    Returns
    -------
    tvm.tirx.PrimFunc
    """
    rows, depth, cols = left[-2], left[-1], right[-1]
    lead = left[:-2]
    row_end = -(-rows // tile.rows) * tile.rows
    col_end = -(-cols // tile.cols) * tile.cols
    a = te.placeholder(left, dtype, "left")
    b_shape = (col_end // tile.cols, depth, tile.cols) if packed else right
    b = te.placeholder(b_shape, dtype, "right")
    k = te.reduce_axis((0, depth), "k")

    if packed or col_end == cols:
        panels = b
    else:
        # Columns beyond the matrix read as zero, so that all tiles have one shape.
        def widened(*at: Any) -> Any:
            inside = at[-1] < cols
            return tirx.if_then_else(inside, b(*at), tirx.const(0, dtype))

        panels = te.compute((*right[:-1], col_end), widened, "matmul_widened")

    def product(*at: Any) -> Any:
        batch, i, j = at[:-2], at[-2], at[-1]
        # Rows beyond the matrix repeat the last one; their sums are dropped.
        row = i if row_end == rows else te.min(i, rows - 1)
        if packed:
            value = panels[j // tile.cols, k, j % tile.cols]
        else:
            value = panels[(*batch[len(lead) - len(right) + 2 :], k, j)]
        return te.sum(a[(*batch, row, k)] * value, axis=k)

    sums = te.compute(
        (*lead, row_end, col_end),
        product,
        "matmul_sums",
        attrs={"tile": [tile.rows, tile.cols]},
    )
    out = te.compute((*lead, rows, cols), lambda *at: sums(*at), "matmul_crop")
    kernel = te.create_prim_func([a, b, out], index_dtype_override="int64")
    # Four: element-wise consumers fuse into the output (TVM's kOutEWiseFusable).
    return kernel.with_attr("op_pattern", 4)


def rewrite_matmul(
    call: Any, bindings: dict[Any, Any], isa: Isa, wanted: Tile | None = None
) -> Replacement | None:
    """Kernel for a `relax.matmul` of float32 matrices, None where this rule does not apply.

    Parameters
    ----------
    call : relax.Call
    bindings : dict
        What each variable of the function is bound to.
    isa : Isa
    wanted : tuple of int, optional
        Rows and columns of the tile to take, if the rule knows it.

    Returns
    -------
    Replacement or None
    """
    left, right = static_shape(call.args[0]), static_shape(call.args[1])
    if left is None or right is None or len(left) < 2 or len(right) < 2:
        return None
    if any(str(arg.ty.dtype) != "float32" for arg in call.args):
        return None
    known = pick((tile.numbers for tile in tiles(left[-2], right[-1], isa)), wanted)
    tile = MatmulTile(*known[0])
    while len(right) > 2 and right[0] == 1 and right[:-2] != left[:-2]:
        right = right[1:]
    if len(right) == 2:
        constant = const_array(call.args[1], bindings)
        if constant is not None:
            panels = relax.const(pack_panels(constant.reshape(right), tile.cols))
            kernel = matmul_func(left, right, tile, packed=True, dtype="float32")
            return Replacement("matmul", kernel, (call.args[0], panels), known)
    if right != static_shape(call.args[1]) or (len(right) > 2 and right[:-2] != left[:-2]):
        return None
    kernel = matmul_func(left, right, tile, packed=False, dtype="float32")
    return Replacement("matmul", kernel, (call.args[0], call.args[1]), known)


def schedule_matmul(sch: Any, isa: Isa) -> bool:
    """Schedule a kernel that `matmul_func` began; False where it holds no matrix product.

    Parameters
    ----------
    sch : tvm.s_tir.Schedule
        Changed in place.
    isa : Isa

    Returns
    -------
    bool
    """
    names = block_names(sch)
    if "matmul_sums" not in names:
        return False
    sums = sch.get_sblock("matmul_sums")
    rows, cols = (int(v) for v in sch.get(sums).annotations["tile"])
    sch.unannotate(sums, "tile")
    out = inline_tail(sch, sch.get_sblock("matmul_crop"))
    sch.annotate_buffer_access(
        out,
        read_index(sch, out, "matmul_sums"),
        "read",
        lambda *at: (*at[:-2], _tile_range(at[-2], rows), _tile_range(at[-1], cols)),
    )
    *lead, i, j = sch.get_loops(out)
    i_tile, i_in = sch.split(i, [None, rows])
    j_tile, j_in = sch.split(j, [None, cols])
    # Rows vary fastest: a panel of columns stays in cache while all rows pass over it.
    sch.reorder(*lead, j_tile, i_tile, i_in, j_in)
    task = sch.fuse(*lead, j_tile, i_tile)
    sch.compute_at(sums, task, preserve_unit_loops=True)
    sch.parallel(task)
    if "matmul_widened" in names:
        widened = sch.get_loops(sch.get_sblock("matmul_widened"))
        sch.parallel(sch.fuse(*widened[:-1]))
    register_tile(sch, sums, cols // isa.lanes, isa.lanes, reductions=1)
    schedule_rest(sch, out, isa)
    return True


def _tile_range(index: Any, size: int) -> tuple[Any, Any]:
    begin = tirx.floordiv(index, tirx.IntImm("int64", size)) * tirx.IntImm("int64", size)
    return begin, begin + tirx.IntImm("int64", size)
