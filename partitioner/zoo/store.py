"""Keeps calibrated networks on disk, since making one takes seconds and many processes want it."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # has no types

__all__ = ["cached", "folder", "key"]


def folder() -> Path:
    """Return where networks are kept: ``partitioner/zoo`` under the user's cache directory."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "partitioner" / "zoo"


def key(sources: Iterable[Path]) -> str:
    """Hash the files and versions that determine a network, so that no stale one is ever read."""
    digest = hashlib.sha256(f"onnx {onnx.__version__} numpy {np.__version__}".encode())
    for path in sources:
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def cached(name: str, sources: Iterable[Path], build: Callable[[], Any]) -> Any:
    """Read a network from the cache, or build it and keep it there.

    A directory that cannot be read or written only costs time: the network is then built anew.

    Parameters
    ----------
    name : str
        The network's name.
    sources : iterable of Path
        Files whose contents determine the network.
    build : callable () -> onnx.ModelProto
        Makes it.
    """
    path = folder() / f"{name}-{key(sources)}.onnx"
    with contextlib.suppress(OSError, DecodeError):
        model = onnx.ModelProto.FromString(path.read_bytes())
        if model.graph.node:
            return model
    model = build()
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        _write(path, model.SerializeToString(deterministic=True))
        for other in path.parent.glob(f"{name}-*.onnx"):
            if other != path:
                other.unlink(missing_ok=True)
    return model


def _write(path: Path, data: bytes) -> None:
    """Write a file that appears whole or not at all."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
