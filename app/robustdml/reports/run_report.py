"""The report of one run: one HTML file with everything in it."""

from collections.abc import Callable
from functools import partial
from html import escape

import numpy as np
import torch

from robustdml.data import RetrievalData, Split
from robustdml.data.named import NAMED
from robustdml.evaluation import JUDGED, untouched_title
from robustdml.filters.options import NO_FILTER
from robustdml.methods import METHODS
from robustdml.reports.html import figure, page, picture, searched, table
from robustdml.reports.left_out import left_out_line
from robustdml.reports.run_plots import History, curves, kappa_boxes, score_histogram
from robustdml.retrieval import METRICS
from robustdml.run.audited_labels import describe
from robustdml.run.evidence import CAPTION, HEAD, rows_of
from robustdml.train import TrainingResult
from robustdml_ops.ops import otsu_threshold

FIGURES = {
    **METRICS,
    "clean_auc": "score of right against wrong labels, AUC",
    "filter_precision": "right labels among the kept",
    "filter_kept": "kept by the filter",
    "corrected_share": "under another label",
    "corrected_right": "right ones among those labels",
    "confidence_accuracy": "confidence head, accuracy on true labels",
    "margin": "learnt margin",
    "training_seconds": "seconds of training",
}
# Scores by which labels are doubted, low for wrong ones; the first that a run has is used.
DOUBTED, MOST_DOUBTED = ("log_p_clean", "label_quality", "confidence", "weight"), 24
EXPLAINED = (
    "Each test sample looks for its most similar ones among all other test samples. Recall@1: the share of samples of "
    "which the first that is found is of their class; Recall@4: one of the first four. MAP@R looks at as many as the "
    "class has other samples, and a wrong one costs the more, the further in front it is. 1 is perfect."
)


def render_run(result: TrainingResult, data: RetrievalData | None = None) -> str:
    """Write the report of a run, with pictures where its images are given."""
    config, history = result.config, result.history
    title, used = METHODS[config.method].title, result.summary["filter"]
    title += f" with {used}" if used != NO_FILTER else ""
    untouched = untouched_title(config.backbone)
    recall = curves(
        {title: (history, "precision_at_1")},
        "Recall@1, test classes",
        level=(untouched.lower(), result.summary["untouched"]["precision_at_1"]),
    )
    summary, harm = result.summary, result.summary["below_untouched"]
    figures = [
        [text, f"{summary[key]:.3f}", f"{summary['untouched'][key]:.3f}" if key in summary["untouched"] else ""]
        for key, text in FIGURES.items()
        if summary.get(key) is not None
    ]
    sections = [
        f"<h1>{escape(title)}</h1>",
        f"<p>{escape(_data_line(result))}</p>",
        f'<p class="finding">{escape(harm)}</p>' if harm else "",
        f"<p>{escape(summary['still_rising'])}</p>" if summary["still_rising"] else "",
        table(["", "last epoch", untouched.lower()], figures),
        left_out_line(result.left_out),
        f"<p>{escape(EXPLAINED)}</p>",
        *_chosen(result),
        "<h2>Retrieval</h2>",
        figure(
            recall,
            "Recall@1 against the epoch.",
            "Recall@1 on the test classes after each epoch; the dotted line is that of the untouched features.",
        ),
        figure(
            curves({title: (history, "loss")}, "loss", percent=False),
            "Loss against the epoch.",
            "Mean loss of the steps of each epoch.",
        ),
        *_retrieved(result, data),
        *_doubtful(result, data),
    ]
    drawn = [draw(result) for name, draw in DRAWINGS.items() if name in result.scores or name in history[-1]]
    if drawn:
        sections += ["<h2>Which labels are believed</h2>", *drawn]
    return page(f"robustdml_ops: {title}", "\n".join(sections) + "\n")


def _chosen(result: TrainingResult) -> list[str]:
    chosen = result.summary["chosen"]
    if chosen is None:
        return []
    widths = "; ".join(
        f"{width} {found[JUDGED[1]]:.3f}" for width, found in chosen["start"]["measured"].items() if width
    )
    start = f"The layer starts with {chosen['start']['width']} principal axes" + (
        f" (MAP@R by width: {widths})" if widths else ""
    )
    return [
        "<h2>What was chosen</h2>",
        f"<p>{escape(chosen['advice'])}</p>",
        table(HEAD, rows_of(chosen)) if chosen["contestants"] else "",
        f"<p>{escape(CAPTION)} {escape(start)}; {chosen['steps']:,} steps of training.</p>",
    ]


def test_labels_note(result: TrainingResult) -> str:
    """Say that wrong labels among the test samples lower the figures, or that there were no other classes."""
    if result.summary["test"]["trained_on"]:
        return "Tested on the classes that it was trained on: the figures say little about others."
    if result.summary["noise"] != "none" or result.summary["data"]["name"] in NAMED:
        return ""
    return "The labels of the test samples are used as they are: wrong ones, which an audit finds, lower the figures."


def _retrieved(result: TrainingResult, data: RetrievalData | None) -> list[str]:
    """Some test samples with what they found first."""
    if data is None or not data.test.is_images:
        return []
    test = data.test
    rows = []
    for query, *found in result.retrieved.tolist():
        right = ["searched", *("right" if test.labels[row] == test.labels[query] else "wrong" for row in found)]
        rows.append(searched(_pictures(test, [query, *found], right)))
    return ["<h2>Examples</h2><p>Test samples, each with the most similar others.</p>", *rows]


def _doubtful(result: TrainingResult, data: RetrievalData | None) -> list[str]:
    """The training samples whose labels are believed least."""
    score = next((result.scores[name] for name in DOUBTED if name in result.scores), None)
    if data is None or not data.train.is_images or score is None or len(score) != len(data.train):
        return []
    rows = [row for row in np.argsort(score)[:MOST_DOUBTED].tolist() if not np.isnan(score[row])]
    shown = "".join(_pictures(data.train, rows, [f"{score[row]:.3g}" for row in rows]))
    return [f'<h2>The most doubtful labels</h2><div class="found">{shown}</div>']


def _pictures(split: Split, rows: list[int], said: list[str]) -> list[str]:
    shown = ((split.class_names[split.labels[row]], picture(split.inputs[row])) for row in rows)
    return [figure(source, name, f"{text}: {name}") for (name, source), text in zip(shown, said, strict=True)]


def _data_line(result: TrainingResult) -> str:
    data, config = result.summary["data"], result.config
    test = result.summary["test"]
    audited = f" {describe(data['audited'])}" if "audited" in data else ""
    note, which = test_labels_note(result), "the same" if test["trained_on"] else "other"
    labels = "labels as they are"
    if result.changed.any():
        labels = f"{result.changed.sum():,} of them with a wrong label (noise {result.summary['noise']})"
    alone = f", without {test['alone']:,} that are alone in their class" if test["alone"] else ""
    return (
        f"{data['name']}: {data['train'][0]:,} training samples of {data['classes']:,} classes, {labels}; seed "
        f"{config.seed}, {len(result.history)} epochs, {result.summary['training_seconds']:.1f} s of training. Tested "
        f"on {test['samples']:,} samples of {test['classes']:,} {which} classes{alone}.{audited} {note}"
    )


def _choice(result: TrainingResult) -> str:
    used = result.summary["filter"]
    if not result.changed.any():
        return figure(
            curves({used: (result.history, "filter_kept")}, "kept by the filter"),
            "Share of the kept samples against the epoch.",
            "Share of the training samples that the filter kept, by epoch. Which labels are wrong is not known here.",
        )
    without = ("without a filter", 1 - float(result.changed.mean()))
    return figure(  # PRISM, Fig. 2
        curves({used: (result.history, "filter_precision")}, "right labels among the kept", level=without),
        "Share of right labels among the kept against the epoch.",
        "Share of right labels among the samples that the filter kept, by epoch.",
    )


# The axis of a histogram of scores, its alternative text and its caption.
SCORES = {
    "log_p_clean": (
        "log P_clean",
        "log P_clean",
        "What the filter held of each label in the last epoch: the more to the right, the more probably right. The "
        "filter was never told which labels are wrong.",
    ),
    "label_quality": (
        "probability that the label is right",
        "probabilities",
        "Probability that each label is right, by the features before training. Labels from one half on were trained "
        "on. Nothing was told of which are wrong.",
    ),
    "detector_loss": (
        "loss of the detector",
        "losses, with a threshold",
        "Loss of each training sample by which ProcSim tells wrong labels, in the last epoch. In training the "
        "threshold is found anew in each batch; shown is that of the whole epoch.",
    ),
    "weight": ("weight", "weights", "Weight of each training sample in the last epoch."),
    "confidence": (
        "confidence of the label given",
        "confidences",
        "Confidence of each given label by the confidence head.",
    ),
}


def _histogram(result: TrainingResult, name: str, cut: tuple[str, float] | None = None) -> str:
    label, what, caption = SCORES[name]
    alternative = f"{'Two histograms' if result.changed.any() else 'Histogram'} of {what}, {_of_labels(result)}."
    return figure(score_histogram(result.scores[name], result.changed, label, cut), alternative, caption)


def _of_labels(result: TrainingResult) -> str:
    return "of right and of wrong labels" if result.changed.any() else "of all labels"


def _kappa(result: TrainingResult) -> str:
    return figure(
        kappa_boxes(result.history),
        "Box plots of the concentration κ of the classes against the epoch.",
        "Concentration of the classes' von Mises–Fisher distributions: boxes hold the middle half, whiskers reach the "
        "extremes.",
    )


def _detector(result: TrainingResult) -> str:
    losses = result.scores["detector_loss"]
    cut = otsu_threshold(torch.from_numpy(losses[~np.isnan(losses)]))
    threshold = ("Otsu's threshold", float(cut.threshold)) if bool(cut.found) else None
    return _histogram(result, "detector_loss", threshold)


def _right_and_wrong(history: History, name: str) -> dict[str, tuple[History, str]]:
    if not any(f"{name}_wrong" in record for record in history):
        return {"labels as they are": (history, f"{name}_right")}
    return {f"{which} labels": (history, f"{name}_{which}") for which in ("right", "wrong")}


def _sigma(result: TrainingResult) -> str:
    return figure(
        curves(_right_and_wrong(result.history, "sigma"), "mean confidence σ", percent=False),
        f"Mean confidence {_of_labels(result)} against the epoch.",
        f"Mean confidence σ that samples {_of_labels(result)} were given.",
    )


def _weights(result: TrainingResult) -> str:
    history = result.history
    lines = {
        "mean over the classes (MAW)": (history, "maw"),
        "deviation among the classes (SDAW)": (history, "sdaw"),
        **_right_and_wrong(history, "weight"),
    }
    return figure(  # BSPML, Eq. 14
        curves(lines, "average weight", percent=False),
        "Average weights against the epoch.",
        f"Mean and standard deviation of the classes' average weights, and the mean weights {_of_labels(result)}.",
    ) + _histogram(result, "weight")


# By the quantity that they need, in the scores or in the history.
DRAWINGS: dict[str, Callable[[TrainingResult], str]] = {
    "filter_kept": _choice,
    "log_p_clean": partial(_histogram, name="log_p_clean"),
    "label_quality": partial(_histogram, name="label_quality"),
    "kappa_median": _kappa,
    "detector_loss": _detector,
    "sigma": _sigma,
    "weight": _weights,
    "confidence": partial(_histogram, name="confidence"),
}
