"""Sections of a report, written as Markdown and as one HTML page."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from robustdml.errors import in_one_line
from robustdml.reports import html
from robustdml.reports.html import as_text


@dataclass(frozen=True)
class Picture:
    """A plot in a report."""

    source: str  # A `data:` address
    alternative: str  # Alternative text
    caption: str  # Below the plot


@dataclass(frozen=True)
class Section:
    """A heading with text, table and plot."""

    title: str  # The heading; empty for none
    table: list[list[str]] = field(default_factory=list)  # Header row first; empty for none
    text: str = ""  # Before the table
    picture: Picture | None = None  # Before the text; in HTML only
    level: int = 2  # Of the heading, 2 or 3

    @property
    def file_name(self) -> str:
        """A name for a file of the picture: the heading in lower case, in letters, digits and hyphens."""
        return re.sub(r"[^a-z0-9]+", "-", self.title.lower()).strip("-")


def markdown(sections: Sequence[Section]) -> str:
    """Write headings, texts and tables as Markdown."""
    parts = []
    for section in sections:
        heading = f"{'#' * section.level} {_markdown_text(section.title)}" if section.title else ""
        parts += [part for part in (heading, _markdown_text(section.text), _markdown_table(section.table)) if part]
    return "\n\n".join(parts) + "\n"


def page(sections: Sequence[Section], description: str) -> str:
    """Write one HTML page."""
    parts = ["<h1>The methods compared</h1>", f"<p>{as_text(description)}</p>"]
    for section in sections:
        if section.title:
            parts.append(f"<h{section.level}>{as_text(section.title)}</h{section.level}>")
        if section.picture:
            parts.append(html.figure(section.picture.source, section.picture.alternative, section.picture.caption))
        if section.text:
            parts.append(f"<p>{as_text(section.text)}</p>")
        if section.table:
            head, *body = section.table
            parts.append(html.table(head, body))
    return html.page("robustdml_ops: the methods compared", "\n".join(parts))


def _markdown_text(text: str) -> str:
    """Escape what Markdown would take for a column or for HTML: names of data sets are arbitrary."""
    return in_one_line(text).replace("|", "\\|").replace("<", "&lt;")


def _markdown_table(table: Sequence[Sequence[str]]) -> str:
    if not table:
        return ""
    head, *body = (f"| {' | '.join(map(_markdown_text, row))} |" for row in table)
    return "\n".join([head, "|---" * len(table[0]) + "|", *body])
