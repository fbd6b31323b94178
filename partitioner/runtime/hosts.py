"""What a worker lives in: a process of its own, or a thread of the caller's."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

from partitioner.runtime.channel import Arena
from partitioner.runtime.environment import stage_environment
from partitioner.runtime.link import Link
from partitioner.runtime.wiring import WorkerSpec
from partitioner.runtime.worker import serve

__all__ = ["HOSTS", "Host", "ProcessHost", "ThreadHost"]

# A fresh interpreter, not a fork (the caller's libraries have threads) and not multiprocessing's
# spawn (it runs the caller's main module again, so scripts without a guard and notebooks fail).
_BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[3]); "
    "from partitioner.runtime.child import main; main(int(sys.argv[1]), int(sys.argv[2]))"
)


class ProcessHost:
    """A worker in its own process.

    Parameters
    ----------
    spec : WorkerSpec
        The worker.
    arena : Arena
        The pipeline's memory, with its descriptor still open.
    """

    def __init__(self, spec: WorkerSpec, arena: Arena) -> None:
        self.spec = spec
        assert arena.fd is not None, "workers start before the arena's descriptor is closed"
        ours, theirs = socket.socketpair()
        environment = {**stage_environment(spec.threads), **dict(spec.env)}
        path = json.dumps([str(Path(entry).absolute()) for entry in sys.path])
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _BOOT, str(theirs.fileno()), str(arena.fd), path],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(), arena.fd),
                env=environment,
            )
        self.link = Link(ours)
        self.link.send({"worker": spec.to_json(), "arena_bytes": arena.nbytes})

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def fate(self) -> str:
        """How the process ended, in words; it has hung up already."""
        try:
            code = self._process.wait(timeout=1.0)
        except subprocess.TimeoutExpired:
            return "hung up"
        if code >= 0:
            return f"exited with status {code}"
        return f"was killed by signal {-code} ({signal.Signals(-code).name})"

    def join(self, timeout_s: float) -> None:
        """Wait a while for the process to end by itself."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=timeout_s)

    def end(self) -> None:
        """End the process if it has not ended, and hang up."""
        self._process.kill()  # Nothing happens to one that was waited for.
        self._process.wait()
        self.link.close()


class ThreadHost:
    """A worker in a thread of the caller's process.

    Parameters
    ----------
    spec : WorkerSpec
        The worker.
    arena : Arena
        The pipeline's memory.
    """

    def __init__(self, spec: WorkerSpec, arena: Arena) -> None:
        self.spec = spec
        ours, theirs = socket.socketpair()
        self.link = Link(ours)
        self._thread = threading.Thread(
            target=_serve_and_hang_up,
            args=(spec, arena, Link(theirs)),
            name=f"stage-{spec.stage}.{spec.replica}",
            daemon=True,  # An interpreter that ends stops the pipeline, it does not wait for it.
        )
        self._thread.start()

    @property
    def pid(self) -> int:
        """Process id: the caller's."""
        return os.getpid()

    def fate(self) -> str:
        """How the thread ended, in words."""
        return "ended"

    def join(self, timeout_s: float) -> None:
        """Wait a while for the thread to end by itself."""
        self._thread.join(timeout_s)

    def end(self) -> None:
        """Hang up; a thread cannot be ended, it leaves after the item it works on."""
        self.link.close()


Host = ProcessHost | ThreadHost
HOSTS: dict[str, type[ProcessHost] | type[ThreadHost]] = {
    "process": ProcessHost,
    "thread": ThreadHost,
}


def _serve_and_hang_up(spec: WorkerSpec, arena: Arena, link: Link) -> None:
    try:
        serve(spec, arena, link, whole_process=False)
    finally:
        link.close()
