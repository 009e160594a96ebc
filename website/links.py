"""Links that no text spells out: from a name in ``code`` to its page."""

import re
from functools import cache

from mkdocs.structure.files import Files
from mkdocs.utils import get_relative_url

from website import commands, reference

NAME = re.compile(r"<a\b.*?</a>|<h\d\b.*?</h\d>|<pre\b.*?</pre>|<code>([\w. ]+)</code>", re.DOTALL)
PAGE = re.compile(r"\bdocs/([a-z-]+\.md)\b")


def link_names(html: str, here: str, files: Files) -> str:
    """Make a link of each name that has a page.

    Parameters
    ----------
    html : str
        Of a page.
    here : str
        Its address.
    files : Files
        Of the site.

    Returns
    -------
    str
        The same with links.
    """

    def link(found: re.Match[str]) -> str:
        page = _pages().get(found[1] or "")
        target = page and files.get_file_from_path(page)
        if not target or target.url == here:
            return found[0]
        return f'<a href="{get_relative_url(target.url, here)}">{found[0]}</a>'

    return NAME.sub(link, html)


def link_pages(html: str, here: str, files: Files) -> str:
    """Docstrings name a page as docs/sampled.md: make a link of it.

    Parameters
    ----------
    html : str
        Of a page of the interface.
    here : str
        Its address.
    files : Files
        Of the site.

    Returns
    -------
    str
        The same with links.

    Raises
    ------
    LookupError
        There is no such page.
    """

    def link(found: re.Match[str]) -> str:
        target = files.get_file_from_path(found[1])
        if target is None:
            raise LookupError(f"{here}: there is no {found[0]}")
        return f'<a href="{get_relative_url(target.url, here)}">{found[0]}</a>'

    return PAGE.sub(link, html)


@cache
def _pages() -> dict[str, str]:
    """Addresses by what a text calls a name: `ops.nearest`, `python_ref.superloss`, and a class by its name alone."""
    found: dict[str, str] = {}
    for name in reference.documented().values():
        module = name.module.removeprefix(f"{reference.PACKAGE}.")
        found |= dict.fromkeys((f"{name.module}.{name.name}", f"{module}.{name.name}"), name.page)
        if name.target.is_class:
            found.setdefault(name.name, name.page)
    return found | {f"robustdml {name}": address for name, address in commands.addresses().items()}
