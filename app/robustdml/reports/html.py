"""Pieces of HTML reports that need no other file."""

import base64
import hashlib
import io
import re
from collections.abc import Sequence
from html import escape
from string import Template

import numpy as np
from numpy.typing import NDArray
from PIL import Image


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Lay out a table."""
    header = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in head)
    body = "".join(
        f'<tr><th scope="row">{escape(row[0])}</th>{"".join(f"<td>{escape(cell)}</td>" for cell in row[1:])}</tr>'
        for row in rows
    )
    return f'<div class="scroll"><table><thead><tr>{header}</tr></thead><tbody>{body}</tbody></table></div>'


def figure(source: str, alternative: str, caption: str) -> str:
    """Show a picture with its caption, or the caption alone."""
    shown = f'<img src="{source}" alt="{escape(alternative)}">' if source else ""
    return f"<figure>{shown}<figcaption>{escape(caption)}</figcaption></figure>"


def picture(pixels: NDArray[np.generic]) -> str:
    """Turn an image, uint8 (channels, S, S), into a ``data:`` address."""
    file = io.BytesIO()
    Image.fromarray(pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0)).save(file, "JPEG", quality=75)
    return f"data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode()}"


def page(title: str, body: str) -> str:
    """Make a whole page."""
    return in_browser(_PAGE.substitute(title=escape(title), body=body, policy=policy()))


def in_browser(text: str) -> str:
    """Put the sign that browsers have for it in the place of each byte of a name that is not UTF-8."""
    return re.sub("[\ud800-\udfff]", "\ufffd", text)


def policy(script: str = "") -> str:
    """Tell a browser that a page loads nothing and runs nothing, whatever names have got into it."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    run = f"'sha256-{digest}'" if script else "'none'"
    content = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src {run}; base-uri 'none'"
    return f'<meta http-equiv="Content-Security-Policy" content="{content}; form-action \'none\'">'


_PAGE = Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
$policy
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>$title</title>
<style>
  :root { color-scheme: light; }
  body { font: 17px/1.6 system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; color: #222529;
         background: #fff; max-width: 50rem; margin: 3rem auto 5rem; padding: 0 1.25rem; }
  h1 { font-size: 2rem; line-height: 1.2; margin: 0 0 .75rem; }
  h2 { font-size: 1.3rem; margin: 3rem 0 .5rem; }
  p { margin: .5rem 0 1rem; }
  .finding { font-size: 1.15rem; border-left: 4px solid #D55E00; padding: .35rem 0 .35rem 1rem; margin: 1.5rem 0; }
  figure { margin: 1rem 0 0; }
  img { width: 100%; height: auto; display: block; }
  figcaption, footer { color: #5b6067; font-size: .9rem; line-height: 1.5; margin-top: .5rem; }
  /* Wide tables go beyond the column of text, and scroll where the window ends. */
  .scroll { overflow-x: auto; width: fit-content; min-width: 100%; max-width: calc(100vw - 2.5rem);
            position: relative; left: 50%; transform: translateX(-50%); }
  table { border-collapse: collapse; width: 100%; font-size: .92rem; font-variant-numeric: tabular-nums; }
  th, td { text-align: right; padding: .45rem .5rem; border-bottom: 1px solid #e6e8eb; white-space: nowrap; }
  thead th { color: #5b6067; font-weight: 600; border-bottom: 2px solid #c9ccd1; white-space: normal;
             vertical-align: bottom; line-height: 1.3; }
  th:first-child { text-align: left; }
  tbody th { font-weight: 500; }
  .times th:nth-child(2), .times td:nth-child(2) { text-align: left; }
  code { font-size: .9em; background: #f3f4f6; padding: .1em .35em; border-radius: 4px; }
  .found { display: flex; flex-wrap: wrap; gap: .75rem; margin: 1rem 0; padding-left: 10rem; position: relative; }
  .found figure { width: 8rem; margin: 0; overflow-wrap: anywhere; }
  .found figure:first-child { border-right: 3px solid #c9ccd1; padding-right: .75rem; position: absolute; left: 0; }
  footer { border-top: 1px solid #e6e8eb; margin-top: 3rem; padding-top: 1rem; }
</style>
</head>
<body>
$body</body>
</html>
""")
