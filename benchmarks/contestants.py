"""Processes that run one network each when told to, pinned to their cores, idle in between.

As a program: one request as a line of JSON on standard input, then one line with seconds for each
turn; it answers each with a line of JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from partitioner.runtime import affinity
from partitioner.runtime.environment import stage_environment

_WARM_UP = 3
_FEWEST_RUNS = 3
# Thread pools go on spinning for a while after a run; the next contestant waits for that.
_SETTLE_S = 0.05


class Contestant:
    """A process that runs `library` (a compiled stage) or `model` (an ONNX file).

    Parameters
    ----------
    folder : Path
        Holds ``inputs.npz``, arrays ``arg0``... in order, also named by ``names``; the outputs
        are written here.
    name : str
        Unique in the folder.
    cpus : sequence of int
        One thread each.
    library, model : Path
        One of them.
    kernels : sequence of (str, sequence of str)
        For each op of the library its kernels; their times are taken in `trace`.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        cpus: Sequence[int],
        *,
        library: Path | None = None,
        model: Path | None = None,
        kernels: Sequence[tuple[str, Sequence[str]]] = (),
    ) -> None:
        self._outputs = folder / f"{name}.npz"
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=stage_environment(len(cpus)),
        )
        self._ask(
            {
                "inputs": str(folder / "inputs.npz"),
                "outputs": str(self._outputs),
                "cpus": list(cpus),
                "library": library and str(library),
                "model": model and str(model),
                "kernels": [[op, list(symbols)] for op, symbols in kernels],
            }
        )

    def run(self, seconds: float) -> float:
        """Run for so long; the median time of a run, seconds."""
        return float(self._ask({"seconds": seconds})["median_s"])

    def trace(self, seconds: float) -> list[float]:
        """Median seconds of each op, in place."""
        return [float(s) for s in self._ask({"trace": seconds})["op_s"]]

    def outputs(self) -> tuple[Any, ...]:
        """What the network gave for the inputs."""
        with np.load(self._outputs) as stored:
            return tuple(stored[f"arr_{i}"] for i in range(len(stored.files)))

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"a contestant died, status {self._process.wait()}; see above")
        answer: dict[str, Any] = json.loads(line)
        return answer


def _answer(given: dict[str, Any]) -> dict[str, Callable[[float], Any]]:
    """What this process can do, by key of a request."""
    from partitioner.profiling.agent import in_place, per_op
    from partitioner.runtime.executable import Executable

    with np.load(given["inputs"]) as stored:
        arrays = {name: stored[name] for name in stored.files}
    if given["model"]:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = len(given["cpus"])
        options.inter_op_num_threads = 1
        session = onnxruntime.InferenceSession(
            given["model"], options, providers=["CPUExecutionProvider"]
        )

        def once() -> tuple[Any, ...]:
            return tuple(session.run(None, arrays))
    else:
        executable = Executable(given["library"], given["cpus"], len(given["cpus"]))
        inputs = tuple(map(in_place, arrays.values()))

        def once() -> tuple[Any, ...]:
            return executable.run(inputs)

    for _ in range(_WARM_UP):
        outputs = once()
    np.savez(given["outputs"], *outputs)

    def median(seconds: float) -> dict[str, float]:
        time.sleep(_SETTLE_S)
        once()
        times: list[float] = []
        began = time.perf_counter()
        while len(times) < _FEWEST_RUNS or time.perf_counter() - began < seconds:
            start = time.perf_counter()
            once()
            times.append(time.perf_counter() - start)
        return {"median_s": float(np.median(times))}

    def trace(seconds: float) -> dict[str, list[float]]:
        rows: list[list[float]] = []
        began = time.perf_counter()
        while len(rows) < _FEWEST_RUNS or time.perf_counter() - began < seconds:
            rows.append(per_op(executable.trace(inputs), given["kernels"]))
        return {"op_s": np.median(rows, axis=0).tolist()}

    return {"seconds": median, "trace": trace}


def main() -> int:
    given = json.loads(sys.stdin.readline())
    affinity.pin(given["cpus"])
    turns = _answer(given)
    print(json.dumps({}), flush=True)
    for line in sys.stdin:
        ((key, value),) = json.loads(line).items()
        print(json.dumps(turns[key](value)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
