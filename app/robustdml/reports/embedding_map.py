"""A map of embeddings in two dimensions, drawn as a picture for pages."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes

from robustdml.arrays import Array, Doubles, Labels, evenly
from robustdml.networks.models import unit_rows
from robustdml.reports.html import as_text, figure
from robustdml.reports.run_plots import GREY, LINES, WRONG, draw_axes

# Samples that are drawn, and by which the axes are found.
MOST_DRAWN = 3000
_CAPTION = (
    "Each point is a sample; what lies near is similar. The two axes are those along which the means of the classes "
    "differ most. The largest classes have colours. Two dimensions of many show distances roughly."
)


def plane(embeddings: Array, labels: Labels) -> Doubles:
    """Places of samples (N, 2) along the two principal axes of the means of classes."""
    unit = unit_rows(embeddings).numpy().astype(np.float64)
    sums = np.zeros((int(labels.max()) + 1, unit.shape[1]))
    np.add.at(sums, labels, unit)
    means = sums / np.maximum(np.bincount(labels), 1)[:, None]
    centre = unit.mean(0)
    # Of two classes the means lie on a line: the samples give the second axis.
    means = (means - centre) * np.sqrt(np.bincount(labels))[:, None]
    axes = np.linalg.svd(np.concatenate([means, 1e-3 * (unit - centre)]), full_matrices=False)[2][:2]
    # The sign of an axis is arbitrary: the largest weight is positive, so that a page stays the same.
    axes *= np.sign(axes[np.arange(len(axes)), np.abs(axes).argmax(1)])[:, None]
    places = (unit - centre) @ axes.T
    return np.pad(places, ((0, 0), (0, 2 - places.shape[1])))


def embedding_map(embeddings: Array, labels: Labels, names: Sequence[str], suspects: Sequence[int] = ()) -> str:
    """Draw samples (N, D) by class, with suspects marked, as a section of a page."""
    suspect = np.zeros(len(labels), bool)
    suspect[[*suspects]] = True
    # All suspects, as far as there is room, and others evenly.
    chosen = np.flatnonzero(suspect)[: MOST_DRAWN // 2]
    others = np.flatnonzero(~suspect)
    chosen = np.sort(np.concatenate([chosen, others[evenly(len(others), MOST_DRAWN - len(chosen))]]))
    largest = np.argsort(-np.bincount(labels), kind="stable")[: len(LINES)].tolist()
    labels, suspect = labels[chosen], suspect[chosen]
    places = plane(np.asarray(embeddings[chosen]), labels)
    colours = dict(zip(largest, LINES, strict=False))
    shade = np.array([colours.get(label, GREY) for label in labels.tolist()])

    def draw(axes: Axes) -> None:
        # Those of no colour below the others.
        for which, alpha in ((shade == GREY, 0.35), (shade != GREY, 0.7)):
            x, y = places[which].T
            axes.scatter(x, y, s=9, c=shade[which].tolist(), alpha=alpha, lw=0, rasterized=True)
        if suspect.any():
            x, y = places[suspect].T
            axes.scatter(x, y, s=34, facecolors="none", edgecolors=WRONG, lw=1, rasterized=True)
        axes.set(xticks=[], yticks=[])
        axes.set_aspect("equal", adjustable="datalim")

    # Names stand in the page: the typeface of the picture does not have all letters.
    shown = [(colour, "●", names[label]) for label, colour in colours.items()]
    shown += [(WRONG, "○", "suspects")] if suspect.any() else []
    dots = [f'<span style="color:{colour}">{mark}</span> {as_text(name)}' for colour, mark, name in shown]
    picture = figure(draw_axes(draw, 6), "Map of the embeddings.", _CAPTION)
    return f"<h2>A map of the samples</h2><p>{' &nbsp; '.join(dots)}</p>{picture}"
