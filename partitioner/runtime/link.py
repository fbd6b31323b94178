"""The thin line between the caller and a worker: JSON messages over a socket pair.

Tensors never travel here. What does: a worker's description, that it is ready, that it failed.
The end of the line is a message too: the other side is gone.
"""

from __future__ import annotations

import json
import select
import socket
from typing import Any

__all__ = ["Link"]


class Link:
    """One end of the line.

    Parameters
    ----------
    sock : socket
        A connected stream socket; the link owns it.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._buffer = b""
        self.ended = False

    def fileno(self) -> int:
        """Descriptor, for waiting on several links."""
        return self._sock.fileno()

    def send(self, message: dict[str, Any]) -> None:
        """Send a message; nothing happens when the other side is gone."""
        try:
            self._sock.sendall(json.dumps(message).encode() + b"\n")
        except (BrokenPipeError, ConnectionResetError):
            self.ended = True

    def receive(self, timeout_s: float | None = 0.0) -> dict[str, Any] | None:
        """Return the next message; None when none came in time or the other side is gone.

        Parameters
        ----------
        timeout_s : float or None
            How long to wait for each part of it; for ever when None.
        """
        while b"\n" not in self._buffer:
            if self.ended or not self._readable(timeout_s):
                return None
            try:
                chunk = self._sock.recv(1 << 16)
            except ConnectionResetError:
                chunk = b""
            self.ended = not chunk
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        message: dict[str, Any] = json.loads(line)
        return message

    def close(self) -> None:
        """Hang up."""
        self.ended = True
        self._sock.close()

    def _readable(self, timeout_s: float | None) -> bool:
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        return bool(poll.poll(None if timeout_s is None else timeout_s * 1e3))
