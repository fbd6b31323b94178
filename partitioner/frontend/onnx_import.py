"""ONNX files and models: fixed shapes, simplification, and the importer that keeps node names."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnx
import onnxsim
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # no stubs
from tvm import relax
from tvm.relax.frontend.onnx import onnx_frontend

from partitioner.errors import ImportModelError
from partitioner.frontend.names import Sources, claim_dropped, rename, unique
from partitioner.frontend.onnx_weights import pack_weights
from partitioner.frontend.straight import handle, with_main

__all__ = ["import_onnx", "read_onnx"]

# What the frontend raises for a node it cannot convert; it has no error type of its own.
_CONVERSION_ERRORS = (
    RuntimeError,
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    NotImplementedError,
    TypeError,
    ValueError,
)
# Converted by the importer itself, so absent from its table.
_CONTROL = frozenset({"If", "Constant"})


def read_onnx(path: Path) -> onnx.ModelProto:
    """Read an ONNX file.

    Raises
    ------
    ImportModelError
        If it is absent, unreadable, truncated or no ONNX model.
    """
    try:
        model = onnx.load(str(path))
    except OSError as error:
        raise ImportModelError(
            f"{path}: cannot be read ({error.strerror or error}); give the path of an ONNX file "
            "that exists, with its external data files beside it"
        ) from error
    except (DecodeError, onnx.checker.ValidationError, UnicodeDecodeError) as error:
        raise ImportModelError(
            f"{path}: not an ONNX model, or cut short ({error}); download or export it again"
        ) from error
    _require_content(model, str(path))
    return model


def _require_content(model: onnx.ModelProto, name: str) -> None:
    if not model.graph.node and not model.graph.output:
        raise ImportModelError(
            f"{name}: the ONNX model has neither nodes nor outputs; the file is empty or cut "
            "short, download or export it again"
        )


def import_onnx(
    model: onnx.ModelProto, name: str, shapes: Mapping[str, Sequence[int]] | None
) -> tuple[Any, Sources, tuple[str, ...]]:
    """Import an ONNX model as high-level Relax.

    Parameters
    ----------
    model : onnx.ModelProto
        Not modified.
    name : str
        For messages.
    shapes : Mapping, optional
        Shape of each input that the model leaves open.

    Returns
    -------
    module : IRModule
        Weights are constants, every binding has a unique name (that of the ONNX value where it is
        one), inputs have the model's names.
    sources : dict
        Binding name -> names of the ONNX nodes it computes.
    notes : tuple of str
        What did not go as planned.

    Raises
    ------
    ImportModelError
        If the model is empty, an input's shape stays open, `shapes` does not fit, or an operator
        is not supported.
    """
    _require_content(model, name)
    fixed = onnx.ModelProto()
    fixed.CopyFrom(model)
    if fixed.functions:
        fixed = onnx.inliner.inline_local_functions(fixed)
    _name_nodes(fixed.graph)
    inputs = _fix_inputs(fixed, name, shapes or {})
    simple, notes = _simplify(fixed, inputs)
    _require_supported(simple, name)
    pack_weights(simple.graph)
    module, nodes = _convert(simple, name)
    origin = _origins(fixed.graph, simple.graph)
    sources = {
        binding: tuple(dict.fromkeys(s for node in made_by for s in origin.get(node, (node,))))
        for binding, made_by in nodes.items()
    }
    return module, sources, notes


def _name_nodes(graph: Any) -> None:
    nodes = list(graph.node)
    wanted = [node.name or f"{node.op_type}_{index}" for index, node in enumerate(nodes)]
    for node, node_name in zip(nodes, unique(wanted), strict=True):
        node.name = node_name


def _fix_inputs(
    model: onnx.ModelProto, name: str, shapes: Mapping[str, Sequence[int]]
) -> dict[str, list[int]]:
    """Write the given shapes into the model's inputs and return the shape of every input."""
    weights = {tensor.name for tensor in model.graph.initializer}
    inputs = [entry for entry in model.graph.input if entry.name not in weights]
    unknown = sorted(set(shapes) - {entry.name for entry in inputs})
    if unknown:
        raise ImportModelError(
            f"{name}: shapes given for {', '.join(map(repr, unknown))}, but its inputs are "
            f"{', '.join(repr(entry.name) for entry in inputs)}; use those names"
        )
    result: dict[str, list[int]] = {}
    for entry in inputs:
        if not entry.type.HasField("tensor_type"):
            raise ImportModelError(
                f"{name}: input {entry.name!r} is no tensor (ONNX type "
                f"{entry.type.WhichOneof('value')}); only models with tensor inputs can be cut"
            )
        result[entry.name] = _fix_input(entry, name, shapes.get(entry.name))
    return result


def _fix_input(entry: Any, name: str, given: Sequence[int] | None) -> list[int]:
    tensor = entry.type.tensor_type
    known = tensor.HasField("shape")
    declared = [
        dim.dim_value if dim.HasField("dim_value") and dim.dim_value > 0 else dim.dim_param or "?"
        for dim in tensor.shape.dim
    ]
    if given is None:
        is_open = [(axis, dim) for axis, dim in enumerate(declared) if isinstance(dim, str)]
        if known and not is_open:
            return [int(dim) for dim in declared]
        what = (
            ", ".join(f"dimension {axis} ({dim!r})" for axis, dim in is_open)
            if known
            else "its rank"
        )
        shape = ",".join(str(d) for d in declared) if known else "no shape"
        raise ImportModelError(
            f"{name}: input {entry.name!r} leaves {what} open ({shape}); fix it, for example "
            f"--input-shape {entry.name}=1,3,224,224 or input_shapes={{{entry.name!r}: "
            "(1, 3, 224, 224)}"
        )
    shape_given = [int(extent) for extent in given]
    fits = not known or (
        len(shape_given) == len(declared)
        and all(
            isinstance(dim, str) or dim == extent
            for dim, extent in zip(declared, shape_given, strict=True)
        )
    )
    if not fits or any(extent <= 0 for extent in shape_given):
        raise ImportModelError(
            f"{name}: shape {','.join(map(str, shape_given))} given for input {entry.name!r}, "
            f"which is declared as {','.join(map(str, declared))}; only the named dimensions can "
            "be set, to positive numbers"
        )
    tensor.shape.ClearField("dim")
    for extent in shape_given:
        tensor.shape.dim.add().dim_value = extent
    return shape_given


def _simplify(
    model: onnx.ModelProto, inputs: Mapping[str, list[int]]
) -> tuple[onnx.ModelProto, tuple[str, ...]]:
    """Fold what the fixed shapes determine: many real files do not import as they are."""
    try:
        simple, checked = onnxsim.simplify(model, overwrite_input_shapes=dict(inputs))
    except (RuntimeError, ValueError, onnx.checker.ValidationError) as error:
        reason = str(error).strip().splitlines()
        return model, (f"onnxsim failed ({reason[0] if reason else error!r}); imported as it is",)
    if not checked:
        return model, ("onnxsim's result did not pass its own check; imported as it is",)
    _name_nodes(simple.graph)
    return simple, ()


def _subgraphs(node: Any) -> Iterator[Any]:
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            yield attribute.g
        yield from attribute.graphs


def _nodes_in(graph: Any) -> Iterator[Any]:
    """Nodes of a graph and of the graphs inside them."""
    for node in graph.node:
        yield node
        for inner in _subgraphs(node):
            yield from _nodes_in(inner)


def _require_supported(model: onnx.ModelProto, name: str) -> None:
    opset = _opset(model)
    converters = onnx_frontend._get_convert_map()
    missing: dict[str, int] = {}
    for node in _nodes_in(model.graph):
        if node.op_type in _CONTROL:
            continue
        try:
            converters[node.op_type].get_converter(opset)
        except (KeyError, AttributeError, NotImplementedError):
            label = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
            missing[label] = missing.get(label, 0) + 1
    if missing:
        listed = ", ".join(f"{op} (x{count})" for op, count in sorted(missing.items()))
        raise ImportModelError(
            f"{name}: TVM's ONNX frontend does not support these operators at opset {opset}: "
            f"{listed}; export the model without them, or replace those nodes"
        )


def _opset(model: onnx.ModelProto) -> int:
    return next((int(o.version) for o in model.opset_import if o.domain in ("", "ai.onnx")), 1)


def _convert(model: onnx.ModelProto, name: str) -> tuple[Any, dict[str, tuple[str, ...]]]:
    importer = _NamingImporter()
    # The frontend prints to stdout before it raises, and warns about every odd name.
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            module = importer.from_onnx(model.graph, _opset(model))
        except _CONVERSION_ERRORS as error:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[-1]
            at = f" at node {importer.current_node!r}" if importer.current_node else ""
            raise ImportModelError(
                f"{name}: TVM's ONNX frontend failed{at}: {reason}; check that node, or export the "
                "model with another opset"
            ) from error
    main = module["main"].without_attr("num_input")
    bindings = [binding for block in main.body.blocks for binding in block.bindings]
    function, names = rename(main, importer.value_names)
    nodes = {
        fresh: importer.made_by.get(handle(binding.var), ())
        for fresh, binding in zip(names, bindings, strict=True)
    }
    return with_main(module, function), nodes


class _NamingImporter(onnx_frontend.ONNXGraphImporter):
    """TVM's importer, one node at a time, noting which bindings each node gave.

    The importer leaves a node's last call to be emitted by whoever reads it; it is emitted here at
    once, so that every binding made while a node is converted belongs to that node.
    """

    def __init__(self) -> None:
        # Names stay the model's own: callers pass inputs by them, and Relax takes any string.
        super().__init__(shape_dict={}, dtype_dict={}, sanitize=False)
        self.current_node = ""
        self.made_by: dict[int, tuple[str, ...]] = {}
        self.value_names: dict[int, str] = {}
        self._claimed: list[Any] = []  # keeps variables alive, so that handles stay theirs

    def _construct_nodes(self, graph: Any) -> None:
        for node in graph.node:
            self.current_node = str(node.name)
            super()._construct_nodes(SimpleNamespace(node=[node]))
            inner = [n.name for sub in _subgraphs(node) for n in _nodes_in(sub) if n.name]
            names = (self.current_node, *inner)
            for output in node.output:
                value = self._nodes.get(output)
                if isinstance(value, relax.Call | relax.TupleGetItem):
                    value = self._nodes[output] = self.bb.emit(value)
                self._claim(value, names)
                if isinstance(value, relax.Var) and handle(value) in self.made_by:
                    self.value_names.setdefault(handle(value), str(output))
        self.current_node = ""

    def _claim(self, value: Any, names: tuple[str, ...]) -> None:
        stack = [value]
        while stack:
            expr = stack.pop()
            if isinstance(expr, relax.Tuple):
                stack.extend(expr.fields)
            elif isinstance(expr, relax.TupleGetItem):
                stack.append(expr.tuple_value)
            elif isinstance(expr, relax.Call):
                stack.extend(expr.args)
            elif isinstance(expr, relax.Var) and handle(expr) not in self.made_by:
                bound = self.bb.lookup_binding(expr)
                if bound is not None:
                    self._claimed.append(expr)
                    self.made_by[handle(expr)] = names
                    stack.append(bound)


def _origins(before: Any, after: Any) -> dict[str, tuple[str, ...]]:
    """Node of the simplified graph -> nodes of the original that it stands for.

    Values keep their names through simplification, so a simplified node stands for the original
    producer of its value and for what led there and is gone.
    """
    own = {node.name for node in _nodes_in(before)}
    operands: dict[str, list[str]] = {}
    sources: dict[str, tuple[str, ...]] = {}
    for node in before.node:
        for output in node.output:
            operands[output] = [value for value in node.input if value]
            sources[output] = (node.name,)
    alive = [output for node in after.node for output in node.output]
    claims = claim_dropped(operands, alive, sources)
    result = {}
    for node in after.node:
        found = dict.fromkeys(s for output in node.output for s in claims.get(output, ()))
        if node.name in own:
            found.setdefault(node.name)
        result[node.name] = tuple(found) or (node.name,)
    return result
