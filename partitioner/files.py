"""Files appear whole or not at all."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from partitioner.errors import InputError

__all__ = ["cache_home", "replacing", "require_writable", "write_json", "write_text"]


def cache_home() -> Path:
    """The user's cache folder of this package: ``$XDG_CACHE_HOME/partitioner``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "partitioner"


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """A temporary path beside `path` that takes its place when the block ends without error.

    Raises
    ------
    InputError
        If the folder is not there or cannot be written, or `path` is a folder.
    """
    final = Path(path)
    try:
        handle, name = tempfile.mkstemp(prefix=f".{final.name}.", dir=final.parent)
    except OSError as error:
        raise InputError(f"{final}: cannot write here: {error.strerror}") from error
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)
        try:
            temporary.replace(final)
        except OSError as error:
            raise InputError(f"{final}: cannot write here: {error.strerror}") from error
    finally:
        temporary.unlink(missing_ok=True)


def require_writable(path: str | Path) -> None:
    """Check that `path` can be written before work is spent on what goes there.

    Raises
    ------
    InputError
        As `replacing` does.
    """
    final = Path(path)
    try:
        if final.is_dir():
            raise IsADirectoryError(None, "it is a folder")
        with tempfile.TemporaryFile(dir=final.parent):
            pass
    except OSError as error:
        raise InputError(f"{final}: cannot write here: {error.strerror}") from error


def write_text(path: str | Path, text: str) -> None:
    """Write UTF-8 text, whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: str | Path, data: Any) -> None:
    """Write indented JSON, whole or not at all."""
    write_text(path, json.dumps(data, indent=1, allow_nan=False) + "\n")
