"""The large demo's report: one HTML file with everything in it."""

from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from string import Template
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter

from experiments.large.contenders import BY_NAME, PEER, Contender
from robustdml.methods import METHODS
from robustdml.reports.html import figure, page, table
from robustdml.reports.run_plots import GREY, draw_axes

HEAD = (
    "Training",
    "Loss of",
    "Recall@1",
    "MAP@R",
    "training, minutes",
    "a step, milliseconds",
    "extra memory, MB",
    "of it the filter's state",
)
# Okabe and Ito's colours, told apart by people with any kind of colour vision.
COLOURS = {"proxy-anchor": "#0072B2", "normalized-softmax": "#009E73", "robust": "#CC79A7"}


@dataclass(frozen=True)
class LargeOutcome:
    """Contents of the report."""

    data_line: str  # The data, in a sentence
    untouched: dict[str, float]  # `retrieval_metrics` of the features as they are
    # Results of `experiments.large.trial.run` by contender, in order.
    results: Mapping[str, dict[str, Any]]
    machine: str  # Versions and threads, in a line


def rows(outcome: LargeOutcome) -> list[list[str]]:
    """Rows of the table of results."""
    metrics = outcome.untouched
    first = ["untouched features", "–", _score(metrics, "precision_at_1"), _score(metrics, MAP_AT_R), *"––––"]
    return [first, *(_row(BY_NAME[name], result) for name, result in outcome.results.items())]


def comparisons(results: Mapping[str, dict[str, Any]]) -> list[str]:
    """Compare the peer's losses with ours: the same loss, or for robust each of the peer's."""
    peers = {BY_NAME[name].method: result for name, result in results.items() if BY_NAME[name].peer}
    lines = []
    for name, ours in results.items():
        contender = BY_NAME[name]
        against = [contender.method] if contender.method in peers else list(peers)
        for method in [] if contender.peer else against:
            peer = peers[method]
            faster = peer["step_seconds"] / ours["step_seconds"]
            lines.append(
                f"{contender.title} of ours takes {_milliseconds(ours)} ms a step, {METHODS[method].title} of {PEER} "
                f"{_milliseconds(peer)} ms: {faster:.1f} times as fast{_memory(ours, peer)}."
            )
    return lines


def render(outcome: LargeOutcome) -> str:
    """Write the report."""
    body = _BODY.substitute(
        data_line=escape(outcome.data_line),
        findings="".join(f'<p class="finding">{escape(line)}</p>' for line in comparisons(outcome.results)),
        results=table(HEAD, rows(outcome)),
        curves=figure(
            _curves(outcome),
            "Recall@1 on unseen classes against the minutes of training, a curve for each row of the table.",
            "Recall@1 on classes never seen in training, against the minutes trained so far, a point after each epoch. "
            "Dashed: the peer's loss. Thick: with a filter. Dotted: the features as they are.",
        ),
        machine=escape(outcome.machine),
    )
    return page("robustdml_ops: very many classes, half the labels wrong", body)


MAP_AT_R = "mean_average_precision_at_r"


def _row(contender: Contender, result: dict[str, Any]) -> list[str]:
    last, extra, state = result["history"][-1], result["extra_bytes"], result["filter_bytes"]
    return [
        contender.title,
        contender.whose,
        _score(last, "precision_at_1"),
        _score(last, MAP_AT_R),
        f"{result['seconds'] / 60:.1f}",
        _milliseconds(result),
        "–" if extra is None else f"{extra / 2**20:,.0f}",
        f"{state / 2**20:,.0f}" if state else "–",
    ]


def _score(metrics: Mapping[str, float], key: str) -> str:
    return f"{metrics[key]:.3f}"


def _milliseconds(result: dict[str, Any]) -> str:
    return f"{1e3 * result['step_seconds']:.1f}"


def _memory(ours: dict[str, Any], peer: dict[str, Any]) -> str:
    """Ratio of the extra memory, if it was measured."""
    if ours["extra_bytes"] is None or peer["extra_bytes"] is None:
        return ""
    return f", and {max(ours['extra_bytes'], 0) / peer['extra_bytes']:.2f} of its extra memory"


def _curves(outcome: LargeOutcome) -> str:
    def draw(axes: Axes) -> None:
        for name, result in outcome.results.items():
            contender, history = BY_NAME[name], result["history"]
            axes.plot(
                np.cumsum([record["seconds"] / 60 for record in history]),
                [record["precision_at_1"] for record in history],
                "--" if contender.peer else "-", color=COLOURS[contender.method], marker="o", ms=4,
                lw=3 if contender.filtered or contender.method == "robust" else 1.6,
                label=f"{contender.title} ({contender.whose})",
            )  # fmt: skip
        axes.axhline(outcome.untouched["precision_at_1"], color=GREY, ls=":", lw=1.6, label="untouched features")
        axes.set(xlabel="minutes of training", ylabel="Recall@1, unseen classes", xlim=(0, None))
        axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, fontsize=9)

    return draw_axes(draw, 5)


_BODY = Template("""<h1>Very many classes, half of the labels wrong</h1>
<p>$data_line</p>
$findings

<h2>The same loop with each loss</h2>
<p>All rows train the same linear layer on the same frozen features with the same wrong labels; rows of one loss have
the same batches and start from the same numbers. Each ran in a process of its own. Minutes are of training alone,
milliseconds the median over all steps, from the batch's rows to the optimiser's step. Extra memory is the peak while
training, beyond the data, the parameters, their gradients and the optimiser's moments.</p>
$results
$curves
<footer>$machine Made by <code>python -m experiments demo --large</code>.</footer>
""")
