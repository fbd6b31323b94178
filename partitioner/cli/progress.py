"""What a command is doing, on the error stream."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["Progress", "show_progress"]

Progress = Callable[[str, float], None]


@contextmanager
def show_progress(every_s: float = 0.0) -> Iterator[Progress]:
    """A bar on the terminal's error stream; a line a step where that is none.

    Parameters
    ----------
    every_s : float
        Seconds between lines at least, for steps that come by the hundred; a bar shows them all.
    """
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    console = Console(stderr=True)
    if not console.is_terminal:
        said, last, at_s = "", "", float("-inf")

        def say(what: str, part: float) -> None:
            nonlocal said, last, at_s
            last, now_s = what, time.monotonic()
            if what != said and now_s - at_s >= every_s:
                said, at_s = what, now_s
                print(what, file=sys.stderr)

        yield say
        if last != said:  # how it ended is said whenever it comes
            print(last, file=sys.stderr)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Bar(*columns, console=console, transient=True) as bar:
        task = bar.add_task("working", total=1.0)
        yield lambda what, part: bar.update(task, description=what, completed=part)
