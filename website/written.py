"""Tables of stored results within the written pages: ``python -m website.written`` brings them up to date.

A page names a table by a comment, ``<!-- table: NAME -->``, and holds it below. So pages are whole wherever Markdown is
shown; a test compares them with what is stored.
"""

import argparse
import re

from website.repository import ROOT
from website.results import TABLES

MARKED = re.compile(r"^<!-- table: ([\w-]+) -->\n(?:\n(?:\|.*\n)+)?", re.MULTILINE)
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def with_tables(text: str) -> str:
    """The text of a page, each table as it is stored."""
    return MARKED.sub(lambda found: f"<!-- table: {found[1]} -->\n\n{TABLES[found[1]]()}\n", text)


def without_tables(text: str) -> str:
    """The text of a page between its tables."""
    return MARKED.sub("", text)


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    for page in PAGES:
        page.write_text(with_tables(page.read_text()))
