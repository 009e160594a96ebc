"""A page for every public name: what stands in the ``__all__`` of some module of the package.

Read from the sources, without importing them. A name that several modules offer has one page, under the module that
comes first in `FIRST`; the others link to it.
"""

from dataclasses import dataclass
from functools import cache

import griffe

from website.repository import ROOT

PACKAGE = "robustdml_ops"
# The rest follow by the alphabet.
FIRST = ("losses", "robust", "ops", "optim", "distributed", "audit", "recipes")
# What the losses take from pytorch-metric-learning where it is installed; nobody else asks for it.
INNER = ("robustdml_ops.losses.peer.package",)


@dataclass(frozen=True)
class Name:
    """A public name of a module."""

    module: str
    name: str
    target: griffe.Object

    @property
    def page(self) -> str:
        """Address of its page. Some file systems take `Nearest` and `nearest` for one name."""
        kind = "-class" if self.name.lower() in self.target.parent.members and self.name[0].isupper() else ""
        return f"api/{_short(self.module)}/{self.name}{kind}.md"

    @property
    def text(self) -> str:
        """Its docstring; of a constant the comment above it."""
        if self.target.docstring:
            return self.target.docstring.value
        above = reversed(self.target.filepath.read_text().splitlines()[: self.target.lineno - 1])
        comment = []
        for line in above:
            if not line.startswith("# "):
                break
            comment.insert(0, line.removeprefix("# "))
        return "\n".join(comment)


def pages() -> dict[str, str]:
    """Texts by address: an overview of each module, and a page for each name."""
    overviews = {_overview(module): _table(module, names) for module, names in public_names().items()}
    return overviews | {name.page: _page(name) for name in documented().values()}


def navigation() -> list[object]:
    """Their part of the navigation."""
    own = documented().values()
    return [
        {_short(module): [{"Overview": _overview(module)}, *({name.name: name.page} for name in names if name in own)]}
        for module, names in public_names().items()
    ]


def documented() -> dict[str, Name]:
    """By the place of definition, the name under which it has its page."""
    found: dict[str, Name] = {}
    for names in public_names().values():
        for name in names:
            found.setdefault(name.target.path, name)
    return found


@cache
def public_names() -> dict[str, list[Name]]:
    """Names of each module that has an ``__all__``; of the package itself, modules aside."""
    package = griffe.load(PACKAGE, search_paths=[str(ROOT)], resolve_aliases=True)
    modules = {module.path: module for module in _modules(package) if module.exports and module.path not in INNER}
    order = [f"{PACKAGE}.{module}" for module in FIRST]
    return {
        path: [Name(path, name, _target(modules[path], name)) for name in map(str, modules[path].exports or ())]
        for path in [*order, *sorted(set(modules) - {*order, PACKAGE})]
    }


def _modules(module: griffe.Module) -> list[griffe.Module]:
    inner = [part for part in module.modules.values() if not part.is_alias]
    return [module, *(found for part in inner for found in _modules(part))]


def _target(module: griffe.Module, name: str) -> griffe.Object:
    found = module[name]
    target = found.final_target if found.is_alias else found
    # A function that has the name of its file hides it once both are imported.
    return target[name] if target.is_module and name in target.members else target


def _short(module: str) -> str:
    return module.removeprefix(f"{PACKAGE}.")


def _overview(module: str) -> str:
    return f"api/{_short(module)}/index.md"


def _table(module: str, names: list[Name]) -> str:
    own = documented()
    rows = []
    for name in names:
        page = own[name.target.path].page.removeprefix("api/")
        summary = name.text.split("\n\n")[0].replace("\n", " ").replace("|", r"\|")
        rows.append(f"| [`{name.name}`](../{page}) | {summary} |")
    table = "\n".join(["| name | |", "|---|---|", *rows])
    return f"::: {module}\n    options: {{members: false, show_root_full_path: true}}\n\n{table}\n"


def _page(name: Name) -> str:
    block = f"::: {name.target.path}\n"
    return block if name.target.docstring else f"{block}\n{name.text}\n"
