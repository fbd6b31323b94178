"""The measuring process: pinned before TVM starts, one request in, one answer out, both JSON.

Started as ``python -m partitioner.profiling.agent``; it runs where the cores are.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from partitioner.runtime import affinity, cgroup

if TYPE_CHECKING:
    from partitioner.runtime.executable import Executable

__all__ = ["main", "measure"]

_WARM_UP = 2
_FEWEST_ROUNDS = 5


def measure(request: dict[str, Any]) -> dict[str, Any]:
    """Time a library's runs, whole and kernel by kernel, alternating.

    Parameters
    ----------
    request : dict
        ``library``, ``cpus``, ``threads``, ``cgroup`` (None for none), ``inputs`` (shape and dtype
        of each), ``seed``, ``seconds`` to spend, ``kernels`` (for each op its kernel symbols;
        empty: whole runs only).

    Returns
    -------
    dict
        ``total_s``: seconds of each whole run; ``op_s``: for each op, of each traced run.
    """
    from partitioner.graph import OpGraph, Tensor
    from partitioner.runtime.executable import Executable
    from partitioner.samples import random_item

    executable = Executable(request["library"], request["cpus"], request["threads"])
    tensors = tuple(
        Tensor(i, str(i), None, (), tuple(shape), dtype, 0)
        for i, (shape, dtype) in enumerate(request["inputs"])
    )
    graph = OpGraph("inputs", (), tensors, (), tuple(range(len(tensors))), ())
    inputs = tuple(random_item(graph, request["seed"]).values())
    kernels = request["kernels"]
    totals: list[float] = []
    traced: list[list[float]] = [[] for _ in kernels]
    for _ in range(_WARM_UP):
        executable.run(inputs)
    began = time.perf_counter()
    while len(totals) < _FEWEST_ROUNDS or time.perf_counter() - began < request["seconds"]:
        start = time.perf_counter()
        executable.run(inputs)
        totals.append(time.perf_counter() - start)
        if kernels:
            for times, seconds in zip(traced, _per_op(executable, inputs, kernels), strict=True):
                times.append(seconds)
    return {"total_s": totals, "op_s": traced}


def _per_op(
    executable: Executable, inputs: tuple[Any, ...], kernels: Sequence[tuple[str, Sequence[str]]]
) -> list[float]:
    """Sum each op's kernels out of one traced run; `main` runs the ops in the recorded order."""
    events = executable.trace(inputs)
    names = [name for name, _ in events]
    per_op = []
    position = 0
    for op, symbols in kernels:
        # Control flow and opaque calls stay one function, named as the op.
        wanted = [op] if names[position : position + 1] == [op] else list(symbols)
        end = position + len(wanted)
        if names[position:end] != wanted:
            raise RuntimeError(f"op {op!r} should run {wanted}; it ran {names[position:end]}")
        per_op.append(sum(seconds for _, seconds in events[position:end]))
        position = end
    if position != len(names):
        raise RuntimeError(f"kernel {names[position]!r} of the traced run belongs to no op")
    return per_op


def main() -> int:
    """Answer the request on standard input."""
    request = json.loads(sys.stdin.read())
    if request["cgroup"] is not None:
        cgroup.join(request["cgroup"])
    affinity.pin(request["cpus"])
    answer = measure(request)
    affinity.check(request["cpus"])
    sys.stdout.write(json.dumps(answer))
    return 0


if __name__ == "__main__":
    sys.exit(main())
