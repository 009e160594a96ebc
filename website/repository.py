"""Files of the repository that are pages of the site as well, though they do not lie in docs/."""

import re
from pathlib import Path
from posixpath import join, normpath

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"(?<=\]\()([\w./-]+\.md)(?=[)#])")


def pages() -> dict[str, str]:
    """Texts by address, with links as seen from there."""
    return {page: from_site((ROOT / file).read_text(), file) for file, page in addresses().items()}


def addresses() -> dict[str, str]:
    """By the place in the repository, the address in the site."""
    results = sorted((ROOT / "bench" / "results").glob("*.md"))
    return {
        "CONTRIBUTING.md": "contributing.md",
        **{f"bench/results/{file.name}": f"results/{file.name}" for file in results},
    }


def from_site(text: str, file: str) -> str:
    """Links between files of the repository as links between pages of the site.

    Parameters
    ----------
    text : str
        Markdown.
    file : str
        Where it lies in the repository.

    Returns
    -------
    str
        The same with other links.
    """
    places = addresses()
    depth = _address(file, places).count("/")

    def link(found: re.Match[str]) -> str:
        target = normpath(join(file, "..", found[1]))
        moved = file in places or target in places
        return "../" * depth + _address(target, places) if moved else found[1]

    return LINK.sub(link, text)


def _address(file: str, places: dict[str, str]) -> str:
    return places.get(file, file.removeprefix("docs/"))
