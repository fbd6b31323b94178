"""Keeping what compiled code prints out of the process's standard output."""

from __future__ import annotations

import ctypes
import os
import threading

__all__ = ["quiet"]

_STDOUT = 1


class _Quiet:
    """A context that threads may enter at once; see `quiet`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._kept: int | None = None

    def __enter__(self) -> None:
        with self._lock:
            if self._inside == 0:
                self._turn_off()
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0 and self._kept is not None:
                _flush()
                os.dup2(self._kept, _STDOUT)
                os.close(self._kept)
                self._kept = None

    def _turn_off(self) -> None:
        try:
            self._kept = os.dup(_STDOUT)
        except OSError:  # the process has no standard output
            return
        _flush()
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, _STDOUT)
        os.close(nowhere)


quiet = _Quiet()
"""Within ``with quiet:`` nothing reaches standard output.

HiGHS prints single lines of its own from C++, whatever it is told about its log. The descriptor is
the whole process's: what other threads write to it meanwhile is lost too, so that nothing but the
call belongs inside. It does nothing without a standard output.
"""


def _flush() -> None:
    """Hand on what the C library still holds back."""
    ctypes.CDLL(None).fflush(None)
