"""The measuring process from outside: started when needed, killed when it hangs, started again."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import tvm

from partitioner.errors import TuningError
from partitioner.lowering import Choice
from partitioner.machine import Device
from partitioner.runtime import affinity
from partitioner.runtime.environment import stage_environment
from partitioner.tuning.tasks import Task, weightless

__all__ = ["Client", "Lost", "Times"]

Times = tuple[float, ...]
"""Seconds of a run, one a round; empty for what cannot be measured."""

_WORKER = (sys.executable, "-m", "partitioner.tuning.worker")
_START_S = 120.0
_MOST_AT_A_TIME = 4
_PATIENCE_S = 10.0
_LAST_WORDS_S = 2.0
_PATIENCE = 20.0


class Lost(Exception):  # noqa: N818 - no error to a user, who sees the next candidate
    """The process crashed or hung over a request."""


class Client:
    """Measures an op's kernels on a device, in a process of their own.

    Use it as a context manager; the process ends with it.

    Parameters
    ----------
    module : tvm.IRModule
        The grouped module, whose ops are measured.
    device : Device
        Where; a thread a core.
    target : tvm.target.Target
    command : sequence of str, optional
        What to run in place of the measuring process, in tests.
    patience_s : float
        Seconds that a request may take beside the time of the runs asked for.

    Attributes
    ----------
    batch : int
        Candidates that are best measured at a time.
    """

    def __init__(
        self,
        module: Any,
        device: Device,
        target: Any,
        *,
        command: Sequence[str] = _WORKER,
        patience_s: float = _PATIENCE_S,
    ) -> None:
        self._module = module
        self._device = device
        self._target = target
        self._command = tuple(command)
        self._patience_s = patience_s
        self._folder = tempfile.TemporaryDirectory(prefix="partitioner-tuning-")
        self._files: dict[str, Path] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._received = b""
        # Compiling a kernel takes longer than measuring it, and goes on on all cores meanwhile.
        cpus = sorted(affinity.allowed_cpus() | set(device.cpus))
        self._compile_cpus = [*device.cpus, *(cpu for cpu in cpus if cpu not in device.cpus)]
        self.batch = min(_MOST_AT_A_TIME, len(self._compile_cpus))

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()
        self._folder.cleanup()

    def measure(
        self, task: Task, choices: Sequence[Choice], rounds: int, expected_s: float = 0.0
    ) -> tuple[Times, ...]:
        """Times of kernels that take turns.

        Parameters
        ----------
        task : Task
        choices : sequence of Choice
            The first is the one to beat, and the others must compute what it does.
        rounds : int
        expected_s : float
            What a run of the first is known to take; the guard's patience grows with it.

        Returns
        -------
        tuple of tuple of float
            For each choice the seconds of a run, one a round; fewer for what is far behind the
            first, and none for what does not compile, or crashed or hung.

        Raises
        ------
        TuningError
            If the process cannot be started, or the first choice cannot be measured.
        """
        try:
            return self._results(task, choices, rounds, expected_s)
        except Lost as error:
            reason = str(error)
        # One of them is to blame, and with one alone it is clear which.
        if len(choices) > 2:
            pairs = [
                self.measure(task, (choices[0], choice), rounds, expected_s)
                for choice in choices[1:]
            ]
            return (pairs[0][0], *(pair[1] for pair in pairs))
        if len(choices) == 1:
            raise TuningError(f"op {task.name!r}: its own kernel {reason}")
        alone = self.measure(task, choices[:1], rounds, expected_s)
        return (*alone, ())

    def sketches(
        self, task: Task, count: int, seed: int, patience_s: float = _START_S
    ) -> tuple[Choice, ...]:
        """Schedules of TVM's design space drawn at random, none where TVM fails or takes longer."""
        request = {**self._op(task), "sketches": count, "seed": seed}
        try:
            answer = self._ask(request, max(self._patience_s, patience_s))
        except Lost:
            return ()
        return tuple(Choice(trace=trace) for trace in answer["traces"])

    def _results(
        self, task: Task, choices: Sequence[Choice], rounds: int, expected_s: float
    ) -> tuple[Times, ...]:
        request = {
            **self._op(task),
            "choices": [{"tile": one.tile, "trace": one.trace} for one in choices],
            "rounds": rounds,
        }
        patience_s = len(choices) * (self._patience_s + _PATIENCE * rounds * expected_s)
        results = self._ask(request, patience_s)["results"]
        if "error" in results[0]:
            raise TuningError(f"op {task.name!r} cannot be measured: {results[0]['error']}")
        return tuple(tuple(result.get("seconds", ())) for result in results)

    def _op(self, task: Task) -> dict[str, str]:
        if task.op not in self._files:
            path = Path(self._folder.name) / f"{task.op}.json"
            path.write_text(tvm.ir.save_json(weightless(self._module, task.name)), encoding="utf-8")
            self._files[task.op] = path
        return {"module": str(self._files[task.op]), "name": task.name}

    def _ask(self, request: dict[str, Any], patience_s: float) -> dict[str, Any]:
        if self._process is None:
            self._start()
        self._send(request)
        return self._answer(patience_s)

    def _start(self) -> None:
        self._received = b""
        # A group of its own, so that Ctrl-C ends the search and not what it just measures.
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=stage_environment(self._device.threads),
            start_new_session=True,
        )
        setting = {
            "cpus": list(self._device.cpus),
            "threads": self._device.threads,
            "cgroup": self._device.cgroup,
            "target": str(self._target),
            "compile_cpus": self._compile_cpus[:_MOST_AT_A_TIME],
        }
        try:
            self._send(setting)
            self._answer(_START_S)
        except Lost as error:
            raise TuningError(
                f"the measuring process for {self._device.name!r} did not start ({error}); see "
                "that its cores are there and the host has memory left, then try again"
            ) from error

    def _send(self, data: dict[str, Any]) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(data).encode() + b"\n")
            self._process.stdin.flush()
        except OSError as error:
            raise Lost(f"crashed ({self._end(crashed=True)})") from error

    def _answer(self, patience_s: float) -> dict[str, Any]:
        assert self._process is not None
        assert self._process.stdout is not None
        until = time.monotonic() + patience_s
        pipe = self._process.stdout.fileno()
        with selectors.DefaultSelector() as selector:
            selector.register(pipe, selectors.EVENT_READ)
            while b"\n" not in self._received:
                if not selector.select(max(0.0, until - time.monotonic())):
                    self._end()
                    raise Lost(f"did not end within {patience_s:.0f} s")
                part = os.read(pipe, 1 << 16)
                if not part:
                    raise Lost(f"crashed ({self._end(crashed=True)})")
                self._received += part
        line, _, self._received = self._received.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _end(self, *, crashed: bool = False) -> str:
        """Kill the process, if there is one; how it ended."""
        if self._process is None:
            return "not started"
        process, self._process = self._process, None
        if crashed:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_LAST_WORDS_S)
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        return f"exit status {process.returncode}"
