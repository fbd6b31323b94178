"""Ctrl-C that is noticed whatever becomes of the exception."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["noticed"]


@contextmanager
def noticed(interrupted: threading.Event) -> Iterator[None]:
    """Within it, Ctrl-C sets the event, besides what it does otherwise.

    What it does otherwise is to raise KeyboardInterrupt wherever the main thread is. There it can
    be a finalizer, or a callback of the garbage collector, whose exceptions Python drops.
    """
    usual = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(usual):
        yield
        return
    handle = usual

    def notice(number: int, frame: FrameType | None) -> None:
        interrupted.set()
        handle(number, frame)

    try:
        signal.signal(signal.SIGINT, notice)
        yield
    finally:
        signal.signal(signal.SIGINT, usual)
