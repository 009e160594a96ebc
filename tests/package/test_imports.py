"""Arrows point down: who may import whom, that nobody does in a circle, and what an import costs."""

import ast
import graphlib
import importlib.util
import re
from pathlib import Path

import pytest

import robustdml_ops
from tests.subprocesses import ROOT, printed

ROOMS = {"rows", "anchor", "classes", "pairs", "similarity", "vmf", "otsu", "lambert_w", "self_paced"}
PACKAGES = ("robustdml_ops", "python_ref", "bench")


def module_name(file: Path) -> str:
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {module_name(file): file for package in PACKAGES for file in sorted((ROOT / package).rglob("*.py"))}


def imports_of(module: str) -> set[str]:
    """Files that ``module`` names in its imports, those within its functions among them."""
    package = module if FILES[module].name == "__init__.py" else module.rpartition(".")[0]
    found = set()
    for node in ast.walk(ast.parse(FILES[module].read_text())):
        if isinstance(node, ast.Import):
            found |= {canonical(alias.name) for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = canonical(importlib.util.resolve_name("." * node.level + (node.module or ""), package))
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                if inner != "robustdml_ops._native":  # compiled: it imports nothing
                    found.add(inner if inner in FILES else base)
    return found & set(FILES)


def canonical(module: str) -> str:
    """References and benchmarks are part of the package by a link, and are counted once."""
    return re.sub(r"^robustdml_ops\.(?=(python_ref|bench)\b)", "", module)


IMPORTS = {module: imports_of(module) for module in FILES}


def folder(module: str) -> str:
    """``anchor`` of ``robustdml_ops.anchor.sweep``; a file beside the folders counts as one."""
    package, *rest = module.split(".")
    return rest[0] if rest and package == "robustdml_ops" else package


def test_the_walk_sees_what_is_there():
    """Imports of a package, of one of its modules, within functions, and of the package's own lazily imported parts."""
    assert {folder(module) for module in FILES} >= ROOMS
    assert "robustdml_ops.native_module" in IMPORTS["robustdml_ops.rows.native"]
    assert "robustdml_ops.anchor.kernels" in IMPORTS["robustdml_ops.anchor.triton"]
    assert "robustdml_ops.anchor" in IMPORTS["robustdml_ops.ops"]
    assert "robustdml_ops.losses" in IMPORTS["robustdml_ops"]
    assert "python_ref.anchor" in IMPORTS["python_ref"]


def circle(graph: dict[str, set[str]]) -> list[str] | None:
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return error.args[1]
    return None


def test_no_circle_of_files():
    assert circle(IMPORTS) is None


def test_no_circle_of_folders():
    """The package itself aside, which imports its parts when they are used, and has the version that they read."""
    folders: dict[str, set[str]] = {}
    for module, imported in IMPORTS.items():
        folders.setdefault(folder(module), set()).update(map(folder, imported))
    own = folder("robustdml_ops")
    assert circle({name: imported - {name, own} for name, imported in folders.items() if name != own}) is None


OUTSIDE = ("python_ref", "bench")


@pytest.mark.parametrize(
    ("folder_below", "above"),
    [
        *((room, {"ops", "losses", "optim", "robust", "audit", "recipes", *OUTSIDE}) for room in sorted(ROOMS)),
        ("distributed", {"ops", "losses", "optim", "robust", "audit", "recipes", *ROOMS, *OUTSIDE}),
        ("losses", {"distributed", "optim", "audit", "recipes", *OUTSIDE}),
        ("robust", {"distributed", "optim", "audit", "recipes", *OUTSIDE}),
        ("audit", {"distributed", "recipes", *OUTSIDE}),
        ("python_ref", {folder(module) for module in FILES} - {"python_ref"}),
    ],
)
def test_arrows_point_down(folder_below, above):
    upwards = {
        module: {name for name in imported if folder(name) in above}
        for module, imported in IMPORTS.items()
        if folder(module) == folder_below
    }
    assert upwards
    assert not {module: names for module, names in upwards.items() if names}


def test_what_all_rooms_share_knows_no_room_but_the_rows():
    shared = {name for name in FILES if FILES[name].parent.name == "robustdml_ops" and "__" not in FILES[name].name}
    shared -= {"robustdml_ops.ops"}
    assert {"robustdml_ops.sweep", "robustdml_ops.backends", "robustdml_ops.native_module"} <= shared
    for module in shared:
        above = {folder(name) for name in IMPORTS[module]} & (ROOMS | {"ops", "losses", "optim", "robust", "recipes"})
        assert above <= {"rows"}, module


HEAVY = ("triton", "matplotlib", "sklearn", "pytorch_metric_learning", "PIL", "scipy", "mpmath", "rich", "pybind11")


def test_the_package_itself_imports_nothing():
    """Neither PyTorch nor any part of its own, until one is used."""
    code = (
        "import sys; before = set(sys.modules); import robustdml_ops; new = set(sys.modules) - before; "
        "print(sorted(name for name in new if name.split('.')[0] not in sys.stdlib_module_names))"
    )
    assert printed(code) == "['robustdml_ops']"


def test_its_parts_come_when_they_are_used():
    code = (
        "import robustdml_ops as r; print(r.losses.ProxyAnchorLoss.__name__, r.ops.anchor_lse.__name__, "
        "r.robust.__name__, r.__version__, dir(r))"
    )
    names = "['__version__', 'distributed', 'losses', 'ops', 'optim', 'recipes', 'robust']"
    assert printed(code) == f"ProxyAnchorLoss anchor_lse robustdml_ops.robust 0.1.0 {names}"


def test_an_unknown_part_is_named():
    with pytest.raises(AttributeError, match="no attribute 'engine': it has __version__, distributed, losses"):
        robustdml_ops.engine  # noqa: B018


@pytest.mark.parametrize(
    ("parts", "without"),
    [
        ("robustdml_ops.ops, robustdml_ops.robust", ""),
        # The losses are of the base class of pytorch-metric-learning where that is installed, and so bring it along.
        ("robustdml_ops.losses, robustdml_ops.ops", "sys.modules['pytorch_metric_learning'] = None; "),
    ],
)
def test_import_is_light(parts, without):
    """Beyond PyTorch and what comes with it, the parts bring themselves alone: no Triton, nothing of recipes."""
    code = (
        f"import sys, torch; {without}before = set(sys.modules); import {parts}; "
        "tops = lambda names: {name.split('.')[0] for name in names}; "
        "print(tops(sys.modules) - tops(before) - sys.stdlib_module_names, "
        f"[name for name in {HEAVY} if sys.modules.get(name)])"
    )
    assert printed(code) == "{'robustdml_ops'} []"
