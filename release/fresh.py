"""An empty environment without a compiler, to install a wheel into, with PyTorch lent to it."""

import os
import subprocess
import sys
import venv
from collections.abc import Sequence
from importlib.metadata import Distribution, distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

# Requirements of the library. PyTorch does not require NumPy.
_LENT = ("torch", "numpy")


class Fresh:
    """A virtual environment in ``folder`` with PyTorch, NumPy, ``more`` packages and the dependencies of all.

    They are links into the ``site-packages`` of ``site``, since copying takes longer than everything else.
    """

    def __init__(self, folder: Path, site: Path, more: Sequence[str] = ()) -> None:
        venv.create(folder, with_pip=True)
        self.bin = folder / "bin"
        self.site = next((folder / "lib").glob("python*")) / "site-packages"
        for name in needed(site, more):
            if not (self.site / name).exists():
                (self.site / name).symlink_to(site / name)

    def run(self, *command: str | Path, timeout: float = 300) -> subprocess.CompletedProcess[str]:
        """Run a program of the environment; nothing else is on the path."""
        program, *arguments = command
        return subprocess.run(
            [self.bin / program, *arguments],
            env={"PATH": str(self.bin), "HOME": str(self.bin.parent), "LC_ALL": "C.UTF-8"} | _threads(),
            cwd=self.bin.parent,
            capture_output=True,
            text=True,
            timeout=timeout,
        )


def _threads() -> dict[str, str]:
    return {key: os.environ[key] for key in ("OMP_NUM_THREADS", "OMP_WAIT_POLICY") if key in os.environ}


def needed(site: Path, more: Sequence[str] = ()) -> set[str]:
    """Names of the files and folders in ``site`` of PyTorch, NumPy, ``more`` packages and their dependencies."""
    installed = {canonicalize_name(one.metadata["Name"]): one for one in distributions(path=[str(site)])}
    wanted, seen = [*_LENT, *more], set[str]()
    names: set[str] = set()
    while wanted:
        name = canonicalize_name(wanted.pop())
        if name in seen:
            continue
        seen.add(name)
        if name not in installed:
            continue  # of another platform, or of PyTorch's build with CUDA where it was installed without
        names |= _top_level(installed[name])
        requirements = map(Requirement, installed[name].requires or ())
        wanted += [one.name for one in requirements if one.marker is None or one.marker.evaluate({"extra": ""})]
    if not {"torch", "numpy"} <= names:
        sys.exit(f"{site} has no torch or no numpy to lend")
    return names


def _top_level(distribution: Distribution) -> set[str]:
    """The files and folders in ``site-packages`` that its record names."""
    names = {file.parts[0] for file in distribution.files or ()}
    return names - {"..", "__pycache__"}
