"""The report on one data set: tables, plot, claims of the papers."""

from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter

from experiments.comparison.claim import RECALL
from experiments.comparison.claims import CLAIMS
from experiments.comparison.results import Results
from experiments.comparison.section import Picture, Section
from robustdml.reports.run_plots import GREY, draw_axes
from robustdml.retrieval import METRICS

# Okabe and Ito's colours, told apart by people with any kind of colour vision.
_COLOURS = ("#000000", "#56B4E9", "#0072B2", "#CC79A7", "#009E73", "#E69F00", "#D55E00", "#F0E442")

CAPTIONS = {
    RECALL: "Recall@1 on unseen classes, mean ± standard error over the seeds, at the last epoch",
    "mean_average_precision_at_r": "MAP@R on unseen classes",
    "clean_auc": "Clean score against the truth on the training set, AUC",
    "training_seconds": "Seconds of training, on one core where runs are side by side",
}

BESIDE = "Run for single claims"


def rows(results: Results, key: str) -> list[list[str]]:
    """Table of a quantity: a row for each entry, a column for each noise."""
    table = [["", *results.noises]]
    untouched = results.untouched(key) if key in METRICS else None
    if untouched is not None:
        table.append([results.untouched_title, *[f"{untouched:.3f}"] * len(results.noises)])
    for entry in results.entries:
        values = [results.estimate(entry.name, noise, key) for noise in results.noises]
        if any(value is not None for value in values):
            table.append([entry.title, *(str(value or "–") for value in values)])
    return table


def rows_beside(results: Results) -> list[list[str]]:
    """Table of Recall@1 of the runs that only claims need."""
    table = [["", "noise", "Recall@1"]]
    for entry, noise in results.beside_the_table:
        table.append([entry.title, noise, str(results.estimate(entry.name, noise, RECALL) or "–")])
    return table


def claim_rows(results: Results) -> list[list[str]]:
    """Table of the claims whose entries were all run."""
    table = [["paper", "claim", "its figures", "here, at", "ours", "verdict"]]
    for claim in CLAIMS:
        first, second = claim.estimates(results)
        if first is not None and second is not None:
            ours = f"{first} : {second}"
            table.append([claim.paper, claim.text, claim.figures, claim.noise, ours, claim.verdict(results)])
    return table


def sections(results: Results) -> list[Section]:
    """All sections on one data set."""
    if not results.entries:
        return []
    tables = {caption: rows(results, key) for key, caption in CAPTIONS.items()}
    found = [Section(caption, table) for caption, table in tables.items() if len(table) > 1]
    plot = Picture(dot_plot(results), "Recall@1 of every method, a dot for each noise.", CAPTIONS[RECALL] + ".")
    found.insert(0, Section("", picture=plot))
    beside, claims = rows_beside(results), claim_rows(results)
    if len(beside) > 1:
        found.append(Section(BESIDE, beside))
    if len(claims) > 1:
        text = "A claim holds if the means are apart by more than twice the standard error of their difference."
        found.append(Section("What the papers claim", claims, text))
    return found


def dot_plot(results: Results) -> str:
    """Plot Recall@1: a row for each entry, a dot with its standard error for each noise."""
    entries = results.entries

    def draw(axes: Axes) -> None:
        for noise, colour in zip(results.noises, _COLOURS * len(results.noises), strict=False):
            points = [(place, results.estimate(entry.name, noise, RECALL)) for place, entry in enumerate(entries)]
            known = [(place, value) for place, value in points if value is not None]
            axes.errorbar(
                [value.mean for _, value in known], [place for place, _ in known],
                xerr=[value.error or 0 for _, value in known], fmt="o", ms=5, lw=1.2, color=colour, label=noise,
            )  # fmt: skip
        untouched = results.untouched(RECALL)
        if untouched is not None:
            axes.axvline(untouched, color=GREY, ls=":", lw=1.6, label=results.untouched_title.lower())
        axes.set_yticks(range(len(entries)), [entry.title for entry in entries], fontsize=10)
        axes.invert_yaxis()
        axes.set(xlabel="Recall@1, unseen classes")
        axes.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        axes.figure.legend(loc="outside upper left", ncols=4, fontsize=9)

    return draw_axes(draw, 0.34 * len(entries) + 1.5)
