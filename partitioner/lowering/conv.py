"""Convolution as shifted matrix products over flattened, padded rows.

A piece of work copies its block of the input into *phases*: the padded image split by row and
column modulo the stride. In a phase, a tap (ky, kx) reads the whole output at one constant offset,
if output rows are laid out with the phase's row length: the few columns beyond the output width are
computed and dropped. So one register tile, output channels by consecutive flat positions, serves
every kernel size and stride with contiguous vector loads, and the last vectors need no special
case because the phases are longer than the image.
"""

from __future__ import annotations

import functools
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
    vectorize_loop,
)
from partitioner.lowering.choice import Tile
from partitioner.lowering.conv_tile import ConvShape, ConvTile, tiles
from partitioner.lowering.isa import Isa
from partitioner.lowering.replace import Replacement, const_array, pick, static_shape

__all__ = ["conv_func", "rewrite_conv2d", "rewrite_conv2d_transpose", "schedule_conv"]


@functools.cache
def conv_func(shape: ConvShape, tile: ConvTile, dtype: str) -> Any:
    """Unscheduled PrimFunc (input, packed weight, output) of a convolution.

    Parameters
    ----------
    shape : ConvShape
    tile : ConvTile
    dtype : str

    Returns
    -------
    tvm.tirx.PrimFunc
        The packed weight is (channel tiles, input channels of a group, kernel rows, kernel
        columns, channels of a tile).
    """
    out_h, out_w = shape.out_hw
    (kh, kw), (sh, sw), (dh, dw) = shape.kernel, shape.stride, shape.dilation
    up_h, up_w = shape.shuffle
    rows = tile.rows
    in_group = shape.channels // shape.groups
    tiles = -(-shape.outputs // tile.channels)
    blocks = -(-out_h // rows)
    last = (shape.reach[0] - 1) // sh * shape.row + (shape.reach[1] - 1) // sw
    row, flat = shape.row, (blocks - 1) * rows * shape.row + tile.span + last
    data = te.placeholder((shape.batch, shape.channels, shape.height, shape.width), dtype, "data")
    weight = te.placeholder((tiles, in_group, kh, kw, tile.channels), dtype, "weight")
    zero = tirx.const(0, dtype)

    flat_rows = -(-flat // row)
    if shape.flat:
        flat_rows, row = 1, flat

    def phase(n: Any, c: Any, py: Any, px: Any, r: Any, q: Any) -> Any:
        if shape.flat:
            at = (q // shape.width, q % shape.width)
            inside = q < shape.height * shape.width
        else:
            at = (r * sh + py - shape.pad[0], q * sw + px - shape.pad[1])
            inside = tirx.all(at[0] >= 0, at[0] < shape.height, at[1] >= 0, at[1] < shape.width)
        return tirx.if_then_else(inside, data[n, c, at[0], at[1]], zero)

    phases = te.compute((shape.batch, shape.channels, sh, sw, flat_rows, row), phase, "conv_phases")
    if shape.depthwise:
        axes = [te.reduce_axis((0, kh), "ky"), te.reduce_axis((0, kw), "kx")]
    else:
        axes = [
            te.reduce_axis((0, in_group), "kc"),
            te.reduce_axis((0, kh), "ky"),
            te.reduce_axis((0, kw), "kx"),
        ]

    def product(nb: Any, t: Any, m: Any, q: Any) -> Any:
        c = 0 if shape.depthwise else axes[0]
        y, x = axes[-2] * dh, axes[-1] * dw
        at = nb % blocks * (rows * shape.row) + q + (y // sh) * shape.row + x // sw
        c_in = t // (tiles // shape.groups) * in_group + c
        value = phases[nb // blocks, c_in, y % sh, x % sw, at // row, at % row]
        return te.sum(weight[t, c, axes[-2], axes[-1], m] * value, axis=axes)

    sums = te.compute(
        (shape.batch * blocks, tiles, tile.channels, tile.span),
        product,
        "conv_sums",
        attrs={"tile": [blocks, rows, tile.vectors, tile.parts, tile.sweep, up_h, up_w]},
    )

    def crop(n: Any, o: Any, y: Any, x: Any) -> Any:
        o, y, x = (o * up_h + y % up_h) * up_w + x % up_w, y // up_h, x // up_w
        at = y % rows * shape.row + x
        return sums[n * blocks + y // rows, o // tile.channels, o % tile.channels, at]

    out_shape = (shape.batch, shape.outputs // (up_h * up_w), out_h * up_h, out_w * up_w)
    out = te.compute(out_shape, crop, "conv_crop")
    kernel = te.create_prim_func([data, weight, out], index_dtype_override="int64")
    # Four: element-wise consumers fuse into the output (TVM's kOutEWiseFusable).
    return kernel.with_attr("op_pattern", 4)


def pack_weight(weight: npt.NDArray[Any], shape: ConvShape, tile: ConvTile) -> npt.NDArray[Any]:
    """Weight in the order in which a tile reads it, channels padded with zeros to whole tiles.

    Parameters
    ----------
    weight : ndarray, (outputs, inputs of a group, kernel rows, kernel columns)
    shape : ConvShape
    tile : ConvTile

    Returns
    -------
    ndarray, (tiles, inputs of a group, kernel rows, kernel columns, channels of a tile)
    """
    tiles = -(-shape.outputs // tile.channels)
    padded = np.pad(weight, [(0, tiles * tile.channels - shape.outputs), (0, 0), (0, 0), (0, 0)])
    tiled = padded.reshape(tiles, tile.channels, *weight.shape[1:])
    return np.ascontiguousarray(tiled.transpose(0, 2, 3, 4, 1))


def rewrite_conv2d(
    call: Any, bindings: dict[Any, Any], isa: Isa, wanted: Tile | None = None
) -> Replacement | None:
    """Kernel for a `relax.nn.conv2d` with constant weight, None where this rule does not apply.

    Parameters
    ----------
    call : relax.Call
    bindings : dict
        What each variable of the function is bound to.
    isa : Isa
    wanted : tuple of int, optional
        The tile to take, if the rule knows it.

    Returns
    -------
    Replacement or None
    """
    attrs = call.attrs
    data, weight = static_shape(call.args[0]), const_array(call.args[1], bindings)
    layouts = (attrs.data_layout, attrs.kernel_layout, attrs.out_layout or attrs.data_layout)
    if data is None or weight is None or layouts != ("NCHW", "OIHW", "NCHW"):
        return None
    if weight.dtype != np.float32 or str(call.args[0].ty.dtype) != "float32":
        return None
    top, left, bottom, right = (int(p) for p in attrs.padding)
    shape = ConvShape(
        batch=data[0],
        channels=data[1],
        height=data[2],
        width=data[3],
        outputs=weight.shape[0],
        kernel=(weight.shape[2], weight.shape[3]),
        stride=(int(attrs.strides[0]), int(attrs.strides[1])),
        dilation=(int(attrs.dilation[0]), int(attrs.dilation[1])),
        pad=(top, left, bottom, right),
        groups=int(attrs.groups),
    )
    known = pick((tile.numbers for tile in tiles(shape, isa)), wanted)
    if not known:
        return None
    tile = ConvTile(*known[0])
    packed = relax.const(pack_weight(weight, shape, tile))
    return Replacement("conv2d", conv_func(shape, tile, "float32"), (call.args[0], packed), known)


def rewrite_conv2d_transpose(
    call: Any, bindings: dict[Any, Any], isa: Isa, wanted: Tile | None = None
) -> Replacement | None:
    """Kernel for a `relax.nn.conv2d_transpose` whose kernel equals its stride.

    Every input position then makes its own block of outputs: a 1 x 1 convolution to as many times
    more channels, and a shuffle.

    Parameters
    ----------
    call : relax.Call
    bindings : dict
        What each variable of the function is bound to.
    isa : Isa
    wanted : tuple of int, optional
        The tile to take, if the rule knows it.

    Returns
    -------
    Replacement or None
        None where this rule does not apply.
    """
    attrs = call.attrs
    data, weight = static_shape(call.args[0]), const_array(call.args[1], bindings)
    layouts = (attrs.data_layout, attrs.kernel_layout, attrs.out_layout or attrs.data_layout)
    if data is None or weight is None or layouts != ("NCHW", "IOHW", "NCHW"):
        return None
    if weight.dtype != np.float32 or str(call.args[0].ty.dtype) != "float32":
        return None
    size = (weight.shape[2], weight.shape[3])
    zeros = (*attrs.padding, *attrs.output_padding)
    if tuple(int(s) for s in attrs.strides) != size or any(int(p) for p in zeros):
        return None
    if int(attrs.groups) != 1 or any(int(d) != 1 for d in attrs.dilation):
        return None
    shape = ConvShape(
        batch=data[0],
        channels=data[1],
        height=data[2],
        width=data[3],
        outputs=weight.shape[1] * size[0] * size[1],
        kernel=(1, 1),
        stride=(1, 1),
        dilation=(1, 1),
        pad=(0, 0, 0, 0),
        groups=1,
        shuffle=size,
    )
    known = pick((tile.numbers for tile in tiles(shape, isa)), wanted)
    if not known:
        return None
    tile = ConvTile(*known[0])
    flat = weight.transpose(1, 2, 3, 0).reshape(shape.outputs, shape.channels, 1, 1)
    packed = relax.const(pack_weight(flat, shape, tile))
    kernel = conv_func(shape, tile, "float32")
    return Replacement("conv2d_transpose", kernel, (call.args[0], packed), known)


def schedule_conv(sch: Any, isa: Isa) -> bool:
    """Schedule a kernel that `conv_func` began; False where it holds no convolution.

    Parameters
    ----------
    sch : tvm.s_tir.Schedule
        Changed in place.
    isa : Isa

    Returns
    -------
    bool
    """
    if "conv_sums" not in block_names(sch):
        return False
    sums, phases = sch.get_sblock("conv_sums"), sch.get_sblock("conv_phases")
    blocks, rows, vectors, parts, sweep, up_h, up_w = (
        int(v) for v in sch.get(sums).annotations["tile"]
    )
    sch.unannotate(sums, "tile")
    reductions = len(sch.get_loops(sums)) - 4
    out = inline_tail(sch, sch.get_sblock("conv_crop"))
    channels, span = (int(v) for v in sch.get(sums).writes[0].source.shape[2:])
    # What a tile and a block are of the shuffled output.
    out_channels, out_rows = channels // (up_h * up_w), rows * up_h
    zero = tirx.IntImm("int64", 0)
    # The tile computes positions that the output does not read; without this note they would be
    # cut off, and with them the fixed shape of the register tile.
    sch.annotate_buffer_access(
        out,
        read_index(sch, out, "conv_sums"),
        "read",
        lambda n, o, y, x: (
            n * blocks + y // out_rows,
            o // out_channels,
            (zero, tirx.IntImm("int64", channels)),
            (zero, tirx.IntImm("int64", span)),
        ),
    )
    n, o, y, x = sch.get_loops(out)
    o_tile, o_in = sch.split(o, [None, out_channels])
    y_block, y_in = sch.split(y, [None, out_rows])
    o_part, o_tile = sch.split(o_tile, [parts, None])
    if reductions == 2:  # depthwise: a channel's blocks, one after the other, read one copy
        sch.reorder(n, o_part, o_tile, y_block, o_in, y_in, x)
        task, inner = sch.fuse(n, o_part), y_block
    else:
        sch.reorder(n, y_block, o_part, o_tile, o_in, y_in, x)
        task, inner = sch.fuse(n, y_block, o_part), o_tile
    sch.compute_at(sums, task if sweep else inner, preserve_unit_loops=True)
    sch.compute_at(phases, task)
    sch.parallel(task)
    vectorize_loop(sch, x, isa.lanes)
    register_tile(sch, sums, vectors, isa.lanes, reductions=reductions, inside=sweep)
    schedule_rest(sch, out, isa)
    return True
