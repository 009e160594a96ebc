"""Mathematics of ``math`` blocks as SVG, drawn while the site is built: no script and no font is needed to see it."""

import html
import re
from typing import Any

import ziamath
from latex2mathml.converter import convert
from pymdownx.superfences import SuperFencesException

SIZE = 17  # pixels
# A formula as high as this has a bracket that was stretched too far: ziamath does so beside a fraction.
TALLEST = 100


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

    Raises
    ------
    SuperFencesException
        A formula that cannot be read, or was not drawn as it is meant. Another error would leave the source standing.
    """
    formulas = [part.strip() for part in re.split(r"\n\s*\n", source) if part.strip()]
    try:
        return f'<div class="math">{"".join(map(_draw, formulas))}</div>'
    except Exception as error:
        raise SuperFencesException(f"{error} in {source}") from error


def _draw(latex: str) -> str:
    unknown = re.search(r"\\\w+", convert(latex))
    if unknown:
        raise ValueError(f"{unknown[0]} is not known")
    formula = ziamath.Math.fromlatex(latex, size=SIZE, color="currentColor")
    height = formula.getsize()[1]
    if height > TALLEST:
        raise ValueError(f"{height:.0f} pixels high, where {TALLEST} are the most: {latex}")
    svg: str = formula.svg()
    return svg.replace("<svg ", f'<svg role="img" aria-label="{html.escape(latex)}" ', 1)
