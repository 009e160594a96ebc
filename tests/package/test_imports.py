"""Arrows point down: who may import whom, that nobody does in a circle, and what an import costs."""

import ast
import functools
import graphlib
import importlib.util
import re
from pathlib import Path

import pytest

import robustdml_ops
from tests.subprocesses import ROOT, printed

# Each package with the folder that its imports start from; "robustdml_ops.python_ref" and ".bench" are links.
PACKAGES = {
    "robustdml_ops": ROOT,
    "python_ref": ROOT,
    "bench": ROOT,
    "robustdml": ROOT / "app",
    "experiments": ROOT,
}


def module_name(file: Path, start: Path) -> str:
    parts = file.relative_to(start).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {
    module_name(file, start): file
    for package, start in PACKAGES.items()
    for file in sorted((start / package).rglob("*.py"))
    if not (package == "experiments" and "tests" in file.parts)
}


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


@functools.cache
def imports():
    return {module: imports_of(module) for module in FILES}


def crossing(of, to):
    """The modules ``of`` which some imports are ``to`` names, and those imports."""
    found = {module: set(filter(to, imported)) for module, imported in imports().items() if of(module)}
    return {module: imported for module, imported in found.items() if imported}


# A folder may import those before it, and files of its own.
LAYERS = ("backends", "engine", "ops", "losses", "robust", "optim", "distributed", "doctor")


def layer(module: str) -> str:
    """``ops`` of ``robustdml_ops.ops.anchor.sweep``, and nothing of another package."""
    return module.split(".")[1] if module.startswith("robustdml_ops.") else ""


def test_no_circle_of_files():
    assert "robustdml.train" in imports()["experiments.comparison.cells"]  # names within functions are seen
    try:
        graphlib.TopologicalSorter(imports()).prepare()
    except graphlib.CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


@pytest.mark.parametrize("name", LAYERS)
def test_arrows_point_down(name):
    above = set(LAYERS[LAYERS.index(name) + 1 :])
    assert not crossing(lambda module: layer(module) == name, lambda other: layer(other) in above)


@pytest.mark.parametrize(
    ("package", "may_import"),
    [
        ("python_ref", set()),
        ("robustdml_ops", set()),
        ("bench", {"robustdml_ops", "python_ref"}),
        ("robustdml", {"robustdml_ops"}),
        ("experiments", {"robustdml_ops", "robustdml", "python_ref", "bench"}),
    ],
)
def test_packages(package, may_import):
    allowed = {package, *may_import}
    assert not crossing(lambda of: of.split(".")[0] == package, lambda to: to.split(".")[0] not in allowed)


PUBLIC = {f"robustdml_ops.{name}" for name in ("losses", "robust", "ops", "optim", "distributed", "doctor")}


def test_what_leaves_the_library_is_public():
    """The application and the experiments import public packages of the library alone."""
    others = ("robustdml", "experiments")
    assert not crossing(lambda of: of.split(".")[0] in others, lambda to: layer(to) and to not in PUBLIC)


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
    names = sorted(robustdml_ops.__all__)
    assert printed(code) == f"ProxyAnchorLoss anchor_lse robustdml_ops.robust 0.1.0 {names}"


def test_an_unknown_part_is_named():
    with pytest.raises(
        AttributeError, match="no attribute 'recipes': it has __version__, backward_in_micro_batches, distributed"
    ):
        robustdml_ops.recipes  # noqa: B018


def test_import_is_light():
    """Beyond PyTorch and its dependencies the library imports only itself: no Triton, nothing of the application."""
    code = (
        "import sys, torch; before = set(sys.modules); import robustdml_ops.ops, robustdml_ops.robust\n"
        "tops = lambda names: {name.split('.')[0] for name in names}\n"
        f"heavy = lambda: [name for name in {HEAVY} if sys.modules.get(name)]\n"
        "print(heavy())\n"
        # The losses are of the base class of pytorch-metric-learning where that is installed, and so bring it along.
        "sys.modules['pytorch_metric_learning'] = None; import robustdml_ops.losses, robustdml_ops.optim\n"
        "print(heavy(), tops(sys.modules) - tops(before) - sys.stdlib_module_names - {'pytorch_metric_learning'})"
    )
    assert printed(code).split("\n") == ["[]", "[] {'robustdml_ops'}"]
