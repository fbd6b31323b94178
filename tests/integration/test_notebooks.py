"""Every notebook runs from its first cell to its last, and is kept without outputs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient

FOLDER = Path(__file__).parents[2] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))

CELL_TIMEOUT_S = 240


class _Kernels(AsyncKernelManager):
    """Starts this interpreter, whatever kernels a user has installed, and lets no other user in."""

    transport_encryption = "required"

    def _kernel_spec_manager_default(self) -> KernelSpecManager:
        # Without folders there is only the kernel that the installed ipykernel describes itself.
        return KernelSpecManager(kernel_dirs=[])


@pytest.fixture(autouse=True)
def no_user_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))


@pytest.fixture
def one_core() -> Iterator[int]:
    """Let this thread, and so what it starts, use a single core."""
    before = os.sched_getaffinity(0)
    cpu = min(before)
    os.sched_setaffinity(0, {cpu})
    yield cpu
    os.sched_setaffinity(0, before)


def execute(path: Path) -> nbformat.NotebookNode:
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook,
        timeout=CELL_TIMEOUT_S,
        kernel_manager_class=_Kernels,
        resources={"metadata": {"path": str(path.parent)}},
    )
    return client.execute()  # raises CellExecutionError, which names the cell


def texts(notebook: nbformat.NotebookNode) -> str:
    return "".join(
        output["text"]
        for cell in notebook.cells
        for output in cell.get("outputs", ())
        if output["output_type"] == "stream" and output["name"] == "stdout"
    )


def figures(notebook: nbformat.NotebookNode) -> int:
    return sum(
        "image/png" in output.get("data", {})
        for cell in notebook.cells
        for output in cell.get("outputs", ())
    )


def test_there_are_notebooks() -> None:
    assert NOTEBOOKS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_stored_without_outputs(path: Path) -> None:
    notebook = nbformat.read(path, as_version=nbformat.NO_CONVERT)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert code
    for cell in code:
        assert cell.outputs == [], f"strip the outputs of cell {cell.id}"
        assert cell.execution_count is None, f"strip the execution count of cell {cell.id}"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_runs(path: Path) -> None:
    notebook = execute(path)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    # A cell after one that failed would not have a count.
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    # Nothing on stderr: no warning, no library's complaint.
    assert [
        output
        for cell in code
        for output in cell.outputs
        if output["output_type"] == "error" or output.get("name") == "stderr"
    ] == []


def test_cut_points_on_one_core(one_core: int) -> None:
    notebook = execute(FOLDER / "01-explore-cut-points.ipynb")
    printed = texts(notebook)
    assert f"devices: cores:{one_core}\n" in printed
    assert "no cut is feasible" in printed
    assert f"single cores:{one_core} plan of squeezenet" in printed
    assert "bitwise equal" in printed
    assert figures(notebook) == 5
