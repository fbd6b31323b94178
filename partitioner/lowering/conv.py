"""Convolution as shifted matrix products over flattened, padded rows.

The input of one convolution is copied once into *phases*: the padded image split by row and column
modulo the stride. In a phase, a tap (ky, kx) reads the whole output at one constant offset, if
output rows are laid out with the phase's row length: the few columns beyond the output width are
computed and dropped. So one register tile, output channels by consecutive flat positions, serves
every kernel size and stride with contiguous vector loads, and the last vectors need no special
case because the phases are longer than the image.
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
    vectorize_loop,
)
from partitioner.lowering.isa import Isa
from partitioner.lowering.replace import Replacement, const_array, static_shape

__all__ = [
    "ConvShape",
    "Tile",
    "choose_tile",
    "conv_func",
    "rewrite_conv2d",
    "rewrite_conv2d_transpose",
    "schedule_conv",
]

# Half of a common 512 KiB second-level cache: a block of the input stays there while all output
# channels pass over it.
_BLOCK_BYTES = 256 * 1024
_TILE_BYTES = 32 * 1024


@dataclass(frozen=True, slots=True)
class ConvShape:
    """A 2-D convolution, NCHW by OIHW.

    Attributes
    ----------
    batch, channels, height, width : int
        Input shape.
    outputs : int
        Output channels over all groups.
    kernel, stride, dilation : tuple of int
        (rows, columns).
    pad : tuple of int
        (top, left, bottom, right).
    groups : int
        Channel groups.
    shuffle : tuple of int
        (a, b): a * b consecutive output channels become one channel of a by b times the size, as
        a transposed convolution whose kernel equals its stride needs it.
    """

    batch: int
    channels: int
    height: int
    width: int
    outputs: int
    kernel: tuple[int, int]
    stride: tuple[int, int]
    dilation: tuple[int, int]
    pad: tuple[int, int, int, int]
    groups: int
    shuffle: tuple[int, int] = (1, 1)

    @property
    def out_hw(self) -> tuple[int, int]:
        """Output (height, width), before the shuffle."""
        reach = self.reach
        return (
            (self.height + self.pad[0] + self.pad[2] - reach[0]) // self.stride[0] + 1,
            (self.width + self.pad[1] + self.pad[3] - reach[1]) // self.stride[1] + 1,
        )

    @property
    def reach(self) -> tuple[int, int]:
        """Rows and columns of the input that one output value sees."""
        return (
            (self.kernel[0] - 1) * self.dilation[0] + 1,
            (self.kernel[1] - 1) * self.dilation[1] + 1,
        )

    @property
    def row(self) -> int:
        """Length of a phase's row: the output width and the columns that taps reach beyond it."""
        return self.out_hw[1] + (self.reach[1] - 1) // self.stride[1]

    @property
    def depthwise(self) -> bool:
        """Whether every group has one input and one output channel."""
        return self.groups == self.channels == self.outputs


@dataclass(frozen=True, slots=True)
class Tile:
    """Blocking of a convolution.

    Attributes
    ----------
    channels : int
        Output channels in a register tile.
    vectors : int
        Vectors of consecutive positions in a register tile.
    rows : int
        Output rows in a block.
    span : int
        Flat positions computed for a block: rows times row length, rounded up to whole tiles.
    """

    channels: int
    vectors: int
    rows: int
    span: int


def choose_tile(shape: ConvShape, isa: Isa) -> Tile | None:
    """Tile with the least estimated time: wasted positions, load pressure, cache overflow.

    Parameters
    ----------
    shape : ConvShape
    isa : Isa

    Returns
    -------
    Tile or None
        None where no tile holds whole sets of channels that are shuffled together.
    """
    height = shape.out_hw[0]
    per_group = shape.outputs // shape.groups
    if shape.depthwise:
        sizes: tuple[tuple[int, int], ...] = ((1, 8), (1, 6), (1, 4))
    elif isa.registers >= 32:
        sizes = ((8, 3), (6, 4), (4, 6), (8, 2), (4, 4), (2, 8), (1, 8))
    else:
        sizes = ((4, 3), (6, 2), (4, 2), (2, 6), (2, 4), (1, 8))
    best: tuple[float, Tile] | None = None
    for channels, vectors in sizes:
        if channels % (shape.shuffle[0] * shape.shuffle[1]):
            continue
        # Channels of two groups read different inputs, so a tile stays within one.
        if shape.groups > 1 and per_group % channels:
            continue
        if channels > 1 and channels >= 2 * per_group and shape.shuffle == (1, 1):
            continue
        tile_width = vectors * isa.lanes
        for blocks in range(1, height + 1):
            rows = -(-height // blocks)
            if blocks > 1 and -(-height // (blocks - 1)) == rows:
                continue
            span = -(-rows * shape.row // tile_width) * tile_width
            if channels * span * 4 > _TILE_BYTES and rows > 1:
                continue
            computed = -(-height // rows) * span * (-(-per_group // channels) * channels)
            # A multiply-add needs half a cycle, a vector load or broadcast as well.
            arithmetic = channels * vectors
            cost = computed * max(arithmetic, channels + vectors + 1) / arithmetic
            # Fewer than eight independent sums leave the multiply-add units waiting.
            cost *= max(1.0, 8.5 / arithmetic)
            block_bytes = shape.channels // shape.groups * span * 4 * shape.stride[0]
            if block_bytes > _BLOCK_BYTES and not shape.depthwise:
                cost *= 1.0 + 0.1 * min(4.0, block_bytes / _BLOCK_BYTES)
            # Entering a block costs about as much as a few hundred positions.
            cost += -(-height // rows) * (-(-per_group // channels)) * 20
            if best is None or cost < best[0]:
                best = (cost, Tile(channels, vectors, rows, span))
    return best[1] if best else None


@functools.cache
def conv_func(shape: ConvShape, tile: Tile, dtype: str) -> Any:
    """Unscheduled PrimFunc (input, packed weight, output) of a convolution.

    Parameters
    ----------
    shape : ConvShape
    tile : Tile
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
    row, rows = shape.row, tile.rows
    in_group = shape.channels // shape.groups
    tiles = -(-shape.outputs // tile.channels)
    blocks = -(-out_h // rows)
    last = (shape.reach[0] - 1) // sh * row + (shape.reach[1] - 1) // sw
    flat = (blocks - 1) * rows * row + tile.span + last
    data = te.placeholder((shape.batch, shape.channels, shape.height, shape.width), dtype, "data")
    weight = te.placeholder((tiles, in_group, kh, kw, tile.channels), dtype, "weight")
    zero = tirx.const(0, dtype)

    unpadded = (kh, kw, sh, sw) == (1, 1, 1, 1) and not any(shape.pad)
    flat_rows = -(-flat // row)

    def phase(n: Any, c: Any, py: Any, px: Any, r: Any, q: Any) -> Any:
        y = r * sh + py - shape.pad[0]
        x = q * sw + px - shape.pad[1]
        inside = []
        if not unpadded:
            inside = [y >= 0, x >= 0, x < shape.width]
        inside.append(y < shape.height)
        return tirx.if_then_else(tirx.all(*inside), data[n, c, y, x], zero)

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
        at = nb % blocks * (rows * row) + q + (y // sh) * row + x // sw
        c_in = t // (tiles // shape.groups) * in_group + c
        value = phases[nb // blocks, c_in, y % sh, x % sw, at // row, at % row]
        return te.sum(weight[t, c, axes[-2], axes[-1], m] * value, axis=axes)

    sums = te.compute(
        (shape.batch * blocks, tiles, tile.channels, tile.span),
        product,
        "conv_sums",
        attrs={"tile": [blocks, rows, tile.vectors, up_h, up_w]},
    )

    def crop(n: Any, o: Any, y: Any, x: Any) -> Any:
        o, y, x = (o * up_h + y % up_h) * up_w + x % up_w, y // up_h, x // up_w
        at = y % rows * row + x
        return sums[n * blocks + y // rows, o // tile.channels, o % tile.channels, at]

    out_shape = (shape.batch, shape.outputs // (up_h * up_w), out_h * up_h, out_w * up_w)
    out = te.compute(out_shape, crop, "conv_crop")
    kernel = te.create_prim_func([data, weight, out], index_dtype_override="int64")
    # Four: element-wise consumers fuse into the output (TVM's kOutEWiseFusable).
    return kernel.with_attr("op_pattern", 4)


def pack_weight(weight: npt.NDArray[Any], shape: ConvShape, tile: Tile) -> npt.NDArray[Any]:
    """Weight in the order in which a tile reads it, channels padded with zeros to whole tiles.

    Parameters
    ----------
    weight : ndarray, (outputs, inputs of a group, kernel rows, kernel columns)
    shape : ConvShape
    tile : Tile

    Returns
    -------
    ndarray, (tiles, inputs of a group, kernel rows, kernel columns, channels of a tile)
    """
    tiles = -(-shape.outputs // tile.channels)
    padded = np.pad(weight, [(0, tiles * tile.channels - shape.outputs), (0, 0), (0, 0), (0, 0)])
    tiled = padded.reshape(tiles, tile.channels, *weight.shape[1:])
    return np.ascontiguousarray(tiled.transpose(0, 2, 3, 4, 1))


def rewrite_conv2d(call: Any, bindings: dict[Any, Any], isa: Isa) -> Replacement | None:
    """Kernel for a `relax.nn.conv2d` with constant weight, None where this rule does not apply.

    Parameters
    ----------
    call : relax.Call
    bindings : dict
        What each variable of the function is bound to.
    isa : Isa

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
    tile = choose_tile(shape, isa)
    if tile is None:
        return None
    packed = relax.const(pack_weight(weight, shape, tile))
    return Replacement("conv2d", conv_func(shape, tile, "float32"), (call.args[0], packed))


def rewrite_conv2d_transpose(call: Any, bindings: dict[Any, Any], isa: Isa) -> Replacement | None:
    """Kernel for a `relax.nn.conv2d_transpose` whose kernel equals its stride.

    Every input position then makes its own block of outputs: a 1 x 1 convolution to as many times
    more channels, and a shuffle.

    Parameters
    ----------
    call : relax.Call
    bindings : dict
        What each variable of the function is bound to.
    isa : Isa

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
    tile = choose_tile(shape, isa)
    if tile is None:
        return None
    flat = weight.transpose(1, 2, 3, 0).reshape(shape.outputs, shape.channels, 1, 1)
    packed = relax.const(pack_weight(flat, shape, tile))
    kernel = conv_func(shape, tile, "float32")
    return Replacement("conv2d_transpose", kernel, (call.args[0], packed))


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
    lanes = isa.lanes
    sums, phases = sch.get_sblock("conv_sums"), sch.get_sblock("conv_phases")
    blocks, rows, vectors, up_h, up_w = (int(v) for v in sch.get(sums).annotations["tile"])
    sch.unannotate(sums, "tile")
    depthwise = len(sch.get_loops(sums)) == 6
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
    if depthwise:
        sch.reorder(n, o_tile, y_block, o_in, y_in, x)
        task = sch.fuse(n, o_tile)
        inner = y_block
    else:
        sch.reorder(n, y_block, o_tile, o_in, y_in, x)
        inner = task = sch.fuse(n, y_block, o_tile)
    sch.compute_at(sums, inner, preserve_unit_loops=True)
    if depthwise:
        sch.compute_at(phases, task)
    sch.parallel(task)
    vectorize_loop(sch, x, lanes)
    _schedule_phases(sch, phases, lanes, parallel=not depthwise)
    register_tile(sch, sums, vectors, lanes, reductions=2 if depthwise else 3)
    schedule_rest(sch, out, isa)
    return True


def _schedule_phases(sch: Any, phases: Any, lanes: int, *, parallel: bool) -> None:
    loops = sch.get_loops(phases)
    if parallel:
        sch.parallel(sch.fuse(*loops[:2]))
