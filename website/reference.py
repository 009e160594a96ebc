"""A page for every public name of the library and the application, read from the sources without importing them."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

import griffe

from website.repository import ROOT

# Modules whose `__all__` is public, in the order of the navigation, and what their overview says.
MODULES = {
    "robustdml_ops.losses": "Losses as PyTorch modules, of embeddings (B, D) and labels (B,).",
    "robustdml_ops.robust": "Filters, weights and confidences that say which samples probably have a right label.",
    "robustdml_ops.ops": "The differentiable operations of which the losses are made, for losses of your own.",
    "robustdml_ops.optim": "Optimisers that update the class matrix of a loss while its gradient is computed.",
    "robustdml_ops.distributed": "Classes divided among processes.",
    "robustdml.audit": "Which labels of a data set are wrong.",
}
# Of the packages themselves what a program of one's own calls, by where it is defined, and what the overview says.
PACKAGES = {
    "robustdml_ops": ("Steps of large batches, and the fused losses under the names of another package.", (
        "robustdml_ops.micro_batches.backward_in_micro_batches",
        "robustdml_ops.losses.peer.patch.patch_pytorch_metric_learning",
        "robustdml_ops.losses.peer.patch.PeerPatch",
    )),
    "robustdml": ("Training from Python, and trained networks. The command line does the same.", (
        "robustdml.train.train",
        "robustdml.config.TrainingConfig",
        "robustdml.data.load_data",
        "robustdml.evaluate_embeddings",
        "robustdml.load_embedder",
    )),
}  # fmt: skip


@dataclass(frozen=True)
class Name:
    """A public name of a module."""

    module: str
    name: str
    target: griffe.Object

    @property
    def page(self) -> str:
        """Address of its page. Some file systems do not tell `Nearest` from `nearest`."""
        kind = "-class" if self.name.lower() in self.target.parent.members and self.name[0].isupper() else ""
        return f"api/{self.module}/{self.name}{kind}.md"

    @property
    def text(self) -> str:
        """Its docstring; for a constant, the comment above it."""
        if self.target.docstring:
            return self.target.docstring.value
        comment: list[str] = []
        for line in reversed(self.target.filepath.read_text().splitlines()[: self.target.lineno - 1]):
            if not line.startswith("# "):
                break
            comment.insert(0, line.removeprefix("# "))
        return "\n".join(comment)


def pages() -> dict[str, str]:
    """Texts by address: an overview of each module, and a page for each name."""
    about = MODULES | {package: text for package, (text, _) in PACKAGES.items()}
    overviews = {_overview(module): _table(module, about[module], names) for module, names in public_names().items()}
    return overviews | {name.page: _page(name) for name in documented().values()}


def navigation() -> list[object]:
    """Their part of the navigation."""
    own = documented().values()
    return [
        {module: [{"Overview": _overview(module)}, *({name.name: name.page} for name in names if name in own)]}
        for module, names in public_names().items()
    ]


def documented() -> dict[str, Name]:
    """Each name by the place of its definition."""
    found: dict[str, Name] = {}
    for names in public_names().values():
        for name in names:
            found.setdefault(name.target.path, name)
    return found


@cache
def public_names() -> dict[str, list[Name]]:
    """Public names by module."""
    paths = [str(ROOT), str(ROOT / "app")]
    packages = {name: griffe.load(name, search_paths=paths, resolve_aliases=True) for name in PACKAGES}

    def find(path: str) -> griffe.Object:
        package, _, rest = path.partition(".")
        return _defined(packages[package][rest], path.rpartition(".")[2])

    def names(module: str, paths: Iterable[str]) -> list[Name]:
        return [Name(module, path.rpartition(".")[2], find(path)) for path in paths]

    library = {module: find(module) for module in MODULES}
    found = {
        module: names(module, (f"{module}.{name}" for name in library[module].exports or ())) for module in MODULES
    }
    return found | {package: names(package, paths) for package, (_, paths) in PACKAGES.items()}


def _defined(found: griffe.Object | griffe.Alias, name: str) -> griffe.Object:
    target = found.final_target if found.is_alias else found
    # A function that has the name of its file hides it once both are imported.
    return target[name] if target.is_module and name in target.members else target


def _overview(module: str) -> str:
    return f"api/{module}/index.md"


def _table(module: str, about: str, names: list[Name]) -> str:
    own = documented()
    rows = []
    for name in names:
        page = own[name.target.path].page.removeprefix("api/")
        summary = name.text.split("\n\n")[0].replace("\n", " ").replace("|", r"\|")
        rows.append(f"| [`{name.name}`](../{page}) | {summary} |")
    return "\n".join([f"# {module}\n\n{about}\n", "| name | |", "|---|---|", *rows, ""])


def _page(name: Name) -> str:
    block = f"::: {name.target.path}\n"
    return block if name.target.docstring else f"{block}\n{name.text}\n"
