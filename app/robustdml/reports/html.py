"""Pieces of HTML reports that need no other file."""

import base64
import hashlib
import io
import re
from collections.abc import Sequence
from html import escape
from pathlib import Path
from string import Template

from robustdml.arrays import Pixels
from robustdml.data.images import as_image
from robustdml.errors import few, in_one_line

STYLE, TEMPLATE = (Path(__file__).with_name(name) for name in ("page.css", "page.html"))


def as_text(text: str) -> str:
    """HTML of a text; invisible characters and those that change the direction of text become their numbers."""
    return escape(in_one_line(text))


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Lay out a table."""
    header = "".join(f'<th scope="col">{as_text(cell)}</th>' for cell in head)
    body = "".join(
        f'<tr><th scope="row">{as_text(row[0])}</th>{"".join(f"<td>{as_text(cell)}</td>" for cell in row[1:])}</tr>'
        for row in rows
    )
    return f'<div class="scroll"><table><thead><tr>{header}</tr></thead><tbody>{body}</tbody></table></div>'


def figure(source: str, alternative: str, caption: str) -> str:
    """Show a picture with its caption, or the caption alone."""
    shown = f'<img src="{source}" alt="{as_text(alternative)}">' if source else ""
    return f"<figure>{shown}<figcaption>{as_text(caption)}</figcaption></figure>"


def left_out_line(left_out: Sequence[str], notes: Sequence[str] = ()) -> str:
    """HTML that says how data was read and names the first few files left out; empty if there is nothing to say."""
    said = [f"{note[0].upper()}{note[1:]}." for note in dict.fromkeys(notes)]
    said += [f"Left out {len(left_out):,}: {few(left_out)}."] if left_out else []
    return "".join(f"<p>{as_text(one)}</p>" for one in said)


def searched(figures: Sequence[str]) -> str:
    """HTML of a query, the first sample, and its results."""
    return f'<div class="searched">{figures[0]}<div class="found">{"".join(figures[1:])}</div></div>'


def picture(pixels: Pixels) -> str:
    """Turn an image, uint8 (channels, S, S), into a ``data:`` address."""
    file = io.BytesIO()
    as_image(pixels).save(file, "JPEG", quality=75)
    return f"data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode()}"


def page(title: str, body: str, style: Path = STYLE, script: str = "") -> str:
    """Make a whole page, which runs no script but the one given."""
    rules = style.read_text(encoding="utf-8")
    return in_browser(filled(TEMPLATE, title=as_text(title), body=body, policy=policy(script), style=rules))


def filled(template: Path, **texts: str) -> str:
    """Put HTML into the places of a template."""
    return Template(template.read_text(encoding="utf-8")).substitute(texts)


def in_browser(text: str) -> str:
    """Put the sign that browsers have for it in the place of each byte of a name that is not UTF-8."""
    return re.sub("[\ud800-\udfff]", "\ufffd", text)


def policy(script: str = "") -> str:
    """Tell a browser that a page loads nothing and runs nothing, whatever names have got into it."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    run = f"'sha256-{digest}'" if script else "'none'"
    content = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src {run}; base-uri 'none'"
    return f'<meta http-equiv="Content-Security-Policy" content="{content}; form-action \'none\'">'
