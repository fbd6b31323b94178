"""Steps on the blocks of a kernel that several schedule rules take."""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.s_tir.schedule import ScheduleError

from partitioner.lowering.isa import Isa

# Vectors in a piece of work when a flat loop is cut for several threads.
_CHUNK = 64

__all__ = [
    "all_blocks",
    "block_names",
    "extent",
    "inline_tail",
    "is_reduction",
    "read_index",
    "register_tile",
    "schedule_rest",
    "schedule_spatial",
    "vectorize_loop",
]


def all_blocks(sch: Any) -> list[Any]:
    """Leaf blocks of the kernel in program order."""
    return list(sch.get_child_blocks(sch.get_sblock("root")))


def block_names(sch: Any) -> list[str]:
    """Names of `all_blocks`."""
    return [sch.get(block).name_hint for block in all_blocks(sch)]


def is_reduction(sch: Any, block: Any) -> bool:
    """Whether a block sums (or the like) over an axis."""
    return sch.get(block).init is not None


def extent(sch: Any, loop: Any) -> int | None:
    """Trip count of a loop, None where it is not a constant."""
    value = sch.get(loop).extent
    return int(value) if isinstance(value, tirx.IntImm) else None


def read_index(sch: Any, block: Any, buffer: str) -> int:
    """Position of the buffer with this name among a block's reads."""
    return [region.source.name for region in sch.get(block).reads].index(buffer)


def inline_tail(sch: Any, block: Any) -> Any:
    """Inline a block and its element-wise consumers into the last of them.

    Stops before a consumer that is a reduction, has other loops than its producer, or ends a
    chain that would have several outputs.

    Parameters
    ----------
    sch : tvm.s_tir.Schedule
        Changed in place.
    block : SBlockRV

    Returns
    -------
    SBlockRV
        The block that now holds what `block` computed.
    """
    while True:
        consumers = sch.get_consumers(block)
        if not consumers or any(is_reduction(sch, c) for c in consumers):
            return block
        loops = [extent(sch, loop) for loop in sch.get_loops(block)]
        if any([extent(sch, loop) for loop in sch.get_loops(c)] != loops for c in consumers):
            return block
        # The earliest consumer goes on: it may itself feed the others (x * sigmoid(x)).
        order = block_names(sch)
        following = min(consumers, key=lambda c: order.index(sch.get(c).name_hint))
        try:
            sch.compute_inline(block)
        except ScheduleError:
            return block
        block = following


def register_tile(
    sch: Any, sums: Any, vectors: int, lanes: int, *, reductions: int, inside: int = 0
) -> None:
    """Keep all sums of a tile in registers while the reduction runs to its end.

    Parameters
    ----------
    sch : tvm.s_tir.Schedule
        Changed in place.
    sums : SBlockRV
        Its innermost spatial loops, before the reductions, are the tile's rows and its columns.
    vectors : int
        Vectors of columns in a tile.
    lanes : int
        Values in a vector.
    reductions : int
        Number of reduction loops.
    inside : int
        How many of the loops around a tile's rows run inside the loop over tiles of columns.
    """
    loops = sch.get_loops(sums)
    m, q = loops[-reductions - 2 : -reductions]
    reduce = loops[-reductions:]
    within = loops[len(loops) - reductions - 2 - inside : -reductions - 2]
    q_tile, q_vector, q_lane = sch.split(q, [None, vectors, lanes])
    sch.reorder(q_tile, *within, *reduce, m, q_vector, q_lane)
    store = sch.cache_write(sums, 0, "local")
    sch.reverse_compute_at(store, within[-1] if within else q_tile, preserve_unit_loops=True)
    s_m, s_q = sch.get_loops(store)[-2:]
    s_vector, s_lane = sch.split(s_q, [None, lanes])
    for loop in (m, q_vector, s_m, s_vector):
        sch.unroll(loop)
    for loop in (q_lane, s_lane):
        sch.vectorize(loop)
    sch.decompose_reduction(sums, reduce[0])


def vectorize_loop(sch: Any, loop: Any, lanes: int) -> None:
    """Vectorize the innermost loop by whole vectors where that leaves no remainder.

    A loop that is not a multiple is left to the compiler, which vectorizes it with a scalar rest;
    a predicated vector loop would become scalar throughout.
    """
    count = extent(sch, loop)
    if count is not None and count % lanes == 0:
        _, inner = sch.split(loop, [None, lanes])
        sch.vectorize(inner)


def _flat_loops(sch: Any, block: Any) -> int:
    """How many innermost loops every tensor of a block walks through in step, at least one.

    Over these a tensor is read in the order of its memory or not at all, so one loop can take their
    place without divisions.
    """
    info = sch.get(block)
    axes = [axis.var for axis in info.iter_vars]
    shape = [axis.dom.extent for axis in info.iter_vars]
    flat = 1
    while flat < len(axes):
        inner = range(len(axes) - flat - 1, len(axes))
        for region in [*info.reads, *info.writes]:
            at = [index.min for index in region.region]
            size = list(region.source.shape)
            if len(at) != len(axes):
                return flat
            moving = all(
                isinstance(at[i], tirx.Var) and at[i].same_as(axes[i]) and size[i] == shape[i]
                for i in inner
            )
            still = all(isinstance(at[i], tirx.IntImm) for i in inner)
            if not moving and not still:
                return flat
        flat += 1
    return flat


def schedule_spatial(sch: Any, block: Any, isa: Isa) -> None:
    """Parallel outer loop, vector inner loop, for a block without reduction."""
    loops = sch.get_loops(block)
    if not loops:
        return
    # A vector that may reach over the end of a row has an index that TVM does not see through, and
    # becomes a gather; LLVM sees a plain loop there, and makes vectors of it.
    whole = (extent(sch, loops[-1]) or 1) % isa.lanes == 0
    first_flat = len(loops) - _flat_loops(sch, block)
    outer, inner = loops[:first_flat], sch.fuse(*loops[first_flat:])
    if not outer and (extent(sch, inner) or 0) % (isa.lanes * _CHUNK) == 0:
        first, inner = sch.split(inner, [None, isa.lanes * _CHUNK])
        outer = [first]
    if outer:
        sch.parallel(sch.fuse(*outer))
    if whole:
        vectorize_loop(sch, inner, isa.lanes)


def schedule_rest(sch: Any, done: Any, isa: Isa) -> None:
    """Schedule the blocks after one that a rule has finished, each for itself."""
    for block in sch.get_consumers(done):
        tail = inline_tail(sch, block)
        if not is_reduction(sch, tail):
            schedule_spatial(sch, tail, isa)
        schedule_rest(sch, tail, isa)
