"""Installs without a compiler or nvcc, and the libraries that the built module links."""

import json
import shutil
import subprocess
import tarfile
import zipfile

import native_builds
import pytest

from tests.subprocesses import build_environment, run_build

# Of the wheel alone: nothing of the tree that it was built from is on the path.
FIRST_USE = """
import json, sys, warnings
sys.path.insert(0, sys.argv[1])
# An editable install of the tree would lend its native module.
sys.meta_path = [finder for finder in sys.meta_path if "Editable" not in getattr(finder, "__name__", "")]
import torch
import robustdml_ops
from robustdml_ops.backends.dispatch import choose
from robustdml_ops.ops.anchor.sweep import BACKENDS
assert robustdml_ops.__file__.startswith(sys.argv[1]), robustdml_ops.__file__
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    for _ in range(2):
        chosen = choose(BACKENDS, None, torch.device("cpu"), torch.float32)
assert chosen is BACKENDS["eager"], chosen
print(json.dumps([str(warning.message) for warning in told if "robustdml_ops" in str(warning.message)]))
"""


FOLDERS = ("app", "bench", "csrc", "experiments", "python_ref", "robustdml_ops")


@pytest.fixture
def tree(tmp_path):
    """The sources without anything that was built from them."""
    target = tmp_path / "tree"
    ignored = shutil.ignore_patterns("*.so", "__pycache__", "*.egg-info")
    for name in FOLDERS:
        shutil.copytree(native_builds.ROOT / name, target / name, symlinks=True, ignore=ignored)
    for pattern in ("CMakeLists.txt", "LICENSE", "*.md", "pyproject.toml", "setup.py"):
        for path in native_builds.ROOT.glob(pattern):
            shutil.copy(path, target)
    return target


@pytest.fixture
def needs_build_tools():
    pytest.importorskip("pybind11", reason="a build without isolation needs pybind11")
    for name in ("cmake", "ninja"):
        if native_builds.tool(name) is None:
            pytest.skip(f"no {name}")


def no_tools(tmp_path):
    """A PATH on which nothing is found."""
    empty = tmp_path / "empty"
    empty.mkdir()
    return {"PATH": str(empty)}


@pytest.mark.usefixtures("needs_build_tools")
def test_wheel_without_a_compiler_runs_on_eager(tree, tmp_path):
    wheels, site = tmp_path / "wheels", tmp_path / "site"
    options = ("-q", "--no-build-isolation", "--no-deps", "-w", wheels)
    result = run_build("-m", "pip", "wheel", *options, tree, cwd=tmp_path, **no_tools(tmp_path))
    assert result.returncode == 0, result.stdout + result.stderr
    (wheel,) = wheels.glob("*.whl")
    with zipfile.ZipFile(wheel) as content:
        names = set(content.namelist())
        assert not [name for name in names if name.endswith(".so")]
        assert {name.partition("/")[0].partition("-")[0] for name in names} == {"robustdml_ops"}
        needed = ("py.typed", "backends/cards.json", "bench/conftest.py", "python_ref/anchor.py")
        assert {f"robustdml_ops/{part}" for part in needed} <= names
        content.extractall(site)
    used = run_build("-c", FIRST_USE, site, cwd=tmp_path)
    assert used.returncode == 0, used.stderr
    told = json.loads(used.stdout)
    assert len(told) == 1
    assert "native" in told[0]
    assert "compiler" in told[0]


@pytest.mark.usefixtures("needs_build_tools")
def test_in_place_build_without_a_compiler(tree):
    """What an editable install runs."""
    result = run_build("setup.py", "build_ext", "--inplace", cwd=tree, CXX="/bin/false", CUDACXX="/bin/false")
    assert result.returncode == 0, result.stderr
    assert "the package will run on backend 'eager'" in result.stderr
    assert "no CUDA part, the build with /bin/false failed: cmake" in result.stderr


@pytest.mark.parametrize(
    ("setting", "message"), [("ON", "ROBUSTDML_CUDA=ON, but no nvcc"), ("perhaps", "ROBUSTDML_CUDA='PERHAPS'")]
)
def test_a_setting_that_cannot_be_met_is_a_clear_error(tree, tmp_path, setting, message):
    changes = no_tools(tmp_path) | {"CUDA_HOME": "/nonexistent", "ROBUSTDML_CUDA": setting}
    result = run_build("setup.py", "build_ext", cwd=tree, **changes)
    assert result.returncode != 0
    assert message in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    "changes",
    [
        {"TORCH_CUDA_ARCH_LIST": "9.0"},
        pytest.param({"ROBUSTDML_CUDA": "ON"}, marks=pytest.mark.nightly),
        pytest.param({"ROBUSTDML_REQUIRE_NATIVE": "1"}, marks=pytest.mark.nightly),
    ],
)
@pytest.mark.usefixtures("needs_build_tools")
def test_a_required_build_that_fails_is_fatal(tree, changes):
    compilers = {"CUDACXX": "/bin/false"} | ({"CXX": "/bin/false"} if "ROBUSTDML_REQUIRE_NATIVE" in changes else {})
    result = run_build("setup.py", "build_ext", cwd=tree, **compilers, **changes)
    assert result.returncode != 0
    assert "RuntimeError: cmake" in result.stderr


@pytest.mark.parametrize(
    ("version", "requested", "architectures"),
    [
        ("13.0", "", "80-real;90-real;100-real;120-real;120-virtual"),
        ("12.8", "", "80-real;90-real;100-real;120-real;120-virtual"),
        ("12.6", "", "80-real;90-real;90-virtual"),
        ("12.6", "8.6 9.0a+PTX", "86-real;90a-real;90a-virtual"),
        ("13.0", "8.0;12.0+PTX", "80-real;120-real;120-virtual"),
        ("13.0", "9,0", 'TORCH_CUDA_ARCH_LIST names 9: expected numbers, as in "9.0 10.0+PTX"'),
    ],
)
@pytest.mark.usefixtures("needs_build_tools")
def test_architectures_that_the_compiler_knows(version, requested, architectures, tmp_path):
    script = tmp_path / "print.cmake"
    script.write_text(f'include({native_builds.ROOT}/csrc/architectures.cmake)\nmessage("${{architectures}}")\n')
    command = [native_builds.tool("cmake"), f"-DCMAKE_CUDA_COMPILER_VERSION={version}", "-P", script]
    environment = build_environment(TORCH_CUDA_ARCH_LIST=requested)
    said = subprocess.run(command, env=environment, capture_output=True, text=True).stderr
    assert architectures in said


def test_source_distribution_has_what_a_build_needs(tree, tmp_path):
    """Every source of the native module, and every file of the package: a wheel can be built of it alone."""
    shutil.copy(native_builds.ROOT / "MANIFEST.in", tree)
    shutil.copy(native_builds.ROOT / "constraints.txt", tree)
    built = run_build("setup.py", "-q", "sdist", "-d", tmp_path, cwd=tree)
    assert built.returncode == 0, built.stderr
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as files:
        found = {name.split("/", 1)[1] for name in files.getnames() if "/" in name}
    needed = {"CMakeLists.txt", "setup.py", "pyproject.toml", "LICENSE"}
    for folder in ("csrc", "robustdml_ops"):
        needed |= {str(path.relative_to(tree)) for path in (tree / folder).rglob("*") if path.is_file()}
    assert len(needed) > 200
    assert not needed - found
    assert {name.partition("/")[0] for name in found}.isdisjoint({"app", "experiments", "tests", "docs"})
