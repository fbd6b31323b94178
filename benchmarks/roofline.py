"""What one core can do, measured: multiply-adds in registers, and reading memory.

The roofline model: Williams, Waterman and Patterson, CACM 52(4), 2009.
"""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

_SOURCE = """
typedef float vec __attribute__((vector_size(4 * LANES)));

// As many sums as hide the latency of a multiply-add and fit into registers.
extern "C" float multiply_adds(long rounds, float scale, float step) {
  vec x, y, a0, a1, a2, a3, a4, a5, a6, a7;
  for (int i = 0; i < LANES; ++i) { x[i] = scale; y[i] = step; }
  a0 = a1 = a2 = a3 = a4 = a5 = a6 = a7 = y;
  a1 += x; a2 -= x; a3 += x + x; a4 -= y; a5 += y; a6 += x + y; a7 -= x + y;
  vec b0 = a1 * y, b1 = a2 * y, b2 = a3 * y, b3 = a4 * y;
  for (long r = 0; r < rounds; ++r) {
    a0 = a0 * x + y; a1 = a1 * x + y; a2 = a2 * x + y; a3 = a3 * x + y;
    a4 = a4 * x + y; a5 = a5 * x + y; a6 = a6 * x + y; a7 = a7 * x + y;
    b0 = b0 * x + y; b1 = b1 * x + y; b2 = b2 * x + y; b3 = b3 * x + y;
  }
  a0 += a1 + a2 + a3 + a4 + a5 + a6 + a7 + b0 + b1 + b2 + b3;
  float sum = 0;
  for (int i = 0; i < LANES; ++i) sum += a0[i];
  return sum;
}

extern "C" float read_all(const float* data, long vectors) {
  const vec* at = (const vec*)data;
  vec a = at[0], b = a, c = a, d = a;
  for (long i = 0; i + 4 <= vectors; i += 4) {
    a += at[i]; b += at[i + 1]; c += at[i + 2]; d += at[i + 3];
  }
  float sum = 0;
  a += b + c + d;
  for (int i = 0; i < LANES; ++i) sum += a[i];
  return sum;
}
"""
_ROUNDS = 1_000_000
_SUMS = 12
_BYTES = 256 << 20
_REPEATS = 7


@dataclass(frozen=True)
class Peak:
    """One core's measured rates: floating-point operations and bytes a second."""

    flops: float
    bytes_per_s: float


def measured_peak(lanes: int) -> Peak:
    """Measure on the core that the caller is pinned to.

    Parameters
    ----------
    lanes : int
        float32 values in a vector register.
    """
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder) / "peak.cpp", Path(folder) / "peak.so"
        source.write_text(_SOURCE, encoding="utf-8")
        command = ["g++", "-O3", "-march=native", "-ffp-contract=fast", f"-DLANES={lanes}"]
        flags = ["-funroll-loops", "-Wno-psabi", "-shared", "-fPIC", "-o"]
        subprocess.run([*command, *flags, str(library), str(source)], check=True)
        code = ctypes.CDLL(str(library))
    code.multiply_adds.argtypes = [ctypes.c_long, ctypes.c_float, ctypes.c_float]
    code.read_all.argtypes = [ctypes.c_void_p, ctypes.c_long]
    data = ctypes.create_string_buffer(_BYTES + 64)
    start = (ctypes.addressof(data) + 63) // 64 * 64
    arithmetic = 2.0 * lanes * _SUMS * _ROUNDS
    return Peak(
        flops=arithmetic / _fastest(lambda: code.multiply_adds(_ROUNDS, 0.5, 1.0)),
        bytes_per_s=_BYTES / _fastest(lambda: code.read_all(start, _BYTES // (4 * lanes))),
    )


def _fastest(call: Callable[[], object]) -> float:
    times = []
    for _ in range(_REPEATS):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)
