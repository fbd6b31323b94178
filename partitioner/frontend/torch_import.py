"""Programs exported by PyTorch; PyTorch itself is imported only when one is given."""

from __future__ import annotations

from typing import Any

from partitioner.errors import ImportModelError
from partitioner.frontend.names import Sources
from partitioner.frontend.straight import bindings_of

__all__ = ["import_torch", "is_exported_program"]


def is_exported_program(model: Any) -> bool:
    """Whether `model` is a torch.export.ExportedProgram, found out without importing PyTorch."""
    kind = type(model)
    return kind.__name__ == "ExportedProgram" and kind.__module__.split(".")[0] == "torch"


def import_torch(program: Any, name: str) -> tuple[Any, Sources]:
    """Import an exported program, its parameters bound as constants.

    Returns
    -------
    module : IRModule
        High-level Relax.
    sources : dict
        Binding name -> itself: the frontend keeps no other name.

    Raises
    ------
    ImportModelError
        If TVM's frontend cannot convert the program.
    """
    from tvm.relax.frontend.torch import from_exported_program

    try:
        module = from_exported_program(program, unwrap_unit_return_tuple=True)
    except (RuntimeError, AssertionError, LookupError, TypeError, ValueError) as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise ImportModelError(
            f"{name}: TVM's PyTorch frontend failed: {lines[0]}; replace that operator, or export "
            "the model to ONNX"
        ) from error
    names = [str(binding.var.name) for binding in bindings_of(module["main"])]
    return module, {name: (name,) for name in names}
