"""README's table and chart of speed: ``python -m website.readme`` draws the chart."""

import argparse
import json
from pathlib import Path
from typing import NamedTuple

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from robustdml.reports.run_plots import GREY, RIGHT, STYLE
from website import bench_tables, gpu_tables
from website.bench_tables import seconds
from website.repository import ROOT
from website.tables import table

CHART = ROOT / "docs" / "speed.png"
PROCESSOR, CARD = "CPU", "H200"
ON_CPU = {
    "softmax, 200 classes": bench_tables.SMALL["softmax"],
    "Proxy-Anchor, 200 classes": bench_tables.SMALL["Proxy-Anchor"],
    "softmax, 10⁵ classes": bench_tables.STEPS["softmax, 10⁵ classes"],
    "Proxy-Anchor, 10⁵ classes": bench_tables.STEPS["Proxy-Anchor, 10⁵ classes"],
}
ON_CARD = {
    "softmax, 10⁵ classes": ("softmax", gpu_tables.SMALL),
    "Proxy-Anchor, 10⁵ classes": ("proxy-anchor", gpu_tables.SMALL),
    "softmax, 10⁶ classes": ("softmax", gpu_tables.LARGE),
    "Proxy-Anchor, 10⁶ classes": ("proxy-anchor", gpu_tables.LARGE),
}


class Step(NamedTuple):
    """A step of a loss with both gradients, beside that of the fastest other that was measured."""

    device: str
    title: str
    ours: float  # seconds
    rival: str
    theirs: float
    memory: tuple[float, float] | None  # bytes beyond inputs and gradients, here and there; None: not measured


def steps() -> list[Step]:
    """The steps of README, from stored results."""
    found = []
    for title, (group, what) in ON_CPU.items():
        ours, others = bench_tables.contenders(group, what)
        rival = min(others, key=others.__getitem__)
        assert ours is not None
        found.append(Step(PROCESSOR, title, ours["median_s"], rival, others[rival], None))
    rows = gpu_tables.rows()
    for title, (family, shape) in ON_CARD.items():
        ours = rows["steps", family, shape, "bfloat16", gpu_tables.OURS]
        others = {
            key[-1]: row
            for key, row in rows.items()
            if key[:4] == ("steps", family, shape, "bfloat16")
            and "step_s" in row
            and not key[-1].startswith("robustdml")
        }
        rival = min(others, key=lambda name: others[name]["step_s"])
        memory = (ours["beyond_bytes"], others[rival]["beyond_bytes"])
        found.append(Step(CARD, title, ours["step_s"], f"`{rival}`", others[rival]["step_s"], memory))
    return found


def speed() -> str:
    """README's table."""
    lines = []
    for step in steps():
        memory = "–" if step.memory is None else " / ".join(f"{size / 1e9:.2f} GB" for size in step.memory)
        rival = f"{step.rival}, {seconds(step.theirs)}"
        lines.append([step.device, step.title, seconds(step.ours), rival, f"{step.theirs / step.ours:.2f}×", memory])
    return table(["", "loss", "here", "fastest rival measured", "faster by", "memory, here / rival"], lines)


def numbers() -> list[list[object]]:
    """The numbers of the chart."""
    return [[step.device, step.title, round(step.ours, 7), step.rival, round(step.theirs, 7)] for step in steps()]


def drawn_numbers(path: Path = CHART) -> list[list[object]]:
    """The numbers that the chart was drawn from."""
    with Image.open(path) as image:
        found: list[list[object]] = json.loads(image.info["Comment"])
    return found


def draw(path: Path = CHART) -> None:
    """Draw the chart; the file holds the numbers that it shows."""
    with rc_context(STYLE):
        figure = Figure(figsize=(7.2, 2.6), layout="constrained")
        for axes, device in zip(figure.subplots(1, 2), (PROCESSOR, CARD), strict=True):
            _bars(axes, device, [step for step in steps() if step.device == device])
        figure.savefig(path, dpi=110, metadata={"Comment": json.dumps(numbers())}, pil_kwargs={"optimize": True})


def _bars(axes: Axes, device: str, shown: list[Step]) -> None:
    """Times of a device on a logarithmic scale."""
    for place, step in enumerate(shown):
        for offset, time, colour, who in (
            (-0.2, step.ours, RIGHT, "robustdml_ops"),
            (0.2, step.theirs, GREY, step.rival.strip("`")),
        ):
            axes.barh(place + offset, 1e3 * time, 0.36, color=colour)
            axes.text(1e3 * time * 1.1, place + offset, f"{seconds(time)} {who}", va="center", fontsize=7)
    axes.set(xscale="log", xlabel="ms a step, logarithmic", title=device, yticks=range(len(shown)))
    axes.set_yticklabels([step.title for step in shown], fontsize=8)
    times = [1e3 * time for step in shown for time in (step.ours, step.theirs)]
    axes.set_xlim(min(times) / 2, max(times) * (max(times) / min(times)) ** 0.5 * 20)
    axes.invert_yaxis()


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    draw()
