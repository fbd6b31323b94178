"""Relax modules in files: TVMScript text and TVM's JSON."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import tvm

from partitioner.errors import ImportModelError

__all__ = ["read_module"]

_SCRIPT = (".py", ".tvmscript")


def read_module(path: Path) -> Any:
    """Read an IRModule from TVMScript text or JSON.

    TVMScript is parsed, not run; import lines before the module are skipped.

    Parameters
    ----------
    path : Path
        ``.py`` or ``.tvmscript``, as ``module.script(show_meta=True)`` prints it, or ``.json``
        from `tvm.ir.save_json`.

    Returns
    -------
    IRModule
        The module.

    Raises
    ------
    ImportModelError
        If the file cannot be read, has another ending, or holds no module.
    """
    if path.suffix not in (*_SCRIPT, ".json"):
        raise ImportModelError(
            f"{path}: the ending {path.suffix!r} is not known; models are .onnx, .py, .tvmscript "
            "or .json files"
        )
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ImportModelError(
            f"{path}: cannot be read ({error.strerror or error}); give the path of a file that "
            "exists"
        ) from error
    except UnicodeDecodeError as error:
        raise ImportModelError(
            f"{path}: not a text file ({error}); save the module again"
        ) from error
    found = _from_script(path, text) if path.suffix in _SCRIPT else _from_json(path, text)
    if not isinstance(found, tvm.IRModule):
        raise ImportModelError(
            f"{path}: holds a {type(found).__name__}, needed is an IRModule with a Relax function "
            "'main'"
        )
    return found


def _from_json(path: Path, text: str) -> Any:
    try:
        return tvm.ir.load_json(text)
    except (RuntimeError, ValueError, TypeError, LookupError, AttributeError) as error:
        raise ImportModelError(
            f"{path}: not a module that TVM saved, or cut short ({_first_line(error)}); save it "
            "again with tvm.ir.save_json"
        ) from error


def _from_script(path: Path, text: str) -> Any:
    try:
        return tvm.script.from_source(_without_imports(text))
    except (RuntimeError, SyntaxError, ValueError) as error:
        raise ImportModelError(
            f"{path}: not TVMScript ({_first_line(error)}); print the module with "
            "module.script(show_meta=True)"
        ) from error


def _without_imports(text: str) -> str:
    """`text` with its top-level imports blanked, so that line numbers in errors stay right."""
    lines = text.splitlines()
    for statement in ast.parse(text).body:
        if isinstance(statement, ast.Import | ast.ImportFrom):
            last = statement.end_lineno or statement.lineno
            lines[statement.lineno - 1 : last] = [""] * (last - statement.lineno + 1)
    return "\n".join(lines) + "\n"


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
