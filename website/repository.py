"""Files outside docs/ that are pages of the site too."""

import re
from pathlib import Path
from posixpath import join, normpath

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"(?<=\]\()([\w./-]+\.md)(?=[)#])")
# By the place in the repository, the address in the site.
ADDRESSES = {"CONTRIBUTING.md": "contributing.md"}


def pages() -> dict[str, str]:
    """Texts by address, with links as seen from there."""
    return {page: from_site((ROOT / file).read_text(), file) for file, page in ADDRESSES.items()}


def from_site(text: str, file: str) -> str:
    """Turn links between files of the repository into links between pages of the site; ``file`` holds the text."""
    depth = _address(file).count("/")

    def link(found: re.Match[str]) -> str:
        target = normpath(join(file, "..", found[1]))
        moved = file in ADDRESSES or target in ADDRESSES
        return "../" * depth + _address(target) if moved else found[1]

    return LINK.sub(link, text)


def _address(file: str) -> str:
    return ADDRESSES.get(file, file.removeprefix("docs/"))
