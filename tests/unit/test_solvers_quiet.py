"""What compiled code prints inside `quiet` is dropped, what it prints around it is not."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import threading

import pytest

from partitioner.solvers.quiet import quiet


def say(text: bytes) -> None:
    """Print from C, where it may stay in a buffer."""
    ctypes.CDLL(None).puts(text)


def flush() -> None:
    ctypes.CDLL(None).fflush(None)


def test_only_what_is_said_inside_is_dropped(capfd: pytest.CaptureFixture[str]) -> None:
    say(b"before")
    with quiet:
        say(b"inside")
    say(b"after")
    with pytest.raises(ValueError, match="wrong"), quiet:
        raise ValueError("wrong")
    say(b"later")
    flush()
    assert capfd.readouterr().out.split() == ["before", "after", "later"]


def test_threads_that_overlap(capfd: pytest.CaptureFixture[str]) -> None:
    """The first to enter leaves first; standard output comes back with the last."""
    entered = threading.Event()

    def first() -> None:
        with quiet:
            entered.set()
            second_is_in.wait(10)

    second_is_in = threading.Event()
    thread = threading.Thread(target=first)
    thread.start()
    entered.wait(10)
    with quiet:
        second_is_in.set()
        thread.join()
        say(b"inside")
    say(b"after")
    flush()
    assert capfd.readouterr().out.split() == ["after"]


def test_without_a_standard_output() -> None:
    code = (
        "import os; os.close(1)\n"
        "from partitioner.solvers.quiet import quiet\n"
        "with quiet: pass\n"
        "os.write(2, b'fine')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert done.stderr == b"fine"
