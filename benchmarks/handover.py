"""What handing an item over costs, in a quiet caller and beside a busy Python thread.

Three tables:

1. A hop: two stages that copy their input, N bytes from the caller through both back to it. Given
   is the latency of an item through the empty pipeline over its three hops, the period, and the
   period over the time of a plain copy (what a stage itself does).
2. Two stages of 1 ms: the period over the slower stage's time in its runner, both as means over the
   same items (a core that somebody else uses lengthens both). The stages *sleep*
   (``clock_nanosleep``, timer slack 1 ns), so that they occupy no core and a spare one is left on
   a machine of two; ``--work spin`` makes them compute instead.
3. The same with another Python thread of the caller at 100%, over the quiet one, for each kind of
   busy thread: bytecode, and ``json.loads`` (which holds the interpreter lock for long).

In the third table the caller has the last CPU for itself and the stages share the others; else
each stage has a CPU, as far as they go, and the caller is wherever the kernel puts it. Every
repeat is a fresh process; the variants of a table take turns. Medians, spread = interquartile range
over the median, the ratio last.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from typing import Any

import numpy as np

from partitioner.runtime.affinity import allowed_cpus, pin
from partitioner.runtime.measure import measure
from partitioner.runtime.pipeline import Pipeline
from partitioner.runtime.spec import PipelineSpec, ReplicaSpec, RunnerSpec, StageSpec, TensorSpec
from partitioner.runtime.trace import Trace

SIZES = (1 << 10, 1 << 20, 64 << 20)
NAMES = {1 << 10: "1 kB", 1 << 20: "1 MB", 64 << 20: "64 MB"}
PR_SET_TIMERSLACK = 29


class Copying:
    def __init__(self) -> None:
        self._own: np.ndarray[Any, Any] | None = None

    def run(self, inputs: tuple[np.ndarray[Any, Any], ...]) -> tuple[np.ndarray[Any, Any], ...]:
        if self._own is None:
            self._own = np.empty_like(inputs[0])
        np.copyto(self._own, inputs[0])
        return (self._own,)


class Lasting:
    """Takes a given time, asleep or computing."""

    def __init__(self, seconds: float, work: str) -> None:
        self._seconds = seconds
        self._sleeps = work == "sleep"
        libc = ctypes.CDLL(None)
        libc.prctl(PR_SET_TIMERSLACK, ctypes.c_ulong(1), 0, 0, 0)

    def run(self, inputs: tuple[np.ndarray[Any, Any], ...]) -> tuple[np.ndarray[Any, Any], ...]:
        if self._sleeps:
            time.sleep(self._seconds)
            return inputs
        until = time.perf_counter() + self._seconds
        while time.perf_counter() < until:
            pass
        return inputs


def copying(*, threads: int, cpus: tuple[int, ...]) -> Copying:
    return Copying()


def lasting(seconds: float, work: str, *, threads: int, cpus: tuple[int, ...]) -> Lasting:
    return Lasting(seconds, work)


def two_stages(runner: RunnerSpec, nbytes: int, cpus: list[int]) -> PipelineSpec:
    stages = tuple(
        StageSpec(
            f"stage{index}",
            (ReplicaSpec((cpus[index % len(cpus)],), 1, runner),),
            (index,),
            (index + 1,),
        )
        for index in range(2)
    )
    tensors = {index: TensorSpec(f"t{index}", (nbytes // 4,), "float32") for index in range(3)}
    return PipelineSpec(stages, tensors, (0,), (2,))


def keep_busy(how: str) -> None:
    """Start a thread that never gives the interpreter lock up by itself."""
    text = json.dumps([{"key": number, "text": "x" * 20} for number in range(2000)])

    def bytecode() -> None:
        number = 0
        while True:
            number += 1

    def parsing() -> None:
        while True:
            json.loads(text)

    target = {"bytecode": bytecode, "json": parsing}[how]
    threading.Thread(target=target, daemon=True).start()


def run_one(order: dict[str, Any]) -> dict[str, float]:
    """Measure one variant in this process."""
    nbytes = order["nbytes"]
    item = np.random.default_rng(0).standard_normal(nbytes // 4).astype(np.float32)
    runner = RunnerSpec(*order["runner"])
    cpus = sorted(allowed_cpus())
    if order["spare"]:
        pin({cpus.pop()})
    trace = Trace()
    with Pipeline(two_stages(runner, nbytes, cpus), order["workers"], trace=trace) as pipe:
        if order["busy"]:
            keep_busy(order["busy"])
        times = measure(pipe, lambda _: item, order["items"], warmup=pipe.capacity)
        steady = slice(-order["items"] - pipe.capacity, -pipe.capacity)
        runs = [rows.rows[steady, 3] - rows.rows[steady, 2] for rows in trace.records()]
    target = np.empty_like(item)
    copies = []
    for _ in range(9):
        start = time.perf_counter()
        np.copyto(target, item)
        copies.append(time.perf_counter() - start)
    return {
        "period_s": times.period_s,
        "latency_s": times.latency_s,
        "run_s": max(float(run.mean()) for run in runs) / 1e9,
        "copy_s": statistics.median(copies),
    }


def in_fresh_process(order: dict[str, Any]) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, __file__, "--one", json.dumps(order)],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    found: dict[str, float] = json.loads(done.stdout)
    return found


def interleaved(
    orders: dict[str, dict[str, Any]], repeats: int
) -> dict[str, list[dict[str, float]]]:
    found: dict[str, list[dict[str, float]]] = {name: [] for name in orders}
    for number in range(repeats):
        names = list(orders) if number % 2 == 0 else list(reversed(orders))
        for name in names:
            found[name].append(in_fresh_process(orders[name]))
            print(".", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return found


def middle(values: list[float]) -> tuple[float, float]:
    low, median, high = np.percentile(values, (25, 50, 75))
    return float(median), float((high - low) / median)


def show(rows: list[tuple[str, ...]]) -> None:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)))
    print()


def hops(repeats: int) -> None:
    orders = {
        f"{NAMES[nbytes]} {workers}": {
            "nbytes": nbytes,
            "workers": workers,
            "runner": ["handover:copying"],
            "items": max(20, min(3000, (400 << 20) // nbytes)),
            "busy": None,
            "spare": False,
        }
        for nbytes in SIZES
        for workers in ("process", "thread")
    }
    rows = [("tensor", "latency/hop us", "period us", "spread", "plain copy us", "period/copy")]
    for name, runs in interleaved(orders, repeats).items():
        hop, _ = middle([run["latency_s"] / 3 for run in runs])
        period, spread = middle([run["period_s"] for run in runs])
        plain, _ = middle([run["copy_s"] for run in runs])
        ratio, _ = middle([run["period_s"] / run["copy_s"] for run in runs])
        micro = [f"{1e6 * hop:.1f}", f"{1e6 * period:.1f}", f"{spread:.0%}", f"{1e6 * plain:.1f}"]
        rows.append((name, *micro, f"{ratio:.1f}"))
    print("A hop (two copying stages)")
    show(rows)


def stages_of(seconds: float, work: str, items: int, repeats: int) -> None:
    orders = {
        f"{workers} {busy}": {
            "nbytes": 1 << 10,
            "workers": workers,
            "runner": ["handover:lasting", [seconds, work]],
            "items": items,
            "busy": None if busy == "quiet" else busy,
            # A core of the caller's own, where a busy thread takes none from the stages.
            "spare": busy is not None,
        }
        for workers in ("process", "thread")
        for busy in (None, "quiet", "bytecode", "json")
    }
    found = interleaved(orders, repeats)
    rows = [("workers", "in runner us", "period us", "spread", "hand-over %")]
    for workers in ("process", "thread"):
        runs = found[f"{workers} None"]
        share, _ = middle([run["period_s"] / run["run_s"] for run in runs])
        period, spread = middle([run["period_s"] for run in runs])
        inside, _ = middle([run["run_s"] for run in runs])
        figures = [f"{1e6 * inside:.1f}", f"{1e6 * period:.1f}", f"{spread:.1%}"]
        rows.append((workers, *figures, f"{100 * (share - 1):.1f}"))
    print(f"Two stages of {1e3 * seconds:g} ms ({work})")
    show(rows)
    rows = [
        (
            "workers",
            "busy thread",
            "quiet us",
            "busy us",
            "hand-over %",
            "spread of ratio",
            "more %",
        )
    ]
    for workers in ("process", "thread"):
        quiet = [run["period_s"] for run in found[f"{workers} quiet"]]
        for busy in ("bytecode", "json"):
            beside = [run["period_s"] for run in found[f"{workers} {busy}"]]
            ratio, spread = middle([b / q for b, q in zip(beside, quiet, strict=True)])
            share, _ = middle(
                [run["period_s"] / run["run_s"] for run in found[f"{workers} {busy}"]]
            )
            figures = [f"{1e6 * middle(quiet)[0]:.1f}", f"{1e6 * middle(beside)[0]:.1f}"]
            figures += [f"{100 * (share - 1):.1f}", f"{spread:.1%}", f"{100 * (ratio - 1):.1f}"]
            rows.append((workers, busy, *figures))
    print("With another Python thread of the caller at 100%")
    show(rows)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=5, help="fresh processes per variant")
    parser.add_argument("--items", type=int, default=1000, help="items per repeat at 1 ms")
    parser.add_argument("--stage-ms", type=float, default=1.0)
    parser.add_argument("--work", choices=("sleep", "spin"), default="sleep")
    parser.add_argument("--only", choices=("hops", "stages"))
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(run_one(json.loads(options.one))))
        return
    print(f"{len(allowed_cpus())} CPUs of {os.cpu_count()}, {options.repeats} repeats\n")
    if options.only != "stages":
        hops(options.repeats)
    if options.only != "hops":
        stages_of(options.stage_ms / 1e3, options.work, options.items, options.repeats)


if __name__ == "__main__":
    main()
