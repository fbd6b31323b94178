"""The measuring process: pinned before TVM starts, a line of JSON in, a line of JSON out.

Started as ``python -m partitioner.tuning.worker``. The first line says where it belongs and what
kernels are made for: ``cpus``, ``threads``, ``cgroup``, ``target``, and ``compile_cpus``, which may
be used while nothing is measured. Every other names an op
(``module``, a file; ``name``) and either ``choices`` with ``rounds``, to be measured, the first of
them the one to beat, or ``sketches``, how many schedules of TVM's design space to draw with
``seed``. The process may crash or hang over a kernel; who started it knows what to do then.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

from partitioner.errors import PartitionerError, TuningError
from partitioner.runtime import affinity, cgroup

if TYPE_CHECKING:
    from partitioner.tuning.kernels import Kernels

__all__ = ["Session", "main"]

# TVM's "every thread may run on any of the listed cores", as stages run.
_SHARED_CORES = -3
# Of the largest value: other orders of summation differ by less.
_TOLERANCE = 1e-4
_ERRORS = (PartitionerError, RuntimeError, ValueError, TypeError)


class Session:
    """Answers requests; keeps the kernels of the op at hand.

    Parameters
    ----------
    target : str
        TVM target as JSON.
    compile_cpus : sequence of int
        Kernels are compiled by as many threads, on these.
    """

    def __init__(self, target: str, compile_cpus: Sequence[int]) -> None:
        import tvm

        self._compilers = ThreadPoolExecutor(
            len(compile_cpus), initializer=os.sched_setaffinity, initargs=(0, compile_cpus)
        )
        self._target = tvm.target.Target(json.loads(target))
        self._op = ("", "")
        self._module: Any = None
        self._kernels: dict[str, Kernels] = {}
        self._outputs: Any = None
        self._checked: set[str] = set()

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Measure choices or draw schedules.

        Returns
        -------
        dict
            For ``choices`` ``results``, one for each: ``{"seconds": [...]}``, or ``{"error": why}``
            where it cannot be measured or computes something else than the first. For ``sketches``
            ``traces``.
        """
        self._turn_to(request["module"], request["name"])
        if "sketches" in request:
            from partitioner.tuning.sketches import sketches

            found = sketches(
                self._module, request["name"], self._target, request["sketches"], request["seed"]
            )
            return {"traces": found}
        return {"results": self._measured(request["choices"], request["rounds"])}

    def _turn_to(self, path: str, name: str) -> None:
        if self._op == (path, name):
            return
        import tvm

        from partitioner.tuning.kernels import with_weights

        self._kernels, self._outputs, self._checked = {}, None, set()
        module = tvm.ir.load_json(Path(path).read_text(encoding="utf-8"))
        self._module = with_weights(module, name)
        self._op = (path, name)

    def _measured(self, choices: list[dict[str, Any]], rounds: int) -> list[dict[str, Any]]:
        from partitioner.tuning.kernels import interleaved

        # The kernel to beat is wanted again and again, and a new best is measured twice.
        wanted = {json.dumps(choice) for choice in choices}
        self._kernels = {key: one for key, one in self._kernels.items() if key in wanted}
        compiling = [self._compilers.submit(self._compiled, choice) for choice in choices]
        wait(compiling)
        results: list[dict[str, Any]] = []
        running: list[Kernels] = []
        for choice, made in zip(choices, compiling, strict=True):
            try:
                self._check(made.result(), choice, is_reference=not results)
                running.append(made.result())
                results.append({})
            except _ERRORS as error:
                if not results:
                    return [{"error": _last_line(error)} for _ in choices]
                results.append({"error": _last_line(error)})
        times = iter(interleaved(running, rounds))
        return [result or {"seconds": next(times)} for result in results]

    def _compiled(self, choice: dict[str, Any]) -> Kernels:
        from partitioner.lowering import Choice
        from partitioner.tuning.kernels import Kernels

        key = json.dumps(choice)
        if key not in self._kernels:
            tile = None if choice["tile"] is None else tuple(choice["tile"])
            made = Choice(tile=tile, trace=choice["trace"])
            self._kernels[key] = Kernels(self._module, self._op[1], self._target, made)
        return self._kernels[key]

    def _check(self, kernels: Kernels, choice: dict[str, Any], *, is_reference: bool) -> None:
        """Run new kernels once, and see that they compute what those to beat do."""
        from partitioner.tuning.kernels import same_values

        if json.dumps(choice) in self._checked:
            return
        outputs = kernels.outputs()
        if is_reference:
            self._outputs = outputs
        elif not same_values(outputs, self._outputs, _TOLERANCE if choice["trace"] else 0.0):
            raise TuningError("computes something else than the rule's kernel")
        self._checked.add(json.dumps(choice))


def _last_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[-1] if lines else type(error).__name__


def main() -> int:
    """Answer the lines on standard input until it ends."""
    setting = json.loads(sys.stdin.readline())
    if setting["cgroup"] is not None:
        cgroup.join(setting["cgroup"])
    affinity.pin(setting["cpus"])
    # Whatever kernels or TVM print must not get between the answers.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    import tvm

    configure = tvm.get_global_func("runtime.config_threadpool")
    configure(_SHARED_CORES, setting["threads"], [str(cpu) for cpu in setting["cpus"]])
    found = int(tvm.get_global_func("runtime.NumThreads")())
    if found != setting["threads"]:
        raise TuningError(f"TVM runs kernels with {found} threads, not {setting['threads']}")
    session = Session(setting["target"], setting["compile_cpus"])
    answers.write(json.dumps({"ready": True}) + "\n")
    answers.flush()
    for line in sys.stdin:
        answers.write(json.dumps(session.answer(json.loads(line))) + "\n")
        answers.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
