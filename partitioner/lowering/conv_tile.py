"""Shapes of convolutions and what blocking of them would cost.

See `partitioner.lowering.conv` for the kernel that a tile describes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from partitioner.lowering.choice import Tile
from partitioner.lowering.isa import Isa

__all__ = ["ConvShape", "ConvTile", "tiles"]

# Sums of one piece of work that wait for their block to be finished.
_TILE_BYTES = 32 * 1024
# What a first-level cache keeps beside everything else, and half of a common second-level one.
_NEAR_BYTES, _FAR_BYTES = 24 * 1024, 256 * 1024
_LINE_BYTES = 64
# Cycles, by least squares over 380 tiles of 24 convolutions on a Zen 3 core: of each convolution's
# tiles the one with the least estimate was 6 % slower than the best (geometric mean).
_ARITHMETIC = 1.06  # of its ideal
_LINE, _FAR_LINE = 0.37, 0.18  # to bring a line in, and more where the block is far
_COPY = 0.58  # a value of the input
_WAITING, _FAR_WAITING = 1.3, 4.0  # a vector of sums that waits, and more where these are far
_OUTPUT = 0.56  # a value of the output


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
    def flat(self) -> bool:
        """Whether output positions are the input's, in the order of memory."""
        return (self.kernel, self.stride, self.pad) == ((1, 1), (1, 1), (0, 0, 0, 0))

    @property
    def depthwise(self) -> bool:
        """Whether every group has one input and one output channel."""
        return self.groups == self.channels == self.outputs


@dataclass(frozen=True, slots=True)
class ConvTile:
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
    parts : int
        Pieces of work that a block is, by output channels; each copies its block of the input.
    sweep : int
        What stays in the innermost cache: 0 a tile's weights while its positions go by, 1 a tile's
        positions while the weights of a piece go by.
    """

    channels: int
    vectors: int
    rows: int
    span: int
    parts: int
    sweep: int

    @property
    def numbers(self) -> Tile:
        """As records keep it."""
        return (self.channels, self.vectors, self.rows, self.span, self.parts, self.sweep)


def tiles(shape: ConvShape, isa: Isa) -> tuple[ConvTile, ...]:
    """Tiles by estimated time: wasted positions, load pressure, cache overflow.

    Parameters
    ----------
    shape : ConvShape
    isa : Isa

    Returns
    -------
    tuple of ConvTile
        The least time first. Empty where none holds whole sets of channels that are shuffled
        together.
    """
    height, per_group = shape.out_hw[0], shape.outputs // shape.groups
    if shape.depthwise:
        sizes: tuple[tuple[int, int], ...] = ((1, 8), (1, 6), (1, 4))
    elif isa.registers >= 32:
        sizes = ((8, 3), (6, 4), (4, 6), (8, 2), (4, 4), (2, 8), (1, 8))
    else:
        sizes = ((4, 3), (6, 2), (4, 2), (2, 4), (1, 8))
    found: list[tuple[float, ConvTile]] = []
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
            for parts in _parts(shape, channels):
                for sweep in (0,) if shape.depthwise else (0, 1):
                    tile = ConvTile(channels, vectors, rows, span, parts, sweep)
                    found.append((_cost(shape, tile, isa), tile))
    found.sort(key=lambda pair: pair[0])
    return tuple(tile for _, tile in found)


def _parts(shape: ConvShape, channels: int) -> Iterator[int]:
    """Numbers of pieces into which a block's tiles of channels can be cut evenly."""
    count = -(-shape.outputs // channels)
    if shape.depthwise:
        yield count
        return
    yield from (n for n in sorted({1, 2, 4, 8, 16, shape.groups}) if count % n == 0)


def _cost(shape: ConvShape, tile: ConvTile, isa: Isa) -> float:
    """Estimated cycles on one thread, and what uneven pieces lose on a few."""
    inputs = shape.channels // shape.groups
    taps = shape.kernel[0] * shape.kernel[1]
    blocks = -(-shape.out_hw[0] // tile.rows)
    by_channels = -(-shape.outputs // shape.groups // tile.channels) * shape.groups
    width = tile.vectors * isa.lanes
    tiles = blocks * by_channels * (tile.span // width)
    # Two multiply-adds a cycle; fewer than eight independent sums leave the units waiting.
    sums = tile.channels * tile.vectors
    cost = _ARITHMETIC * tiles * inputs * taps * max(sums, 8) / 2
    # Cache lines of the input that come from the second level, over and over.
    reach = (shape.reach[0] - 1) // shape.stride[0] * shape.row
    read = (tile.span + reach) * shape.stride[0] * shape.stride[1]
    block = 4 * inputs * read
    stays = 4 * inputs * taps * tile.channels
    if tile.sweep:
        near = stays + inputs * shape.kernel[0] * (4 * width + _LINE_BYTES) <= _NEAR_BYTES
    else:
        near = stays + block <= _NEAR_BYTES
    if not near:
        lines = tiles * inputs * shape.kernel[0] * (4 * width / _LINE_BYTES + 0.5)
        cost += lines * (_LINE + (_FAR_LINE if block > _FAR_BYTES else 0.0))
    copied = blocks * read * shape.channels * (1 if shape.groups > 1 else tile.parts)
    # A stride in memory is read value by value.
    cost += _COPY * copied * (1 if shape.stride[1] == 1 else 2)
    if tile.sweep:
        waiting = 4 * by_channels // tile.parts * tile.channels * tile.span
        far = _FAR_WAITING if waiting > _FAR_BYTES else 0.0
        cost += tiles * sums * (_WAITING + far)
    cost += _OUTPUT * shape.outputs * shape.out_hw[0] * shape.out_hw[1]
    pieces = shape.batch * blocks * tile.parts
    return cost * sum(-(-pieces // threads) * threads / pieces for threads in (1, 2, 4)) / 3
