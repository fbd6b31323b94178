"""What a CPU target offers to a kernel: vector lanes and registers."""

from __future__ import annotations

from dataclasses import dataclass

import tvm
from tvm.target.codegen import target_has_features

__all__ = ["Isa", "isa_of"]


@dataclass(frozen=True, slots=True)
class Isa:
    """Vector unit of a CPU target.

    Attributes
    ----------
    lanes : int
        float32 values in one vector register.
    registers : int
        Vector registers; they bound the size of a register tile.
    """

    lanes: int
    registers: int


# The first feature that a target has decides.
_BY_FEATURE = (
    ("avx512f", Isa(lanes=16, registers=32)),
    ("avx2", Isa(lanes=8, registers=16)),
    ("avx", Isa(lanes=8, registers=16)),
    ("neon", Isa(lanes=4, registers=32)),
)
_FALLBACK = Isa(lanes=4, registers=16)


def isa_of(target: tvm.target.Target) -> Isa:
    """Vector unit of a target; four lanes and sixteen registers where nothing is known.

    Parameters
    ----------
    target : tvm.target.Target
        An `llvm` target; its `mcpu` and `mattr` decide.

    Returns
    -------
    Isa
    """
    if target.kind.name == "llvm":
        for feature, isa in _BY_FEATURE:
            if target_has_features(feature, target):
                return isa
    return _FALLBACK
