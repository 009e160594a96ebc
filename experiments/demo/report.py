"""The demo's report: one HTML file with everything in it."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from string import Template

from experiments.demo import plots
from experiments.demo.timing import FLOOR, OURS, Shape, Timing
from experiments.summary import mean_and_error
from robustdml.evaluation import JUDGED, TITLE, below_untouched
from robustdml.methods import METHODS
from robustdml.methods.classes import AnchorOptions, SmoothOptions
from robustdml.reports.html import figure, page, table
from robustdml.reports.run_report import EXPLAINED
from robustdml.run.result import TrainingResult


@dataclass(frozen=True)
class DemoOutcome:
    """Contents of the report."""

    data_line: str  # The data, in a sentence
    noise_rate: float  # Rate of wrong training labels
    frozen_metrics: dict[str, float]  # `retrieval_metrics` of the frozen features alone
    runs: dict[str, list[TrainingResult]]  # By method
    neighbours: list[plots.Neighbours]  # Some queries with their nearest images
    shape: Shape  # Sizes of the timed losses
    timings: list[Timing]  # Times of the losses
    machine: str  # Versions, backend and cores, in a line
    seconds: float  # Time of the whole demo


def render(outcome: DemoOutcome) -> str:
    """Write the report."""
    smooth = outcome.runs["smooth-proxy-anchor"][0]
    auc = mean_and_error([run.summary["confidence_auc"] for run in outcome.runs["smooth-proxy-anchor"]])
    adaptive, robust = outcome.runs["adaptive-proxy-anchor"][0], outcome.runs["robust"][0]
    threshold = smooth.config.options[SmoothOptions].threshold
    sections = {
        "learning": figure(
            plots.learning_curves(outcome.runs, outcome.frozen_metrics["precision_at_1"]),
            "Recall@1 on the test classes against the epoch, one curve a method.",
            "Recall@1 on classes never seen in training, after each epoch: mean over the seeds, shaded from the worst "
            "seed to the best. The dotted line is the frozen backbone without any embedding layer.",
        ),
        "confidences": figure(
            plots.confidence_histogram(smooth.scores["confidence"], smooth.changed, threshold),
            "Two histograms of confidences: right labels lie mostly to the right, wrong ones to the left.",
            "Confidence of the label each training image was given, seed 0. The confidence head was never told which "
            f"labels are wrong; it tells them from right ones with an AUC of {auc}. Left of the dashed line an image "
            "counts as a negative of the class its label names. Values below 0.0001 are in the first bar.",
        ),
        "scores": believed_labels(robust),
        "margins": figure(
            plots.margin_curve(adaptive),
            "The learnt margin against the epoch.",
            "The one margin that Adaptive Proxy-Anchor learns along with the proxies, from "
            f"{adaptive.config.options[AnchorOptions].margin:g} to {adaptive.history[-1]['margin']:.2f}.",
        ),
        "neighbours": figure(
            plots.neighbour_grid(outcome.neighbours),
            "Rows of character images: a query, and the nearest images by each method, framed by right or wrong.",
            "Test images picked at random (not for their looks), and their nearest neighbours among all other test "
            "images, best first, seed 0. Green frame: same character. Red frame and cross: another one.",
        ),
        "times": figure(
            plots.time_bars(outcome.timings),
            "Bars of the milliseconds that each implementation takes.",
            f"Loss and both gradients in float32 for {outcome.shape.classes:,} classes, embeddings of size "
            f"{outcome.shape.size}, batches of {outcome.shape.batch}: medians, taken in turns on this machine. Values "
            "and gradients were compared before anything was timed. The floor is the three matrix products alone.",
        ),
    }
    body = _BODY.substitute(
        data_line=escape(outcome.data_line),
        share=f"{outcome.noise_rate:.0%}",
        finding=escape(_finding(outcome)),
        explained=escape(EXPLAINED),
        results=_results_table(outcome),
        harm="".join(f'<p class="finding">{escape(line)}</p>' for line in harm(outcome)),
        time_table=_time_table(outcome.timings),
        machine=escape(outcome.machine),
        minutes=f"{outcome.seconds / 60:.1f}",
        **sections,
    )
    return page("robustdml_ops: training with wrong labels", body)


# Titles of the axis, by name of the filter's score.
_HELD = {"log_p_clean": "log P_clean", "label_quality": "probability that the label is right"}


def believed_labels(robust: TrainingResult) -> str:
    """Histogram of the scores of the filter that robust has chosen."""
    held = next((name for name in _HELD if name in robust.scores), None)
    if held is None:
        return "<p>On classes left out of a trial, the robust method did best without a filter.</p>"
    return figure(
        plots.score_histogram(robust.scores[held], robust.changed, _HELD[held]),
        "Histograms of the probability that a label is right: right labels at the right end, wrong ones at the left.",
        "Probabilities that the robust method gave in the last epoch, seed 0. It finds a cut without the rate of wrong "
        f"labels, and keeps the images above it: {robust.summary['filter_kept']:.0%} of all, "
        f"{robust.summary['filter_precision']:.1%} of them with a right label.",
    )


def _finding(outcome: DemoOutcome) -> str:
    recalls = {
        method: [run.summary["precision_at_1"] for run in outcome.runs[method]] for method in ("proxy-anchor", "robust")
    }
    plain, robust = recalls["proxy-anchor"], recalls["robust"]
    gain = 100 * (statistics.fmean(robust) - statistics.fmean(plain))
    more = "more" if gain >= 0 else "less"
    return (
        f"The robust method finds the right character first for {statistics.fmean(robust):.1%} of the queries, "
        f"Proxy-Anchor for {statistics.fmean(plain):.1%}: {abs(gain):.1f} points {more}."
    )


def harm(outcome: DemoOutcome) -> list[str]:
    """A sentence for each method whose mean over the seeds is below the untouched features."""
    means = {
        method: {key: statistics.fmean(run.summary[key] for run in runs) for key in JUDGED}
        for method, runs in outcome.runs.items()
    }
    told = {METHODS[method].title: below_untouched(mean, outcome.frozen_metrics) for method, mean in means.items()}
    return [f"{title}: {sentence}" for title, sentence in told.items() if sentence]


def _results_table(outcome: DemoOutcome) -> str:
    frozen = outcome.frozen_metrics
    rows = [
        [TITLE, f"{frozen['precision_at_1']:.3f}", f"{frozen['recall_at_4']:.3f}",
         f"{frozen['mean_average_precision_at_r']:.3f}", "–", "–"]
    ]  # fmt: skip
    for method, runs in outcome.runs.items():
        columns = [
            mean_and_error([run.summary[key] for run in runs])
            for key in ("precision_at_1", "recall_at_4", "mean_average_precision_at_r")
        ]
        aucs = [run.summary["clean_auc"] for run in runs if run.summary["clean_auc"] is not None]
        seconds = sum(run.summary["training_seconds"] for run in runs) / len(runs)
        rows.append([METHODS[method].title, *columns, mean_and_error(aucs), f"{seconds:.1f} s"])
    return table(
        ["Training", "Recall@1", "Recall@4", "MAP@R", "AUC, right against wrong labels", "time of a run"], rows
    )


def _time_table(timings: Sequence[Timing]) -> str:
    ours = {timing.loss: timing.milliseconds for timing in timings if timing.implementation == OURS}
    floor = {timing.loss: timing.milliseconds for timing in timings if timing.implementation == FLOOR}
    rows = [
        [
            timing.loss,
            timing.implementation,
            f"{timing.milliseconds:,.1f} ms",
            f"{timing.milliseconds / ours[timing.loss]:.1f} ×",
            f"{timing.milliseconds / floor[timing.loss]:.2f} ×",
        ]
        for timing in timings
    ]
    return table(["Loss", "Implementation", "Median", "of ours", "of the floor"], rows)


_BODY = Template("""<h1>Training an embedding when $share of the labels are wrong</h1>
<p>$data_line</p>
<p class="finding">$finding</p>

<h2>Retrieval on unseen classes</h2>
<p>$explained All methods train the same linear layer on the
same frozen features, with the same wrong labels; means ± standard errors over the seeds, at the last epoch.</p>
$results
$harm

<h2>Learning curves</h2>
$learning

<h2>Which labels are believed</h2>
$scores
$confidences

<h2>A margin that is learnt</h2>
$margins

<h2>What is found</h2>
$neighbours

<h2>Time of the loss</h2>
$times
<div class="times">$time_table</div>

<footer>
<p>Made by <code>python -m experiments demo</code> in $minutes minutes. $machine</p>
<p>All methods, against several kinds of wrong labels: <code>python -m experiments compare</code>. On your own images:
<code>robustdml train --data FOLDER</code>.</p>
</footer>
""")
