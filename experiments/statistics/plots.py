"""The plot of the average ranks."""

from matplotlib.axes import Axes

from experiments.statistics.ranks import Ranks
from experiments.statistics.suite import FOCUS, Suite
from robustdml.reports.run_plots import GREY, draw_axes

_OURS, _OTHERS = "#D55E00", "#0072B2"


def rank_plot(suite: Suite, ranks: Ranks, metric: str) -> str:
    """Draw the average ranks with their intervals, best on top, and the critical difference."""
    titles = {entry.name: entry.title for entry in suite.entries}

    def draw(axes: Axes) -> None:
        for place, row in enumerate(ranks.order):
            estimate = ranks.interval(row)
            colour = _OURS if ranks.names[row] == FOCUS else _OTHERS
            ends = [estimate.mean if end is None else end for end in (estimate.low, estimate.high)]
            axes.plot(ends, [place, place], color=colour, lw=2.5, solid_capstyle="butt")
            axes.plot(estimate.mean, place, "o", ms=7, color=colour)
        if ranks.by_data.shape[0] > 1:
            best = float(ranks.average.min())
            axes.plot([best, best + ranks.critical_difference], [-0.9, -0.9], color=GREY, lw=3, solid_capstyle="butt",
                      label="critical difference (Nemenyi, 5 %), from the best on")  # fmt: skip
            axes.figure.legend(loc="outside upper left", fontsize=10)
        axes.set_yticks(range(len(ranks.names)), [titles[ranks.names[row]] for row in ranks.order])
        axes.set_ylim(len(ranks.names) - 0.5, -1.5)
        axes.set(xlabel=f"average rank by {metric}, 1 is the best", xlim=(0.7, len(ranks.names) + 0.3))

    return draw_axes(draw, 0.36 * len(ranks.names) + 1.6)
