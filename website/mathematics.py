"""Mathematics of ``math`` blocks as SVG, drawn while the site is built: no script and no font is needed to see it."""

import html
import re
from typing import Any

import ziamath

SIZE = 17  # pixels


def fence(source: str, *_: Any, **__: Any) -> str:
    """Draw a block.

    Parameters
    ----------
    source : str
        LaTeX; an empty line begins the next formula.

    Returns
    -------
    str
        HTML. The source is its text for screen readers.
    """
    formulas = [part.strip() for part in re.split(r"\n\s*\n", source) if part.strip()]
    return f'<div class="math">{"".join(map(_draw, formulas))}</div>'


def _draw(latex: str) -> str:
    svg = ziamath.Math.fromlatex(latex, size=SIZE, color="currentColor").svg()
    return svg.replace("<svg ", f'<svg role="img" aria-label="{html.escape(latex)}" ', 1)
