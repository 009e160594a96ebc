"""Plots from stored results: those of the site, and ``python -m website.plots``, which draws README's picture."""

import base64
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import fmean

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from robustdml.reports.run_plots import GREY, RIGHT, STYLE, WRONG, draw_axes
from website import results
from website.repository import ROOT
from website.results import BASELINE

PICTURE = ROOT / "docs" / "robustness.png"
SYMMETRIC = {"none": 0, "symmetric:0.2": 20, "symmetric:0.5": 50}
COLOURS = {"Robust": RIGHT, BASELINE: GREY, "Proxy-Anchor": WRONG}


def drawings() -> dict[str, bytes]:
    """SVG files by address."""
    plots: dict[str, tuple[Callable[[Axes], None], float]] = {
        "noise": (partial(_noise, by_method=precision_by_noise()), 4.2),
        "ranks": (_ranks, 3.6),
    }
    return {
        f"plots/{name}.svg": base64.b64decode(draw_axes(draw, height).partition(",")[2])
        for name, (draw, height) in plots.items()
    }


def precision_by_noise() -> dict[str, list[float]]:
    """Mean MAP@R over the data sets of the suite by method, at the rates of `SYMMETRIC`."""
    found = {}
    for method in [BASELINE, *results.stored("suite")["ranks"]["MAP@R"]]:
        cells = results.cells("MAP@R", method)
        found[method] = [round(fmean(cells[cell] for cell in cells if cell[1] == noise), 4) for noise in SYMMETRIC]
    return found


def _noise(axes: Axes, by_method: dict[str, list[float]]) -> None:
    for method, values in by_method.items():
        width, style = (3, "-") if method == "Robust" else (1.4, "--" if method == BASELINE else "-")
        axes.plot(
            [*SYMMETRIC.values()], values, style, color=COLOURS.get(method), linewidth=width, marker="o", label=method
        )
    axes.set(
        xlabel="wrong labels, %, at random",
        ylabel="mean MAP@R, unseen classes",
        xticks=[*SYMMETRIC.values()],
        ylim=(0, None),
    )
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))


def _ranks(axes: Axes) -> None:
    ranks = {method: entry["rank"] for method, entry in results.stored("suite")["ranks"]["MAP@R"].items()}
    for place, (method, (rank, low, high)) in enumerate(ranks.items()):
        colour = RIGHT if method == "Robust" else GREY
        axes.plot([low, high], [place, place], color=colour, linewidth=3)
        axes.plot(rank, place, "o", color=colour)
    axes.set(xlabel="average rank by MAP@R, 95 % interval", yticks=range(len(ranks)), yticklabels=list(ranks))
    axes.invert_yaxis()


def draw_picture(path: Path = PICTURE) -> None:
    """Draw README's picture; the file holds the numbers that it shows."""
    by_method = {
        method: precision_by_noise()[method]
        for method in ("Robust", "Contrastive, whitened start", "Contrastive", "SuperLoss", "Proxy-Anchor", BASELINE)
    }
    with rc_context(STYLE):
        figure = Figure(figsize=(7.2, 3.2), layout="constrained")
        _noise(figure.subplots(), by_method)
        figure.savefig(path, dpi=110, metadata={"Comment": json.dumps(by_method)}, pil_kwargs={"optimize": True})


def picture_numbers(path: Path = PICTURE) -> dict[str, list[float]]:
    """The numbers that README's picture was drawn from."""
    with Image.open(path) as image:
        found: dict[str, list[float]] = json.loads(image.info["Comment"])
    return found


if __name__ == "__main__":
    draw_picture()
