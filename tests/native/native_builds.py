"""Builds of the native module for tests, cached in ``build/``: the second run has nothing to compile."""

import fcntl
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[2]


def tool(name: str) -> str | None:
    """A program of this environment, or of the machine."""
    return shutil.which(name, path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))


def missing_tools() -> str | None:
    """Why nothing can be built here, or None."""
    needed = {"cmake": tool("cmake"), "ninja": tool("ninja"), "c++": os.environ.get("CXX") or tool("c++")}
    absent = [name for name, path in needed.items() if path is None]
    if importlib.util.find_spec("pybind11") is None:
        absent.append("pybind11")
    return f"no {', '.join(absent)}" if absent else None


def build(name: str, *options: str) -> Path:
    """Configure and build the tree with ``options`` in ``build/<name>-<python>``; returns the module's path."""
    import pybind11

    directory = ROOT / "build" / f"{name}-{sys.implementation.cache_tag}"
    directory.mkdir(parents=True, exist_ok=True)
    configure = [
        tool("cmake"), "-S", ROOT, "-B", directory, "-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={tool('ninja')}",
        f"-DPython_EXECUTABLE={sys.executable}", f"-Dpybind11_DIR={pybind11.get_cmake_dir()}", *options,
    ]  # fmt: skip
    # Test processes that run side by side want the same build.
    with (directory / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for command in (configure, [tool("cmake"), "--build", directory]):
            result = subprocess.run(command, capture_output=True, text=True)
            assert result.returncode == 0, result.stdout + result.stderr
    return directory / f"_native{sysconfig.get_config_var('EXT_SUFFIX')}"


def load(path: Path) -> ModuleType:
    """The module at ``path``, under its own name so that it stands beside the installed one."""
    spec = importlib.util.spec_from_file_location(f"{path.parent.name}._native", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
