"""A part of the report of a comparison, and reports made of such parts: as Markdown, and as one HTML page."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

from robustdml.errors import in_one_line
from robustdml.reports import html


@dataclass(frozen=True)
class Picture:
    """A plot in a report."""

    source: str  # A `data:` address
    alternative: str  # What is to be seen, for those who cannot
    caption: str  # What it means


@dataclass(frozen=True)
class Section:
    """A heading with what stands below it."""

    title: str  # The heading; empty for none
    table: list[list[str]] = field(default_factory=list)  # A row of names, then the others; empty for none
    text: str = ""  # Before the table
    picture: Picture | None = None  # Before the text, in HTML alone
    level: int = 2  # Of the heading, 2 or 3

    @property
    def file_name(self) -> str:
        """A name for a file of the picture: the heading in lower case, in letters, digits and hyphens."""
        return re.sub(r"[^a-z0-9]+", "-", self.title.lower()).strip("-")


def markdown(sections: Sequence[Section]) -> str:
    """Write all but the pictures."""
    parts = []
    for section in sections:
        heading = f"{'#' * section.level} {_markdown_text(section.title)}" if section.title else ""
        parts += [part for part in (heading, _markdown_text(section.text), _markdown_table(section.table)) if part]
    return "\n\n".join(parts) + "\n"


def page(sections: Sequence[Section], description: str) -> str:
    """Write the report."""
    parts = ["<h1>The methods compared</h1>", f"<p>{escape(description)}</p>"]
    for section in sections:
        if section.title:
            parts.append(f"<h{section.level}>{escape(section.title)}</h{section.level}>")
        if section.picture:
            parts.append(html.figure(section.picture.source, section.picture.alternative, section.picture.caption))
        if section.text:
            parts.append(f"<p>{escape(section.text)}</p>")
        if section.table:
            head, *body = section.table
            parts.append(html.table(head, body))
    return html.page("robustdml_ops: the methods compared", "\n".join(parts))


def _markdown_text(text: str) -> str:
    """A name of data may hold anything, and Markdown takes HTML for HTML."""
    return in_one_line(text).replace("|", "\\|").replace("<", "&lt;")


def _markdown_table(table: Sequence[Sequence[str]]) -> str:
    if not table:
        return ""
    head, *body = (f"| {' | '.join(map(_markdown_text, row))} |" for row in table)
    return "\n".join([head, "|---" * len(table[0]) + "|", *body])
