"""The report of one run: one HTML file with everything in it."""

import numpy as np

from robustdml.config import WHITENED
from robustdml.data import RetrievalData, Split
from robustdml.data.image_files import shown
from robustdml.data.named import NAMED
from robustdml.errors import counted
from robustdml.evaluation import JUDGED, untouched_title
from robustdml.filters.options import NO_FILTER
from robustdml.methods import METHODS
from robustdml.reports.embedding_map import embedding_map
from robustdml.reports.html import as_text, figure, left_out_line, page, picture, searched, table
from robustdml.reports.run_plots import curve
from robustdml.retrieval import METRICS
from robustdml.run.audited_labels import describe
from robustdml.run.evidence import CAPTION, HEAD, rows_of
from robustdml.run.result import TrainingResult

FIGURES = {
    **METRICS,
    "clean_auc": "score of right against wrong labels, AUC",
    "filter_precision": "right labels among the kept",
    "filter_kept": "kept by the filter",
    "margin": "learnt margin",
    "own_probability": "probability of the own class, in training",
    "own_margin": "margin to the nearest other class, in training",
    "own_rank": "rank of the own class, in training",
    "hardest_positive": "lowest cosine in the own class, in training",
    "hardest_negative": "highest cosine with another class, in training",
    "training_seconds": "seconds of training",
}
# Scores by which labels are doubted, low for wrong ones; the first that a run has is used.
DOUBTED, MOST_DOUBTED = ("log_p_clean", "label_quality", "confidence"), 24
LARGEST = 224  # Side of a picture in pixels
EXPLAINED = (
    "Each test sample looks for its most similar ones among all other test samples. Recall@1: the share of samples of "
    "which the first that is found is of their class; Recall@4: one of the first four. MAP@R looks at as many as the "
    "class has other samples, and a wrong one costs the more, the further in front it is. 1 is perfect."
)


def render_run(result: TrainingResult, data: RetrievalData) -> str:
    """Write the report of a run, with pictures where its data are images."""
    config, history = result.config, result.history
    title, used = METHODS[config.method].title, result.summary["filter"]
    title += f" with {used}" if used != NO_FILTER else ""
    untouched = untouched_title(config.backbone)
    summary, harm = result.summary, result.summary["below_untouched"]
    before = (untouched.lower(), summary["untouched"]["precision_at_1"])
    curves = []
    if len(history) > 1 or config.epochs == 1:  # a run that needs no training ends after one epoch
        curves = [
            "<h2>Retrieval</h2>",
            figure(
                curve(history, "precision_at_1", title, "Recall@1, test classes", level=before),
                "Recall@1 against the epoch.",
                "Recall@1 on the test classes after each epoch; the dotted line is that of the untouched features.",
            ),
            figure(
                curve(history, "loss", title, "loss", percent=False),
                "Loss against the epoch.",
                "Mean loss of the steps of each epoch.",
            ),
        ]
    sections = [
        f"<h1>{as_text(title)}</h1>",
        f"<p>{as_text(_data_line(result))}</p>",
        f'<p class="finding">{as_text(harm)}</p>' if harm else "",
        f"<p>{as_text(summary['still_rising'])}</p>" if summary["still_rising"] else "",
        table(["", "last epoch", untouched.lower()], figures_of(result)),
        left_out_line(result.left_out, result.notes),
        f"<p>{as_text(EXPLAINED)}</p>",
        *_chosen(result),
        *curves,
        *_retrieved(result, data),
        *_doubtful(result, data),
        embedding_map(result.embeddings, data.test.labels[result.mapped], data.test.class_names),
    ]
    return page(f"robustdml_ops: {title}", "\n".join(sections) + "\n")


def figures_of(result: TrainingResult) -> list[list[str]]:
    """Rows of a table: name of the metric, its value after the last epoch, and of the untouched features."""
    summary, before = result.summary, result.summary["untouched"]
    return [
        [text, f"{summary[key]:.3f}", f"{before[key]:.3f}" if key in before else ""]
        for key, text in FIGURES.items()
        if summary.get(key) is not None
    ]


def _chosen(result: TrainingResult) -> list[str]:
    chosen = result.summary["chosen"]
    if chosen is None:
        return []
    whitened = ", whitened within classes" if result.config.layer_start == WHITENED else ""
    if "trials" in chosen:  # between two stages
        return ["<h2>What was chosen</h2>", f"<p>{as_text(chosen['advice'])}</p>"]
    start = f" The layer starts with {chosen['start']['width']} principal axes{whitened}."
    start = "" if chosen["kept_features"] else start
    return [
        "<h2>What was chosen</h2>",
        f"<p>{as_text(chosen['advice'])}</p>",
        table(HEAD, rows_of(chosen)) if chosen["contestants"] else "",
        f"<p>{as_text(CAPTION + start)} {chosen['steps']:,} steps of training.</p>",
    ]


def test_labels_note(result: TrainingResult) -> str:
    """Caveats of the figures: wrong labels among the test samples, a single class, or classes that were trained on."""
    test, audited = result.summary["test"], result.summary["data"].get("audited", {})
    if test["classes"] == 1:
        return "All test samples are of one class, so that whatever is found is right: the figures say nothing."
    if test["trained_on"] == test["classes"]:
        return "Tested on the classes that it was trained on: the figures say little about others."
    if test["trained_on"]:
        told = f"{test['trained_on']:,} of {test['classes']:,} test classes were trained on, which raises the figures"
        unseen = [f"{METRICS[key]} is {test['unseen'][key]:.3f}" for key in JUDGED] if test["unseen"] else []
        return f"{told}; of samples of the others {' and '.join(unseen)}." if unseen else f"{told}."
    if result.summary["noise"] != "none" or result.summary["data"]["name"] in NAMED or audited.get("test_dropped"):
        return ""
    return "The labels of the test samples are used as they are: wrong ones, which an audit finds, lower the figures."


def _retrieved(result: TrainingResult, data: RetrievalData) -> list[str]:
    """Some test samples with their nearest results."""
    if not data.test.is_images:
        return []
    test = data.test
    rows = []
    for query, *found in result.retrieved.tolist():
        right = ["searched", *("right" if test.labels[row] == test.labels[query] else "wrong" for row in found)]
        rows.append(searched(_pictures(test, [query, *found], right)))
    return ["<h2>Examples</h2><p>Test samples, each with the most similar others.</p>", *rows]


def _doubtful(result: TrainingResult, data: RetrievalData) -> list[str]:
    """The training samples whose labels are believed least."""
    score = next((result.scores[name] for name in DOUBTED if name in result.scores), None)
    if not data.train.is_images or score is None or len(score) != len(data.train):
        return []
    rows = [row for row in np.argsort(score)[:MOST_DOUBTED].tolist() if not np.isnan(score[row])]
    shown = "".join(_pictures(data.train, rows, [f"{round(float(score[row]), 3) + 0:.3f}" for row in rows]))
    return [f'<h2>The most doubtful labels</h2><div class="found">{shown}</div>']


def _pictures(split: Split, rows: list[int], said: list[str]) -> list[str]:
    pictures = ("" if one is None else picture(one) for one in shown(split.inputs, rows, LARGEST))
    names = (split.class_names[split.labels[row]] for row in rows)
    shown_with = zip(pictures, names, said, strict=True)
    return [figure(source, name, f"{text}: {name}") for source, name, text in shown_with]


def _data_line(result: TrainingResult) -> str:
    data, config = result.summary["data"], result.config
    test = result.summary["test"]
    audited = f" {describe(data['audited'])}" if "audited" in data else ""
    note = test_labels_note(result)
    which = {0: "other ", test["classes"]: "the same "}.get(test["trained_on"], "")
    known = f", {test['trained_on']:,} of them trained on" if not which else ""
    labels = "labels as they are"
    if result.changed.any():
        labels = f"{result.changed.sum():,} of them with a wrong label (noise {result.summary['noise']})"
    alone = f", without {test['alone']:,} that are alone in their class" if test["alone"] else ""
    classes = counted(test["classes"], f"{which}class", f"{which}classes")
    tested = f"{counted(test['samples'], 'sample')} of {classes}{known}"
    return (
        f"{data['name']}: {data['train'][0]:,} training samples of {data['classes']:,} classes, {labels}; seed "
        f"{config.seed}, {counted(len(result.history), 'epoch')}, {result.summary['training_seconds']:.1f} s of "
        f"training. Tested on {tested}{alone}.{audited} {note}"
    )
