"""Look at the site as it was built: ``python -m website.check out/site [--external]``.

Every link leads to a file and an anchor that are there, nothing is fetched from another host to show a page, every
public name and every command has its page, and no list or table of a text was left as a paragraph. ``--external``
asks the addresses on other hosts, too, and needs a network.
"""

import argparse
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.error import URLError
from urllib.parse import unquote, urlsplit
from urllib.request import Request, urlopen

from website import commands, reference

# What a browser fetches by itself, by tag: the attribute.
FETCHED = {"script": "src", "img": "src", "iframe": "src", "link": "href", "source": "src", "image": "href"}
# Lines of a paragraph that were meant as a list, a table or a block of code.
LEFT_OVER = re.compile(r"^(?:[-*] |\d+\. |\|-|```)", re.MULTILINE)


@dataclass
class Document(HTMLParser):
    """What a page has and asks for."""

    text: str
    anchors: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    fetched: list[str] = field(default_factory=list)
    paragraphs: list[str] = field(default_factory=list)
    inside: bool = False

    def __post_init__(self) -> None:
        super().__init__()
        self.feed(self.text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what a tag asks for."""
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if FETCHED.get(tag) in given:
            self.fetched.append(given[FETCHED[tag]])
        if tag == "p":
            self.paragraphs.append("")
            self.inside = True
        elif tag == "code":
            self.handle_data("`")

    def handle_data(self, data: str) -> None:
        """Note the text of a paragraph."""
        if self.inside:
            self.paragraphs[-1] += data

    def handle_endtag(self, tag: str) -> None:
        """Note where code and a paragraph end."""
        if tag == "code":
            self.handle_data("`")
        self.inside = self.inside and tag != "p"


def main() -> int:
    """Print what is wrong, and return 1 if anything is."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("site", type=Path)
    parser.add_argument("--external", action="store_true", help="ask the addresses on other hosts as well")
    given = parser.parse_args()
    site = given.site.resolve()
    documents = {path: Document(path.read_text()) for path in sorted(site.rglob("*.html"))}
    wrong = [*findings(site, documents), *(dead(documents) if given.external else ())]
    print("\n".join([*wrong, f"{len(documents)} pages, {len(wrong)} findings"]))
    return bool(wrong)


def findings(site: Path, documents: dict[Path, Document]) -> Iterator[str]:
    """What is wrong in a built site, one line each.

    Parameters
    ----------
    site : Path
        Its folder.
    documents : dict
        Its pages by path.

    Yields
    ------
    str
        Page and what is wrong.
    """
    if not documents:
        yield f"{site}: no pages"
    for path, document in documents.items():
        page = path.relative_to(site)
        yield from (f"{page}: fetches {address}" for address in document.fetched if is_external(address))
        asked = [*document.fetched, *document.links]
        yield from (f"{page}: {link} leads nowhere" for link in asked if not _leads(path, link, documents))
        yield from (f"{page}: not rendered: {text[:60]!r}" for text in document.paragraphs if LEFT_OVER.search(text))
    for style in site.rglob("*.css"):
        addresses = re.findall(r"url\(\s*[\"']?((?:https?:)?//[^\"')]+)", style.read_text())
        yield from (f"{style.relative_to(site)}: fetches {address}" for address in addresses)
    for name in reference.documented().values():
        built = documents.get(site / Path(name.page).with_suffix(".html"))
        if built is None or name.target.path not in built.anchors:
            yield f"{name.module}.{name.name}: has no page"
        elif not name.text:
            yield f"{name.module}.{name.name}: nothing is said of it"
    for address in commands.addresses().values():
        if site / Path(address).with_suffix(".html") not in documents:
            yield f"{address}: has no page"


def is_external(address: str) -> bool:
    """Whether an address names a host."""
    return bool(urlsplit(address).netloc)


def _leads(path: Path, link: str, documents: dict[Path, Document]) -> bool:
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return True
    target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    if parts.fragment and target in documents:
        return unquote(parts.fragment) in documents[target].anchors
    return target.is_file()


def dead(documents: dict[Path, Document]) -> Iterator[str]:
    """Links to other hosts that do not answer, one line each."""
    links = {link for document in documents.values() for link in document.links if is_external(link)}
    for link in sorted(links):
        try:
            urlopen(
                Request(link, method="HEAD", headers={"User-Agent": "robustdml_ops link check"}), timeout=20
            ).close()
        except (URLError, TimeoutError) as error:
            yield f"{link}: {error}"


if __name__ == "__main__":
    sys.exit(main())
