"""Who may import whom. When the design changes, change the tables here, never around them."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import partitioner

PACKAGE = Path(partitioner.__file__).parent

LONGEST_MODULE = 450
"""Lines. About 300 is the aim; a module beyond this holds more than one idea."""

ROOMS: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("errors", ("errors",), "everything may raise them"),
    ("files", ("files",), "whole or not at all, for every kind of file"),
    ("graph", ("graph",), "what is cut: plain values"),
    (
        "machine",
        ("core_list", "sysfs", "host", "clusters", "machine"),
        "where it is placed: plain values",
    ),
    ("items", ("arrays", "samples"), "inputs and outputs of a graph"),
    (
        "profile",
        ("profiling", "profiling.table", "profiling.counts"),
        "measured times of graphs on machines, as data",
    ),
    (
        "problem",
        ("problem", "problem_check"),
        "plain arrays: knows no graph, machine or profile",
    ),
    ("evaluation", ("evaluation", "list_schedule"), "the one scorer of problems"),
    ("cost", ("cost",), "graph, machine and profile become a problem"),
    ("solvers", ("solvers",), "problem in, solution out; see ONLY"),
    ("instance", ("instance",), "problems and solutions as files; see ONLY"),
    ("plan", ("plan", "plan_check", "plan_table"), "stages and places, by name, without solvers"),
    ("planning", ("planning", "exact_times"), "a solution written down as a plan"),
    ("report", ("report",), "prints values and changes none"),
    ("zoo", ("zoo",), "models as files; see ONLY"),
    ("frontend", ("frontend",), "a model becomes a module and its graph"),
    ("lowering", ("lowering",), "modules get kernels; plans are made before this"),
    ("tuning", ("tuning",), "what kernels are made of where the rules are beaten, as data"),
    ("rewrite", ("rewrite",), "a module is split by a plan"),
    ("runtime", ("runtime",), "stages are built and run"),
    ("simulation", ("simulation",), "what the runtime would do, without running anything"),
    (
        "measuring",
        (
            "profiling.measure",
            "profiling.links",
            "profiling.collect",
            "profiling.agent",
            "profiling.rivals",
            "profiling.steadiness",
            "profiling.throttle",
            "tuning.client",
            "tuning.kernels",
            "tuning.search",
            "tuning.session",
            "tuning.sketches",
            "tuning.tasks",
            "tuning.worker",
        ),
        "fills profiles and records by running kernels",
    ),
    (
        "refining",
        ("trials", "correction", "contest", "refine"),
        "plans run by the clock, and the problem corrected by what they took",
    ),
    ("partition", ("partition", "plan_kernels"), "a plan with its module, ready to run"),
    ("tuned", ("tuned",), "records that were asked for, read or made first"),
    ("api", ("api",), "the whole row on one screen"),
    ("cli", ("cli",), "a thin skin over the api"),
    ("names", ("",), "partitioner itself: public names of all rooms, loaded when first used"),
)
"""Rooms from the first to the last with their modules. One imports from itself and from before."""

ONLY: dict[str, tuple[tuple[str, ...], str]] = {
    "problem": (("errors",), "a solver's input must not depend on how it was made"),
    "evaluation": (("errors", "problem"), "scores arrays, whoever made them"),
    "solvers": (
        ("errors", "problem", "evaluation"),
        "solvers are judged on published problems too, which have no graph or machine",
    ),
    "instance": (
        ("errors", "files", "problem", "evaluation"),
        "a file format knows neither solvers nor what a problem was made from",
    ),
    "zoo": (("errors", "files"), "models come from outside; they know nothing of partitioning"),
    "lowering": (
        ("errors", "files", "machine"),
        "the same for profiling and building, so it sees neither times nor plans",
    ),
    "tuning": (
        ("errors", "files", "machine", "frontend", "lowering"),
        "records are asked for while stages are built",
    ),
}
"""Rooms that may import fewer than all rooms before them."""

OUTSIDE: dict[str, tuple[tuple[str, ...], str]] = {
    "tvm": (
        ("frontend", "lowering", "rewrite", "tuning", "runtime.executable", "runtime.build"),
        "planning works without it, and workers load it only to run a stage",
    ),
    "tvm_ffi": (
        ("frontend", "lowering", "rewrite", "tuning", "runtime.executable", "runtime.build"),
        "as tvm",
    ),
    "ortools": (("solvers",), "solvers stay exchangeable"),
    "scipy.optimize": (("solvers",), "solvers stay exchangeable"),
    "onnx": (("frontend", "zoo"), "a file format ends where the module begins"),
    "onnxsim": (("frontend",), "a file format ends where the module begins"),
    "torch": (("frontend", "zoo"), "optional"),
    "rich": (("cli",), "values print themselves as plain text"),
}
"""Packages that only some modules may import."""

LAZY: dict[str, str] = {"torch": "optional: a module that needs it must import without it"}
"""Packages that may be imported inside functions only."""

WITHOUT_HEAVY: dict[str, str] = {
    "partitioner": "the public names load lazily",
    "partitioner.runtime.pipeline": "workers of plain stages need no compiler",
    "partitioner.machine": "devices are listed at once",
    "partitioner.plan": "plans are shown at once",
    "partitioner.simulation": "plans are simulated at once",
    "partitioner.profiling.rivals": "loads are started while others are measured",
}
"""Modules that load none of tvm, onnx, ortools and torch when they are imported."""


@dataclass(frozen=True)
class Import:
    """`module` imports `target`, at the top of the file or inside a function."""

    module: str
    target: str
    line: int
    lazy: bool


def imports_of(module: str, source: str, *, is_package: bool = False) -> Iterator[Import]:
    """Every import in a source text, with the full names of what it may load."""

    def visit(node: ast.AST, lazy: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                for alias in child.names:
                    yield Import(module, alias.name, child.lineno, lazy)
            elif isinstance(child, ast.ImportFrom):
                base = child.module or ""
                if child.level:
                    parts = module.split(".")
                    kept = parts[: len(parts) - child.level + is_package]
                    base = ".".join([*kept, base] if base else kept)
                for alias in child.names:
                    yield Import(module, f"{base}.{alias.name}", child.lineno, lazy)
            else:
                inner = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
                yield from visit(child, lazy or inner)

    yield from visit(ast.parse(source), False)


def within(name: str, prefix: str) -> bool:
    return name == prefix or name.startswith(f"{prefix}.")


def room_of(module: str) -> int | None:
    """Index of the room of ``"partitioner..."``, by its longest matching entry."""
    inside = module.removeprefix("partitioner").removeprefix(".")
    found = [
        (len(entry), index)
        for index, (_, entries, _) in enumerate(ROOMS)
        for entry in entries
        if (within(inside, entry) if entry else inside == "")
    ]
    return max(found)[1] if found else None


def broken_rules(found: Import) -> Iterator[str]:
    """What an import breaks, in words."""
    here = f"{found.module}:{found.line} imports {found.target}"
    home = room_of(found.module)
    if home is None:
        yield f"{found.module} is in no room; give it one in ROOMS"
        return
    name = ROOMS[home][0]
    if within(found.target, "partitioner"):
        # The last part may be a name in a module: the module is then what is imported.
        there = room_of(found.target)
        if there is None:
            there = room_of(found.target.rpartition(".")[0])
        if there is None:
            yield f"{here}, which is in no room; give it one in ROOMS"
        elif there > home:
            yield f"{here}: {ROOMS[there][0]} comes after {name} ({ROOMS[home][2]})"
        elif there != home and name in ONLY and ROOMS[there][0] not in ONLY[name][0]:
            yield f"{here}: {name} sees {', '.join(ONLY[name][0])} only ({ONLY[name][1]})"
        return
    for package, (places, reason) in OUTSIDE.items():
        if within(found.target, package) and not any(
            within(found.module, f"partitioner.{place}") for place in places
        ):
            yield f"{here}: {package} belongs in {', '.join(places)} ({reason})"
    for package, reason in LAZY.items():
        if within(found.target, package) and not found.lazy:
            yield f"{here} at its top; import it inside the function that uses it ({reason})"


def sources() -> Iterator[tuple[str, Path]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


MODULES = dict(sources())


@pytest.mark.parametrize("module", MODULES)
def test_imports(module: str) -> None:
    path = MODULES[module]
    found = imports_of(
        module, path.read_text(encoding="utf-8"), is_package=path.name == "__init__.py"
    )
    assert [rule for each in found for rule in broken_rules(each)] == []


def test_every_module_has_a_room() -> None:
    assert [module for module in MODULES if room_of(module) is None] == []


def test_every_room_and_rule_is_used() -> None:
    """A rule about modules that are gone would hold nothing."""
    packages = {
        f"partitioner.{entry}" if entry else "partitioner" for _, e, _ in ROOMS for entry in e
    }
    assert packages <= set(MODULES)
    names = [name for name, _, _ in ROOMS]
    assert set(ONLY) <= set(names)
    assert set(WITHOUT_HEAVY) <= set(MODULES)
    for name, (allowed, _) in ONLY.items():
        assert {names.index(other) < names.index(name) for other in allowed} == {True}


@pytest.mark.parametrize("module", MODULES)
def test_modules_are_short(module: str) -> None:
    lines = len(MODULES[module].read_text(encoding="utf-8").splitlines())
    assert lines <= LONGEST_MODULE, f"{module} has {lines} lines; move one of its ideas out"


@pytest.mark.parametrize("module", WITHOUT_HEAVY)
def test_light_modules_load_nothing_heavy(module: str) -> None:
    code = (
        f"import sys, {module}; "
        "print(sorted({name.partition('.')[0] for name in sys.modules} "
        "& {'tvm', 'tvm_ffi', 'onnx', 'ortools', 'torch'}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout.strip(), done.stderr) == ("[]", ""), WITHOUT_HEAVY[module]


def test_public_names_are_where_they_are_said_to_be() -> None:
    assert set(partitioner.__all__) == set(partitioner._HOME) == set(dir(partitioner))
    for name, module in partitioner._HOME.items():
        tree = ast.parse(MODULES[module].read_text(encoding="utf-8"))
        (listed,) = (
            ast.literal_eval(node.value)
            for node in tree.body
            if isinstance(node, ast.Assign)
            and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets)
        )
        assert name in listed, f"{module} does not list {name}"


def test_public_names_of_solvers() -> None:
    from partitioner import solvers

    assert len(set(solvers.__all__)) == len(solvers.__all__)
    assert set(solvers._HOME) < set(solvers.__all__)
    for name, module in solvers._HOME.items():
        assert getattr(solvers, name).__module__ == module
    with pytest.raises(AttributeError, match="no attribute 'unheard_of'"):
        solvers.unheard_of  # noqa: B018


def test_a_name_that_is_not_public() -> None:
    with pytest.raises(AttributeError, match="no attribute 'unheard_of'"):
        partitioner.unheard_of  # noqa: B018


# The checker itself, on small sources


def checked(module: str, source: str) -> list[str]:
    found = imports_of(module, source)
    return [rule for each in found for rule in broken_rules(each)]


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("partitioner.solvers.new", "from partitioner.problem import Problem\nimport ortools"),
        ("partitioner.solvers.new", "from partitioner.solvers.limits import Limits"),
        ("partitioner.planning", "from partitioner.solvers import solve"),
        ("partitioner.plan", "def f():\n    from partitioner.plan_table import plan_table"),
        ("partitioner.profiling.agent", "from partitioner.runtime.executable import Executable"),
        ("partitioner.runtime.build", "import tvm\nfrom partitioner import lowering"),
        ("partitioner.frontend.new", "def f():\n    import torch.export"),
        ("partitioner.zoo.new", "import onnx\nfrom . import entry"),
        ("partitioner.graph", "import networkx\nimport tvmlike"),
    ],
)
def test_allowed(module: str, source: str) -> None:
    assert checked(module, source) == []


@pytest.mark.parametrize(
    ("module", "source", "message"),
    [
        (
            "partitioner.solvers.new",
            "import numpy\nfrom partitioner.graph import OpGraph",
            "partitioner.solvers.new:2 imports partitioner.graph.OpGraph: solvers sees errors,",
        ),
        ("partitioner.solvers.new", "import partitioner.plan", "plan comes after solvers"),
        ("partitioner.graph", "def f():\n    import partitioner.api", "api comes after graph"),
        ("partitioner.profiling.table", "from . import measure", "measuring comes after profile"),
        ("partitioner.runtime.new", "from ..api import load", "api comes after runtime"),
        ("partitioner.plan", "from partitioner import Machine", "names comes after plan"),
        ("partitioner.new", "import os", "partitioner.new is in no room"),
        ("partitioner.runtime.new", "from tvm import relax", "tvm belongs in frontend, lowering"),
        ("partitioner.profiling.agent", "import tvm.runtime", "tvm belongs in"),
        ("partitioner.cost", "from scipy import optimize", "scipy.optimize belongs in solvers"),
        ("partitioner.evaluation", "import ortools.sat", "ortools belongs in solvers"),
        ("partitioner.lowering.new", "import onnx", "onnx belongs in frontend, zoo"),
        ("partitioner.frontend.new", "if True:\n    import torch", "torch at its top; import it"),
        ("partitioner.lowering.new", "def f():\n    import torch", "torch belongs in frontend"),
    ],
)
def test_refused(module: str, source: str, message: str) -> None:
    broken = checked(module, source)
    assert len(broken) == 1
    assert message in broken[0]
