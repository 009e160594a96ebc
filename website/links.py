"""Links that no text spells out: from a name in `code`, and from a page named as docs/sampled.md."""

import re
from functools import cache

from mkdocs.structure.files import Files
from mkdocs.utils import get_relative_url

from website import commands, reference

# Headings, blocks of code and what is a link already stay as they are.
MENTION = re.compile(
    r"<a\b.*?</a>|<h\d\b.*?</h\d>|<pre\b.*?</pre>|<code>(?P<name>[\w. ]+)</code>|\bdocs/(?P<page>[a-z-]+\.md)\b",
    re.DOTALL,
)


def link_mentions(html: str, here: str, files: Files) -> str:
    """Make a link of each name that has a page, and of each page.

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

    Raises
    ------
    LookupError
        A page is named that is not there.
    """

    def link(found: re.Match[str]) -> str:
        page = found["page"] or _pages().get(found["name"] or "")
        if page is None:
            return found[0]
        target = files.get_file_from_path(page)
        if target is None:
            raise LookupError(f"{here}: there is no {page}")
        return found[0] if target.url == here else f'<a href="{get_relative_url(target.url, here)}">{found[0]}</a>'

    return MENTION.sub(link, html)


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
