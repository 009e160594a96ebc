"""Pictures of each query and its most similar samples."""

from collections.abc import Sequence
from html import escape
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from robustdml.data.images import decode
from robustdml.errors import in_one_line
from robustdml.reports.html import figure, page, picture, searched
from robustdml.trained.embedding import Samples

THUMBNAIL = 128


def picture_of(samples: Samples, row: int) -> str:
    """Show a sample; nothing of features, and of a file that is gone."""
    pixels: NDArray[np.generic] | str = ""
    if isinstance(samples.inputs, list):
        pixels = decode(samples.inputs[row], THUMBNAIL)
    elif samples.inputs.ndim == 4:
        pixels = samples.inputs[row]
    return "" if isinstance(pixels, str) else picture(pixels)


def render_found(title: str, below: str, rows: Sequence[Sequence[tuple[str, str, str]]]) -> str:
    """Lay out a page of rows: a query and what was found, each a picture, its file and what is said of it."""
    sections = [f"<h1>{escape(in_one_line(title))}</h1><p>{escape(in_one_line(below))}</p>"]
    for row in rows:
        figures = [
            figure(source, in_one_line(name), in_one_line(f"{said} · {Path(name).name}")) for source, name, said in row
        ]
        sections.append(searched(figures))
    return page(title, "\n".join(sections))
