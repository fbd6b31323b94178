"""What a CPU target offers to a kernel: vector lanes and registers."""

from __future__ import annotations

from dataclasses import dataclass

import tvm
from tvm.target.codegen import target_has_features

__all__ = ["Isa", "isa_of", "kind_of"]


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


# The first feature that a target has decides: what LLVM calls it, what a kind of CPU is called by.
_BY_FEATURE = (
    ("avx512f", "avx512", Isa(lanes=16, registers=32)),
    ("avx2", "avx2", Isa(lanes=8, registers=16)),
    ("avx", "avx", Isa(lanes=8, registers=16)),
    ("neon", "neon", Isa(lanes=4, registers=32)),
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
    return _feature(target)[1]


def kind_of(target: tvm.target.Target) -> str:
    """Kind of CPU: what the kernels for one target of it are, they are for every other.

    Parameters
    ----------
    target : tvm.target.Target

    Returns
    -------
    str
        Architecture and vector unit, such as ``"x86-64-avx512"``, ``"aarch64-neon"``, ``"x86-64"``.
    """
    triple = target.attrs.get("mtriple") or tvm.target.codegen.llvm_get_system_triple()
    arch = str(triple).split("-")[0].replace("x86_64", "x86-64").replace("arm64", "aarch64")
    feature = _feature(target)[0]
    return f"{arch}-{feature}" if feature else arch


def _feature(target: tvm.target.Target) -> tuple[str, Isa]:
    if target.kind.name == "llvm":
        for feature, name, isa in _BY_FEATURE:
            if target_has_features(feature, target):
                return name, isa
    return "", _FALLBACK
