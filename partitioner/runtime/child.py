"""Entry of a worker process. Light: it takes its place before anything starts a thread."""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import threading
from contextlib import suppress
from typing import NoReturn

from partitioner.errors import DeviceError
from partitioner.runtime import affinity, cgroup
from partitioner.runtime.link import Link

__all__ = ["main"]

_LOOK_UP_MS = 1000


def main(sock_fd: int, arena_fd: int) -> None:
    """Serve as the worker that the other end of `sock_fd` describes, then end the process.

    Parameters
    ----------
    sock_fd : int
        Descriptor of the socket to the caller.
    arena_fd : int
        Descriptor of the pipeline's shared memory.
    """
    # A Ctrl-C on the terminal reaches the whole group; the caller decides what becomes of it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = os.getppid()
    sock = socket.socket(fileno=sock_fd)
    link = Link(sock)
    message = link.receive(None)
    if message is None:
        _leave(1)  # The caller gave up before it said anything.
    # `serve` does both again, and tells the caller if one fails.
    with suppress(DeviceError):
        if message["worker"]["cgroup"] is not None:
            cgroup.join(message["worker"]["cgroup"])
        affinity.pin(message["worker"]["cpus"])
    threading.Thread(target=_watch, args=(sock, parent), name="watch-caller", daemon=True).start()

    # NumPy starts threads when it is loaded; by now they inherit the stage's CPUs.
    from partitioner.runtime.channel import Arena
    from partitioner.runtime.wiring import WorkerSpec
    from partitioner.runtime.worker import serve

    arena = Arena(message["arena_bytes"], arena_fd)
    arena.close_fd()
    worker = WorkerSpec.from_json(message["worker"])
    ended_well = serve(worker, arena, link, whole_process=True)
    _leave(0 if ended_well else 1)


def _watch(sock: socket.socket, parent: int) -> None:
    """End the process when the caller's does, whatever the worker is doing.

    The kernel's own parent-death signal is no use here: it comes when the *thread* that started
    the process ends. The line's end is seen at once, unless another child of the caller holds a
    copy of it; the change of parent is then.
    """
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    while os.getppid() == parent:
        if poll.poll(_LOOK_UP_MS) and not sock.recv(1, socket.MSG_PEEK):
            break
    _leave(1)


def _leave(code: int) -> NoReturn:
    # Not sys.exit: nothing here needs tearing down, and libraries' own teardown takes its time.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
