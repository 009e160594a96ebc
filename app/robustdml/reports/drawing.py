"""What all figures of reports share: style, colours, and the way into a page."""

import base64
import io
from collections.abc import Callable

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

RIGHT, WRONG, GREY = "#009E73", "#CC3311", "#8a8f98"
STYLE = {
    "font.size": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GREY,
    "axes.labelcolor": "#33363b",
    "xtick.color": "#55595f",
    "ytick.color": "#55595f",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e6e8eb",
    "legend.frameon": False,
}


def draw_axes(draw: Callable[[Axes], None], height: float) -> str:
    """Make a figure of one pair of axes in the style of all."""
    with rc_context(STYLE):
        figure = Figure(figsize=(8, height), layout="constrained")
        draw(figure.subplots())
        return encode(figure, "svg")


def encode(figure: Figure, kind: str) -> str:
    """Turn a figure into a ``data:`` address."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format=kind, dpi=160)
    media = {"svg": "image/svg+xml", "png": "image/png"}[kind]
    return f"data:{media};base64,{base64.b64encode(buffer.getvalue()).decode()}"
