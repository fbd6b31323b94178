"""Unique names for every binding, and which source nodes each binding came from.

Binding names are what the op graph's names are made of, and what leads from TVM's fusion back to
the source model's nodes. The importers' names are not unique, and passes drop bindings and make
new ones called ``lv`` or ``gv``, so names are made unique first and followed through the passes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from tvm import relax

from partitioner.frontend.straight import (
    bindings_of,
    handle,
    rebuild,
    variables_of,
)

__all__ = ["Sources", "carry_sources", "claim_dropped", "rename", "unique"]

Sources = dict[str, tuple[str, ...]]
"""Binding name -> names of the source model's nodes it computes (part of)."""

# Names that TVM's passes give to bindings they make: never ours, so that ours stay recognizable.
_MADE_BY_PASSES = re.compile(r"(lv|gv)\d*")


def unique(wanted: Iterable[str], *, reserved: Iterable[str] = ()) -> list[str]:
    """`wanted` with a numbered suffix where a name is empty, repeats, or is one TVM's passes use.

    Examples
    --------
    >>> unique(["a", "a", "lv1"])
    ['a', 'a_1', 'lv1_1']
    """
    taken = set(reserved)
    counts: dict[str, int] = {}
    result = []
    for want in wanted:
        base = want or "value"
        name = base
        while name in taken or _MADE_BY_PASSES.fullmatch(name):
            counts[base] = counts.get(base, 0) + 1
            name = f"{base}_{counts[base]}"
        taken.add(name)
        result.append(name)
    return result


def rename(function: Any, wanted: Mapping[int, str] | None = None) -> tuple[Any, list[str]]:
    """Give every parameter and binding a unique name, as one block of plain variables.

    Parameters
    ----------
    function : relax.Function
        Not modified.
    wanted : Mapping of int to str, optional
        Names to give, by handle of the variable, in place of those they have.

    Returns
    -------
    function : relax.Function
        The same computation; parameters keep their names where those are unique.
    names : list of str
        The binding names, in order.
    """
    wanted = wanted or {}
    bindings = bindings_of(function)
    before = [*function.params, *(binding.var for binding in bindings)]
    asked = [wanted.get(handle(variable), str(variable.name)) for variable in before]
    count = len(function.params)
    params = _distinct(asked[:count])
    names = unique(asked[count:], reserved=params)
    fresh = {
        handle(variable): relax.Var(name, variable.ty)
        for variable, name in zip(before, [*params, *names], strict=True)
    }
    return rebuild(function, bindings, fresh), names


def _distinct(names: list[str]) -> list[str]:
    # A caller passes inputs by these names, so even one like ``lv`` stays what it is.
    seen: dict[str, int] = {}
    result = []
    for name in names:
        seen[name] = seen.get(name, -1) + 1
        result.append(f"{name}_{seen[name]}" if seen[name] else name)
    return result


def carry_sources(before: Any, after: Any, sources: Mapping[str, tuple[str, ...]]) -> Any:
    """Follow source names through passes that dropped, replaced or added bindings.

    A binding keeps its own sources and takes those of the dropped bindings it was computed from;
    an added one, which passes put in front of what it stands for, takes those of the next binding
    with a known name.

    Parameters
    ----------
    before, after : relax.Function
        The function with unique names, and what the passes made of it.
    sources : Mapping
        For the bindings of `before`.

    Returns
    -------
    function : relax.Function
        `after` with unique names.
    sources : dict
        For its bindings.
    """
    operands = {
        str(binding.var.name): [str(v.name) for v in variables_of(binding.value)]
        for binding in bindings_of(before)
    }
    after_names = [str(binding.var.name) for binding in bindings_of(after)]
    claims = claim_dropped(operands, [name for name in after_names if name in operands], sources)
    found: list[tuple[str, ...]] = []
    wanted: dict[int, str] = {}
    next_known = ""
    for binding, name in zip(reversed(bindings_of(after)), reversed(after_names), strict=True):
        if name in operands:
            next_known = name
        elif next_known:
            wanted[handle(binding.var)] = f"{next_known}_part"
        found.append(claims.get(next_known, ()))
    function, names = rename(after, wanted)
    return function, dict(zip(names, reversed(found), strict=True))


def claim_dropped(
    operands: Mapping[str, Iterable[str]],
    alive: Iterable[str],
    sources: Mapping[str, tuple[str, ...]],
) -> Sources:
    """Sources of the values that are left, with those of the dropped values they were made from.

    Parameters
    ----------
    operands : Mapping
        Value -> the values it was computed from, in topological order of the keys.
    alive : iterable of str
        Values that are left, in order.
    sources : Mapping
        Value -> its sources.

    Returns
    -------
    dict
        For each of `alive`. A dropped value counts for the first of them that needed it.
    """
    left = list(dict.fromkeys(alive))
    position = {name: index for index, name in enumerate(operands)}
    taken = set(left)
    result: Sources = {}
    for name in left:
        cone, stack = [name], [name]
        while stack:
            for operand in operands.get(stack.pop(), ()):
                if operand in position and operand not in taken:
                    taken.add(operand)
                    cone.append(operand)
                    stack.append(operand)
        cone.sort(key=lambda value: position.get(value, len(position)))
        result[name] = tuple(dict.fromkeys(s for value in cone for s in sources.get(value, ())))
    return result
