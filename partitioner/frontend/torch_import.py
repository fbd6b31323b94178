"""Programs exported by PyTorch; PyTorch itself is imported only when one is given."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax

from partitioner.errors import ImportModelError
from partitioner.frontend.names import Sources
from partitioner.frontend.straight import bindings_of

__all__ = ["import_torch", "is_exported_program"]

# What the frontend raises for a program it cannot convert; it has no error type of its own.
_CONVERSION_ERRORS = (
    AssertionError,
    AttributeError,
    LookupError,
    NotImplementedError,
    RuntimeError,
    TypeError,
    ValueError,
)


def is_exported_program(model: Any) -> bool:
    """Whether `model` is a torch.export.ExportedProgram, found out without importing PyTorch."""
    kind = type(model)
    return kind.__name__ == "ExportedProgram" and kind.__module__.split(".")[0] == "torch"


def import_torch(program: Any, name: str) -> tuple[Any, Sources]:
    """Import an exported program, its parameters bound as constants.

    Parameters
    ----------
    program : torch.export.ExportedProgram
        Not modified; its core operators are what the sources are named after.
    name : str
        For messages.

    Returns
    -------
    module : IRModule
        High-level Relax.
    sources : dict
        Binding name -> name of the node of the decomposed program.

    Raises
    ------
    ImportModelError
        If TVM's frontend cannot convert the program.
    """
    importer = _naming_importer()
    try:
        module = importer.from_exported_program(
            program.run_decompositions(),
            keep_params_as_input=False,
            unwrap_unit_return_tuple=True,
            no_bind_return_tuple=False,
            custom_convert_map=None,
        )
    except _CONVERSION_ERRORS as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise ImportModelError(
            f"{name}: TVM's PyTorch frontend failed: {lines[0]}; replace that operator, or export "
            "the model to ONNX"
        ) from error
    names = [str(binding.var.name) for binding in bindings_of(module["main"])]
    return module, {key: importer.made_by.get(key, (key,)) for key in names}


def _naming_importer() -> Any:
    """TVM's importer, noting by variable name which bindings each node gave.

    Made here because the class it derives from imports PyTorch.
    """
    from tvm.relax.frontend.torch.exported_program_translator import ExportedProgramImporter

    class Importer(ExportedProgramImporter):
        def __init__(self) -> None:
            super().__init__()
            # The builder's names are unique, and binding parameters makes new variables of them.
            self.made_by: Sources = {}

        def _translate_fx_graph(self, graph_module: Any, nodes: Any, *rest: Any) -> Any:
            outputs = super()._translate_fx_graph(graph_module, nodes, *rest)
            for node in nodes:
                if node.op == "call_function" and node in self.env:
                    self._claim(self.env[node], str(node.name))
            return outputs

        def _claim(self, value: Any, node: str) -> None:
            stack = [value]
            while stack:
                expr = stack.pop()
                if isinstance(expr, list | tuple):
                    stack.extend(expr)
                elif isinstance(expr, relax.Tuple):
                    stack.extend(expr.fields)
                elif isinstance(expr, relax.TupleGetItem):
                    stack.append(expr.tuple_value)
                elif isinstance(expr, relax.Call):
                    stack.extend(expr.args)
                elif isinstance(expr, relax.Var) and str(expr.name) not in self.made_by:
                    bound = self.block_builder.lookup_binding(expr)
                    if isinstance(bound, tvm.ir.Expr):
                        self.made_by[str(expr.name)] = (node,)
                        stack.append(bound)

    return Importer()
