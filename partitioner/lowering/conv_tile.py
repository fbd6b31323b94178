"""Shapes of convolutions and what blocking of them would cost.

See `partitioner.lowering.conv` for the kernel that a tile describes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from partitioner.lowering.choice import Tile
from partitioner.lowering.isa import Isa

__all__ = ["ConvShape", "ConvTile", "tiles"]

# Half of a common 512 KiB second-level cache: a block of the input stays there while all output
# channels pass over it.
_BLOCK_BYTES = 256 * 1024
_TILE_BYTES = 32 * 1024
# What copying one value of the input takes.
_COPY_CYCLES = 0.5


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
        sizes = ((4, 3), (6, 2), (4, 2), (2, 6), (2, 4), (1, 8))
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
    yield from (n for n in {1, 2, 4, 8, 16, shape.groups} if count % n == 0)


def _cost(shape: ConvShape, tile: ConvTile, isa: Isa) -> float:
    """Estimated time, in multiply-adds of a vector for each step of the reduction."""
    per_group = shape.outputs // shape.groups
    in_group = shape.channels // shape.groups
    blocks = -(-shape.out_hw[0] // tile.rows)
    tiles = -(-per_group // tile.channels)
    computed = blocks * tile.span * tiles * tile.channels * shape.groups
    # A multiply-add needs half a cycle, a vector load or broadcast as well.
    arithmetic = tile.channels * tile.vectors
    cost = computed * max(arithmetic, tile.channels + tile.vectors + 1) / arithmetic
    # Fewer than eight independent sums leave the multiply-add units waiting.
    cost *= max(1.0, 8.5 / arithmetic)
    # Positions of the input that a block reads, in all phases.
    reach = (shape.reach[0] - 1) // shape.stride[0] * shape.row
    read = (tile.span + reach) * shape.stride[0] * shape.stride[1]
    if in_group * read * 4 > _BLOCK_BYTES and not shape.depthwise:
        cost *= 1.0 + 0.1 * min(4.0, in_group * read * 4 / _BLOCK_BYTES)
    # Entering a block costs about as much as a few hundred positions.
    cost += blocks * tiles * shape.groups * 20
    copied = blocks * read * shape.channels * (1 if shape.groups > 1 else tile.parts)
    steps = in_group * shape.kernel[0] * shape.kernel[1]
    cost += copied * _COPY_CYCLES * 2 * isa.lanes / steps
    tasks = shape.batch * blocks * tile.parts
    return cost * sum(-(-tasks // threads) * threads / tasks for threads in (1, 2, 4)) / 3
