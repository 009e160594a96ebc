import re
from dataclasses import replace

import pytest

from app.tests.test_hostile_pages import Elements
from robustdml.cli import main
from robustdml.config import TrainingConfig
from robustdml.filters.options import FilterOptions
from robustdml.methods import METHODS
from robustdml.reports.run_report import render_run
from robustdml.train import train

FAST = TrainingConfig(epochs=3, batch_size=32, embedding_size=8)


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(replace(FAST, method="proxy-anchor"), marks=pytest.mark.nightly),
        replace(FAST, filter=replace(METHODS["robust"].filter, on_trial=False)),
        replace(FAST, filter=FilterOptions("audit")),
        replace(FAST, method="smooth-proxy-anchor"),
    ],
)
def test_reports_show_what_the_run_has(noisy, config):
    result = train(config, noisy, device="cpu")
    page = render_run(result, noisy)
    images = Elements(page).images
    assert all(image["src"].startswith("data:image/svg+xml;base64,") for image in images)
    assert {image["alt"] for image in images} == {"Recall@1 against the epoch.", "Loss against the epoch."}
    assert f"<td>{result.summary['precision_at_1']:.3f}</td>" in page
    assert ("right labels among the kept" in page) == ("filter_precision" in result.summary)
    assert not re.search(r"https?://(?!www\.w3\.org)", page)
    assert "72 of them with a wrong label (noise symmetric:0.3)" in page


def test_nothing_is_called_right_where_nobody_knows(clusters):
    """Labels of a user's own, of which some may be wrong: no share of right ones is told."""
    for config in (
        replace(FAST, filter=replace(METHODS["robust"].filter, on_trial=False)),
        replace(FAST, method="contrastive"),
    ):
        result = train(config, clusters, device="cpu")
        page = render_run(result, clusters)
        assert "252 training samples of 12 classes, labels as they are; seed 0" in page
        assert "filter_precision" not in result.summary
        assert "with a wrong label" not in page and "right labels among" not in page
        assert ("kept by the filter" in page) == ("filter_kept" in result.summary)


def test_the_test_part_is_told(noisy):
    classes = noisy.test.labels.copy()
    classes[0] = classes.max() + 1
    names = tuple(map(str, range(classes.max() + 1)))
    alone = replace(noisy, test=replace(noisy.test, labels=classes, class_names=names))
    found = train(replace(FAST, epochs=1), alone, device="cpu")
    assert found.summary["test"] == {"samples": 123, "classes": 10, "alone": 1, "trained_on": False}
    told = "Tested on 123 samples of 10 other classes, without 1 that are alone in their class."
    assert told in render_run(found, alone)


def test_training_without_a_folder_keeps_the_run_and_shows_images(photos, tmp_path, capsys):
    command = ["train", "--data", str(photos), "--image-size", "24", "--device", "cpu", "--epochs", "1"]
    command += ["--backbone", "untrained", "--finetune", "--method", "contrastive", "--filter", "prism-average"]
    command += ["--batch-size", "8"]
    for number in (1, 2):
        assert main(command) == 0
        text = capsys.readouterr().out
        assert f"robustdml-run-{number}/report.html" in text and f"robustdml-run-{number}/model.pt" in text
        assert "labels of the test samples are used as they are" in " ".join(text.split())
    page = (tmp_path / "robustdml-run-2" / "report.html").read_text()
    assert "Loss against the epoch" in page and "The most doubtful labels" in page
    # Six test samples with five that were found, and training samples that were in a batch.
    assert 36 < len(re.findall('<img src="data:image/jpeg', page)) <= 60
