import base64
import re
from dataclasses import replace

import numpy as np
import pytest
import torch

from robustdml.config import TrainingConfig
from robustdml.filters.filter import QUANTILES
from robustdml.filters.options import FilterOptions
from robustdml.methods import METHODS
from robustdml.reports import run_plots
from robustdml.reports.run_report import render_run
from robustdml.run.sample_log import SampleLog
from robustdml.train import train

FAST = TrainingConfig(epochs=3, batch_size=32, embedding_size=8)


def svg(address):
    """The picture behind a data: address, as text."""
    media, data = address.split(";base64,")
    assert media == "data:image/svg+xml"
    text = base64.b64decode(data).decode()
    assert text.rstrip().endswith("</svg>")
    return text


def pictures(page):
    return {alternative: svg(source) for source, alternative in re.findall(r'<img src="([^"]+)" alt="([^"]+)">', page)}


@pytest.mark.parametrize(
    ("config", "shown"),
    [
        (replace(FAST, method="proxy-anchor"), []),
        (replace(FAST, filter=replace(METHODS["robust"].filter, on_trial=False)),
         ["Share of right labels", "histograms of log P_clean", "Box plots of the concentration"]),
        (replace(FAST, filter=FilterOptions("audit")), ["Share of right labels", "histograms of probabilities"]),
        (replace(FAST, method="smooth-proxy-anchor"), ["histograms of confidences"]),
        (replace(FAST, method="soft-triple", filter=FilterOptions("prism-average")),
         ["Share of right labels", "histograms of log P_clean"]),
        (replace(FAST, method="bspml"), ["Average weights", "histograms of weights"]),
        (replace(FAST, method="procsim"), ["histograms of losses", "Mean confidence"]),
    ],
)  # fmt: skip
def test_reports_show_what_the_run_has(noisy, config, shown):
    result = train(config, noisy, device="cpu")
    page = render_run(result)
    found = pictures(page)
    assert len(found) == 1 + len(shown)
    assert all(any(text in alternative for alternative in found) for text in shown)
    assert f"<td>{result.summary['precision_at_1']:.3f}</td>" in page
    assert not re.search(r"https?://(?!www\.w3\.org)", page)
    assert "72 of them with a wrong label (noise symmetric:0.3)" in page


def test_nothing_is_called_right_where_nobody_knows(clusters):
    """Labels of a user's own, of which some may be wrong: no share of right ones is told."""
    for config in (
        replace(FAST, filter=replace(METHODS["robust"].filter, on_trial=False)),
        replace(FAST, method="procsim"),
        replace(FAST, method="bspml"),
    ):
        result = train(config, clusters, device="cpu")
        page = render_run(result)
        assert "252 training samples of 12 classes, labels as they are; seed 0" in page
        assert "filter_precision" not in result.summary
        for claim in ("with a wrong label", "right labels among", "of right and of wrong"):
            assert claim not in page
        assert ("the filter kept, by epoch" in page) == ("filter_kept" in result.summary)


def test_the_test_part_is_told(noisy):
    classes = noisy.test.labels.copy()
    classes[0] = classes.max() + 1
    names = tuple(map(str, range(classes.max() + 1)))
    alone = replace(noisy, test=replace(noisy.test, labels=classes, class_names=names))
    found = train(replace(FAST, epochs=1), alone, device="cpu")
    assert found.summary["test"] == {"samples": 123, "classes": 10, "alone": 1}
    told = "Tested on 123 samples of 10 other classes, without 1 that are alone in their class."
    assert told in render_run(found)


def test_curves_leave_out_epochs_without_a_value():
    history = [{"epoch": 1}, {"epoch": 2, "x": 0.5}, {"epoch": 3, "x": 0.75}]
    seen = {}

    def spy(draw, height):
        from matplotlib.figure import Figure

        axes = Figure().subplots()
        draw(axes)
        seen["lines"] = [(line.get_label(), *map(list, line.get_data())) for line in axes.lines]
        seen["patches"] = axes.containers
        return ""

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_plots, "draw_axes", spy)
        run_plots.curves({"run": (history, "x")}, "x", level=("floor", 0.25))
        assert seen["lines"][0] == ("run", [2, 3], [0.5, 0.75])
        values = np.array([0, 1, 1, 2, np.nan], np.float32)
        run_plots.score_histogram(values, np.array([True, False, True, False, False]), "x", ("cut", 1.5))
        assert [sum(bar.get_height() for bar in bars) for bars in seen["patches"]] == [2, 2]
        assert seen["lines"][-1][0] == "cut = 1.5"
        run_plots.score_histogram(np.full(3, np.nan, np.float32), np.zeros(3, bool), "x")


@pytest.mark.parametrize(("largest", "scale"), [(900.0, "linear"), (4e8, "symlog")])
def test_concentrations_of_any_size_are_seen(largest, scale, monkeypatch):
    from matplotlib.figure import Figure

    axes = Figure().subplots()
    monkeypatch.setattr(run_plots, "draw_axes", lambda draw, height: draw(axes))
    quantiles = zip(QUANTILES, (0.0, 50.0, 100.0, 200.0, largest), strict=True)
    run_plots.kappa_boxes([{"epoch": 1, **{f"kappa_{name}": value for name, value in quantiles}}])
    assert axes.get_yscale() == scale


def test_log_against_a_loop():
    changed = np.array([True, False, True, False])
    log = SampleLog(("kept", "detector_loss"), changed)
    log.write(
        np.array([0, 1, 2]), {"kept": torch.tensor([True, True, False]), "detector_loss": torch.tensor([3.0, 1, 2])}
    )
    log.write(np.array([1]), {"detector_loss": torch.tensor([1.5])})
    assert log.record() == {
        "kept_right": 1.0, "kept_wrong": 0.5, "filter_kept": pytest.approx(2 / 3), "filter_precision": 0.5,
        "detector_loss_right": 1.5, "detector_loss_wrong": 2.5, "detector_loss_auc": 1.0,
    }  # fmt: skip
    again = SampleLog(("kept", "detector_loss"), changed)
    again.load_state_dict(log.state_dict())
    assert again.record() == log.record()
    log.clear()
    assert log.record() == {}
