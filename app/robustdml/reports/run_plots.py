"""Figures of reports, and how a run went over its epochs."""

import base64
import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from matplotlib import rc_context, rc_params_from_file
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

RIGHT, WRONG, GREY = "#009E73", "#CC3311", "#8a8f98"
STYLE = rc_params_from_file(Path(__file__).with_name("plots.mplstyle"), use_default_template=False)


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


# Okabe and Ito's colours, told apart by people with any kind of colour vision.
LINES = ("#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")

# Room for the marks of 0 and 1.
_ROOM = 0.005


def curve(
    history: Sequence[Mapping[str, float]],
    key: str,
    title: str,
    label: str,
    *,
    percent: bool = True,
    level: tuple[str, float] | None = None,
) -> str:
    """Draw a quantity of a history against the epoch, and perhaps a level to compare it with."""

    def draw(axes: Axes) -> None:
        points = [(record["epoch"], record[key]) for record in history if key in record]
        axes.plot(*zip(*points, strict=True), color=LINES[0], lw=2.2, marker="o", ms=3.5, label=title)
        if level is not None:
            axes.axhline(level[1], color=GREY, ls=":", lw=1.6, label=level[0])
        axes.set(xlabel="epoch", ylabel=label)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        if percent:
            axes.yaxis.set_major_formatter(PercentFormatter(1))
            low, high = axes.get_ylim()
            axes.set_ylim(max(low, -_ROOM), min(high, 1 + _ROOM))  # a share is between 0 and 1
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, fontsize=10)

    return draw_axes(draw, 3.8)
