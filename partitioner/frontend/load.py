"""Import a model of any supported form as one normalized, high-level Relax module."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import tvm
from tvm import relax

from partitioner.errors import ImportModelError
from partitioner.frontend.batch_norm import fold_batch_norm
from partitioner.frontend.names import Sources, carry_sources, rename
from partitioner.frontend.onnx_import import import_onnx, read_onnx
from partitioner.frontend.script_file import read_module
from partitioner.frontend.simplify import simplify
from partitioner.frontend.straight import bindings_of, variables_of, with_main
from partitioner.frontend.torch_import import import_torch, is_exported_program

__all__ = ["Imported", "load"]

Params = Mapping[str, Any] | Sequence[Any]
"""Values for parameters, by name, or in the order they follow the inputs in."""


@dataclass(frozen=True, slots=True)
class Imported:
    """An imported model.

    Attributes
    ----------
    module : IRModule
        Function ``main`` takes the model's inputs; weights are constants in it, and every binding
        has a unique name. Treat as read-only.
    name : str
        The model's name.
    source_names : Mapping
        Binding name -> names of the source model's nodes that it computes.
    notes : tuple of str
        What a user should know about the import.
    """

    module: Any
    name: str
    source_names: Mapping[str, tuple[str, ...]] = field(repr=False)
    notes: tuple[str, ...] = ()


def load(
    model: Any,
    *,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    params: Params | None = None,
    name: str | None = None,
) -> Imported:
    """Import a model.

    Parameters
    ----------
    model : IRModule, onnx.ModelProto, torch.export.ExportedProgram, str or Path
        A path is an ``.onnx`` file, TVMScript text (``.py``, ``.tvmscript``) or a Relax module
        saved with `tvm.ir.save_json` (``.json``). The object is not modified.
    input_shapes : Mapping, optional
        Shapes of inputs whose dimensions the model leaves open.
    params : Mapping or sequence, optional
        Values to bind to parameters of a Relax function: by name, or in the order of the
        parameters after the inputs (``num_input`` of them, else the last ones). Parameters left
        unbound are inputs of the model.
    name : str, optional
        The model's name; by default that of the file, or of the ONNX graph.

    Returns
    -------
    Imported
        The normalized module.

    Raises
    ------
    ImportModelError
        If the model cannot be read or imported; the message says why and what to do.
    """
    notes: tuple[str, ...] = ()
    if isinstance(model, str | Path):
        path = Path(model)
        name = name or path.stem
        model = read_onnx(path) if path.suffix == ".onnx" else read_module(path)
    if isinstance(model, onnx.ModelProto):
        name = name or model.graph.name or "model"
        _refuse_params(params, name)
        module, sources, notes = import_onnx(model, name, input_shapes)
        function = module["main"]
    elif isinstance(model, tvm.IRModule):
        name = name or "model"
        module, function, sources = _from_relax(model, name, input_shapes, params)
    elif is_exported_program(model):
        name = name or "model"
        _refuse_params(params, name)
        module, sources = import_torch(model, name)
        module, function, sources = _from_relax(module, name, input_shapes, None, sources)
    else:
        raise ImportModelError(
            f"a model of type {type(model).__module__}.{type(model).__qualname__} was given; "
            "needed is an IRModule, an onnx.ModelProto, a torch.export.ExportedProgram, or the "
            "path of an .onnx, .py, .tvmscript or .json file"
        )
    module, sources = _normalize(module, function, sources)
    return Imported(module, name, sources, notes)


def _refuse_params(params: Params | None, name: str) -> None:
    if params is not None:
        raise ImportModelError(
            f"{name}: params were given, but this model carries its own weights; params are for "
            "Relax modules"
        )


def _from_relax(
    module: Any,
    name: str,
    shapes: Mapping[str, Sequence[int]] | None,
    params: Params | None,
    given: Sources | None = None,
) -> tuple[Any, Any, Sources]:
    entry = _entry(module, name)
    function = module[entry]
    if entry != "main":
        # It is run as `main`; left in as well, it would be compiled twice.
        module = tvm.IRModule(
            {key: f for key, f in module.functions_items() if str(key.name_hint) != entry},
            attrs=module.attrs,
            global_infos=module.global_infos,
        )
    values = _named_params(function, name, params)
    if values:
        function = function.bind_params(values)
    if shapes:
        function = _bind_shapes(function, name, shapes)
    attrs = function.attrs
    if attrs is not None and "num_input" in attrs:
        function = function.without_attr("num_input")
    before = [str(binding.var.name) for binding in bindings_of(function)]
    function, names = rename(function)
    own = given or {}
    sources = {new: own.get(old, (old,)) for new, old in zip(names, before, strict=True)}
    return module, function, sources


def _entry(module: Any, name: str) -> str:
    functions = {
        str(variable.name_hint): function
        for variable, function in module.functions_items()
        if isinstance(function, relax.Function)
    }
    public = {
        key: function
        for key, function in functions.items()
        if function.attrs is not None and "global_symbol" in function.attrs
    }
    if "main" in functions:
        return "main"
    if len(public) == 1:
        return next(iter(public))
    raise ImportModelError(
        f"{name}: the module has no Relax function 'main' and {len(public)} public ones "
        f"({', '.join(sorted(public)) or 'none'}); name the one to run 'main'"
    )


def _named_params(function: Any, name: str, params: Params | None) -> dict[Any, Any]:
    """The values to bind, by parameter; shapes and types are checked here, not deep in TVM."""
    if params is None:
        return {}
    formal = {str(variable.name): variable for variable in function.params}
    if not isinstance(params, Mapping):
        attrs = function.attrs
        counted = attrs is not None and "num_input" in attrs
        first = int(attrs["num_input"]) if counted else max(len(formal) - len(params), 0)
        names = list(formal)[first:]
        if len(names) != len(params):
            raise ImportModelError(
                f"{name}: {len(params)} params were given, but after {first} inputs the function "
                f"takes {len(names)} ({', '.join(names[:8])}); give one value for each"
            )
        params = dict(zip(names, params, strict=True))
    unknown = sorted(set(params) - set(formal))
    if unknown:
        raise ImportModelError(
            f"{name}: no parameter is named {', '.join(map(repr, unknown))}; the function takes "
            f"{', '.join(map(repr, formal))}"
        )
    values = {}
    for key, value in params.items():
        tensor = value if isinstance(value, tvm.runtime.Tensor) else _tensor(value)
        variable = formal[key]
        found = relax.TensorType([int(extent) for extent in tensor.shape], str(tensor.dtype))
        wanted = variable.ty
        if not isinstance(wanted, relax.TensorType) or not _accepts(wanted, found):
            raise ImportModelError(
                f"{name}: parameter {key!r} needs {wanted}, but the value given is {found}; "
                "convert it"
            )
        values[variable] = tensor
    return values


def _accepts(wanted: Any, found: Any) -> bool:
    return (
        bool(wanted.dtype == found.dtype)
        and bool(wanted.ndim in (-1, found.ndim))
        and (
            not isinstance(wanted.shape, relax.ShapeExpr)
            or all(
                not isinstance(w, tvm.tirx.IntImm) or int(w) == int(f)
                for w, f in zip(wanted.shape.values, found.shape.values, strict=True)
            )
        )
    )


def _tensor(value: Any) -> Any:
    return tvm.runtime.tensor(np.ascontiguousarray(value).reshape(np.shape(value)))


def _bind_shapes(function: Any, name: str, shapes: Mapping[str, Sequence[int]]) -> Any:
    formal = {str(variable.name): variable for variable in function.params}
    unknown = sorted(set(shapes) - set(formal))
    if unknown:
        raise ImportModelError(
            f"{name}: shapes given for {', '.join(map(repr, unknown))}, but its inputs are "
            f"{', '.join(map(repr, formal))}; use those names"
        )
    extents: dict[str, int] = {}
    for key, shape in shapes.items():
        declared = formal[key].ty
        dims = (
            list(declared.shape.values)
            if isinstance(declared, relax.TensorType)
            and isinstance(declared.shape, relax.ShapeExpr)
            else []
        )
        fits = len(dims) == len(shape) and all(int(extent) > 0 for extent in shape)
        for dim, extent in zip(dims, shape, strict=False):
            if isinstance(dim, tvm.tirx.IntImm):
                fits = fits and int(dim) == int(extent)
            elif isinstance(dim, tvm.tirx.Var):
                fits = fits and extents.setdefault(str(dim.name), int(extent)) == int(extent)
        if not fits:
            raise ImportModelError(
                f"{name}: shape {tuple(shape)} given for input {key!r}, which is declared as "
                f"{declared}; only its named dimensions can be set, each to one positive number"
            )
    return function.bind_symbolic_vars(extents) if extents else function


def _normalize(module: Any, function: Any, sources: Sources) -> tuple[Any, Sources]:
    """Constants folded, parts of training gone, dead code removed, names unique."""
    function = function.with_attr("global_symbol", "main")
    steps = [
        relax.transform.Normalize(),
        relax.transform.ConvertToDataflow(1),
        relax.transform.DecomposeOpsForInference("main"),
        relax.transform.CanonicalizeBindings(),
        relax.transform.DeadCodeElimination(["main"]),
    ]
    start = fold_batch_norm(simplify(function))
    rest = tvm.transform.Sequential(steps)(with_main(module, start))
    if any(_is_constant_call(binding.value) for binding in bindings_of(rest["main"])):
        # This pass legalizes and compiles to fold; most networks have nothing left for it.
        steps = [relax.transform.FoldConstant(), *steps[-2:]]
        rest = tvm.transform.Sequential(steps)(rest)
    final, found = carry_sources(function, rest["main"], sources)
    return relax.transform.ConvertToDataflow(1)(with_main(rest, final)), found


def _is_constant_call(value: Any) -> bool:
    return isinstance(value, relax.Call) and not variables_of(value)
