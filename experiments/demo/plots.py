"""The figures of the demo's report, each as a self-contained ``data:`` address."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter
from numpy.typing import NDArray

from experiments.demo.timing import FLOOR, OURS, Timing
from robustdml.methods import METHODS
from robustdml.methods.classes import AnchorOptions
from robustdml.reports.run_plots import GREY, RIGHT, WRONG, draw_axes, encode
from robustdml.run.result import TrainingResult

BINS = 60
# Okabe and Ito's colours, told apart by people with any kind of colour vision.
COLOURS = {
    "robust": "#CC79A7",
    "proxy-anchor": "#0072B2",
    "smooth-proxy-anchor": "#D55E00",
    "adaptive-proxy-anchor": "#009E73",
}


@dataclass(frozen=True)
class Neighbours:
    """A query and its nearest images by several methods."""

    query: NDArray[np.uint8]  # Image, uint8, (channels, height, width)
    # By method: nearest images, best first, and whether each is of the query's class.
    found: dict[str, list[tuple[NDArray[np.uint8], bool]]]


def learning_curves(runs: dict[str, list[TrainingResult]], frozen_recall: float) -> str:
    """Draw Recall@1 on the test classes after each epoch: mean over the seeds, and their range."""

    def draw(axes: Axes) -> None:
        for method, results in runs.items():
            recall = np.array([[record["precision_at_1"] for record in result.history] for result in results])
            epochs = np.arange(1, recall.shape[1] + 1)
            seeds = f"{len(results)} seeds" if len(results) > 1 else "1 seed"
            # Dashed: the plain and the adaptive curve may coincide.
            line = "--" if method == "adaptive-proxy-anchor" else "-"
            title = f"{METHODS[method].title} ({seeds})"
            axes.plot(epochs, recall.mean(0), line, color=COLOURS[method], lw=2.2, label=title)
            axes.fill_between(epochs, recall.min(0), recall.max(0), color=COLOURS[method], alpha=0.15, lw=0)
        axes.axhline(frozen_recall, color=GREY, ls=":", lw=1.6, label="untouched features")
        axes.set(xlabel="epoch", ylabel="Recall@1, unseen classes")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, fontsize=10)

    return draw_axes(draw, 4.2)


def confidence_histogram(confidences: NDArray[np.float32], changed: NDArray[np.bool_], threshold: float) -> str:
    """Histogram of the confidences of right and of wrong labels."""

    def draw(axes: Axes) -> None:
        floor = 1e-4
        bins = np.logspace(np.log10(floor), 0, 41).tolist()
        for name, mask, colour in (("right labels", ~changed, RIGHT), ("wrong labels", changed, WRONG)):
            axes.hist(
                confidences[mask].clip(floor, 1), bins=bins, color=colour, alpha=0.55, label=f"{name} ({mask.sum():,})"
            )
        axes.axvline(threshold, color="#33363b", lw=1.2, ls="--", label=f"threshold λ = {threshold:g}")
        axes.set(xscale="log", xlabel="confidence of the label given", ylabel="training images")
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=3, fontsize=10)

    return draw_axes(draw, 3.6)


def score_histogram(values: NDArray[np.floating], changed: NDArray[np.bool_], label: str) -> str:
    """Draw histograms of right and of wrong labels."""

    def draw(axes: Axes) -> None:
        known = ~np.isnan(values)
        # A few extreme values would push all others into one bar.
        low, high = np.quantile(values[known], [0.01, 0.999]) if known.any() else (0.0, 1.0)
        bins = np.linspace(low, high if high > low else low + 1, BINS + 1).tolist()
        groups = (("right labels", ~changed, RIGHT), ("wrong labels", changed, WRONG))
        for name, mask, colour in groups:
            # In the type of the edges: rounded to float32, what is clipped to the last edge may lie beyond it.
            shown = values[mask & known].astype(np.float64)
            axes.hist(
                shown.clip(bins[0], bins[-1]), bins=bins, color=colour, alpha=0.55, label=f"{name} ({len(shown):,})"
            )
        axes.set(xlabel=label, ylabel="training samples")
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=3, fontsize=10)

    return draw_axes(draw, 3.6)


def margin_curve(result: TrainingResult) -> str:
    """Plot the learnt margin after each epoch."""

    def draw(axes: Axes) -> None:
        start = result.config.options[AnchorOptions].margin
        margins = [start, *(record["margin"] for record in result.history)]
        axes.plot(range(len(margins)), margins, color=COLOURS[result.config.method], lw=2, marker="o", ms=4)
        axes.axhline(start, color=GREY, ls="--", lw=1.2)
        axes.annotate("where it starts, and the fixed margin of the others", (len(margins) - 1, start),
                      xytext=(0, 5), textcoords="offset points", ha="right", color="#55595f", fontsize=10)  # fmt: skip
        axes.set(xlabel="epoch", ylabel="margin (cosine)", ylim=(0, None))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))

    return draw_axes(draw, 3.2)


def time_bars(timings: Sequence[Timing]) -> str:
    """Draw the times of each loss as bars."""
    shades = {OURS: "#D55E00", FLOOR: "#c9ccd1"}

    def draw(axes: Axes) -> None:
        rows = list(reversed(timings))
        values = [timing.milliseconds for timing in rows]
        bars = axes.barh(range(len(rows)), values, color=[shades.get(row.implementation, "#0072B2") for row in rows])
        axes.bar_label(bars, [f"{value:,.0f} ms" for value in values], padding=4, color="#33363b", fontsize=10)
        axes.set_yticks(range(len(rows)), [f"{row.loss}\n{row.implementation}" for row in rows], fontsize=9.5)
        axes.set(xlabel="milliseconds, loss and both gradients", xlim=(0, max(values) * 1.12))
        axes.grid(axis="y", visible=False)

    return draw_axes(draw, 0.55 * len(timings) + 0.8)


def neighbour_grid(neighbours: Sequence[Neighbours]) -> str:
    """Draw queries and their nearest images by each method, framed by right or wrong."""
    methods = list(neighbours[0].found)
    count = len(neighbours[0].found[methods[0]])
    # A column for the query, then for each method a gap and its images.
    widths = [1.0] + ([0.35] + [1.0] * count) * len(methods)
    figure = Figure(figsize=(9, 9 * len(neighbours) / sum(widths) + 0.45))
    grid = figure.add_gridspec(
        len(neighbours), len(widths), width_ratios=widths, left=0.01, right=0.99, bottom=0.01, wspace=0.08, hspace=0.1,
        top=1 - 0.45 / figure.get_figheight(),
    )  # fmt: skip
    for row, neighbour in enumerate(neighbours):
        cells: list[tuple[int, NDArray[np.uint8], bool | None]] = [(0, neighbour.query, None)]
        for number, method in enumerate(methods):
            start = 2 + number * (count + 1)
            cells += [(start + rank, image, right) for rank, (image, right) in enumerate(neighbour.found[method])]
        for column, image, right in cells:
            axes = figure.add_subplot(grid[row, column])
            _show(axes, image, right)
            if row == 0 and column == 0:
                axes.set_title("query", fontsize=10, color="#33363b")
            if row == 0 and column > 0 and (column - 2) % (count + 1) == count // 2:
                method = methods[(column - 2) // (count + 1)]
                axes.set_title(METHODS[method].title, fontsize=10, color=COLOURS[method])
    return encode(figure, "png")


def _show(axes: Axes, image: NDArray[np.uint8], right: bool | None) -> None:
    pixels = image[0] if len(image) == 1 else image.transpose(1, 2, 0)
    # Grey images are white on black; on paper they read better the other way round.
    axes.imshow(pixels, cmap="gray_r", vmin=0, vmax=255)
    axes.set(xticks=[], yticks=[])
    colour = {None: "#33363b", True: RIGHT, False: WRONG}[right]
    for spine in axes.spines.values():
        spine.set(visible=True, color=colour, linewidth=2.2)
    if right is False:
        axes.plot(0.89, 0.89, "X", transform=axes.transAxes, color=WRONG, ms=8, mec="white", mew=1)
