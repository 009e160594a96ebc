"""Write the shared keyword arguments into the constructors and docstrings of the losses.

    python -m release.constructors

In the signature of a loss, and in the parameters of its docstring, all from ``backend`` to the end is written here, but
for what the class itself has above. ``robustdml_ops/losses/options.py`` holds types, defaults and texts. A loss with
``shared(…Options, locals())`` takes all of a family; others take those that they list.
"""

import argparse
import json
import re
import runpy
import subprocess
import sys
import textwrap
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import torch

LOSSES = Path(__file__).parents[1] / "robustdml_ops" / "losses"
CLASS = re.compile(r"\nclass (\w+Loss)\(.*?(?=\n(?:class|def|@)|\Z)", re.DOTALL)
SIGNATURE = re.compile(r"(?<=\n)        backend: .*?(?=    \) -> None:)", re.DOTALL)
DOCSTRING = re.compile(r"(?<=\n)    backend : .*?\n(?=\n)", re.DOTALL)
NAME = re.compile(r"^        (\w+):", re.MULTILINE)


@cache
def options() -> dict[str, Any]:
    """What the module of the options defines. It is run alone: the losses may not be importable before this."""
    return runpy.run_path(str(LOSSES / "options.py"))


def described(kind: Any) -> str:
    """A type as the sources write it."""
    if kind == options()["Backend"]:
        return "Backend"
    if get_origin(kind) in (Union, UnionType):
        return " | ".join(map(described, get_args(kind)))
    if get_origin(kind) is Literal:
        return f"Literal[{', '.join(json.dumps(choice) for choice in get_args(kind))}]"
    if kind is type(None):
        return "None"
    return "torch.dtype" if kind is torch.dtype else str(kind.__name__)


def documented(key: str, option: Any) -> str:
    """An argument as a docstring has it."""
    text = option.text if option.default is None else f"{option.text} Default {option.default}."
    lines = textwrap.wrap(text, 112, break_long_words=False, break_on_hyphens=False)
    return f"    {key} : {option.kind}\n" + "".join(f"        {line}\n" for line in lines)


def written(source: str) -> str:
    """A module with the shared arguments of its losses."""
    return CLASS.sub(lambda found: _of_class(found[0]), source)


def _of_class(source: str) -> str:
    block = SIGNATURE.search(source)
    if block is None:
        return source
    family = re.search(r"\bshared\((\w+), locals\(\)\)", source)
    hints = get_type_hints(options()[family[1] if family else "SoftmaxOptions"], include_extras=True)
    names = list(hints) if family else NAME.findall(block[0])
    own = NAME.findall(source[source.rindex("def __init__(", 0, block.start()) : block.start()])
    lines, texts = [], []
    for name in names:
        if name in own or get_origin(hints[name]) is not Annotated:
            continue
        kind, option = get_args(hints[name])
        lines.append(f"        {name}: {described(kind)} = {option.default!r},\n")
        texts.append(documented(name, option))
    if family:
        lines.append("        **unknown: Never,\n")
        texts.append("    **unknown\n        Refused, with the name that was probably meant.\n")
    source = SIGNATURE.sub(lambda _: "".join(lines), source, count=1)
    return DOCSTRING.sub(lambda _: "".join(texts), source, count=1)


def main() -> None:
    """Write all files and format them."""
    files = sorted(LOSSES.glob("*.py"))
    for path in files:
        path.write_text(written(path.read_text()))
    subprocess.run([sys.executable, "-m", "ruff", "format", "-q", *map(str, files)], check=True)


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    main()
