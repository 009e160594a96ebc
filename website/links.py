"""Links that no text spells out: from a name in `code` to its page, and from the name of a page, docs/NAME.md."""

import re
from functools import cache

from mkdocs.structure.files import Files
from mkdocs.utils import get_relative_url

from website import commands, reference

# Headings, blocks of code and existing links stay as they are.
MENTION = re.compile(
    r"<a\b.*?</a>|<h\d\b.*?</h\d>|<pre\b.*?</pre>|<code>(?P<name>[\w. ]+)</code>|\bdocs/(?P<page>[a-z-]+\.md)\b",
    re.DOTALL,
)


def link_mentions(html: str, here: str, files: Files) -> str:
    """Make a link of each mention of a documented name or of a page; ``here`` is the page's address."""

    def link(found: re.Match[str]) -> str:
        page = found["page"] or _pages().get(found["name"] or "")
        target = None if page is None else files.get_file_from_path(page)
        if target is None or target.url == here:
            return found[0]
        return f'<a href="{get_relative_url(target.url, here)}">{found[0]}</a>'

    return MENTION.sub(link, html)


@cache
def _pages() -> dict[str, str]:
    """Addresses by the ways to name something: `ops.nearest`, its full path, a class by its name alone."""
    found: dict[str, str] = {}
    for name in reference.documented().values():
        module = name.module.partition(".")[2] or name.module
        found |= dict.fromkeys((f"{name.module}.{name.name}", f"{module}.{name.name}"), name.page)
        if name.target.is_class:
            found.setdefault(name.name, name.page)
    return found | {f"robustdml {name}": address for name, address in commands.addresses().items()}
