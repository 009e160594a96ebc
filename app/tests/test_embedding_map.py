"""The map of embeddings in the report of a run and in the page of an audit."""

import base64
import re
import warnings

import numpy as np

from app.tests.conftest import make_split, run_command
from robustdml.config import TrainingConfig
from robustdml.reports.embedding_map import MOST_DRAWN, embedding_map, plane
from robustdml.reports.run_report import render_run
from robustdml.train import train


def drawn(text):
    """The picture of a section, and the names below its heading."""
    (address,) = re.findall(r'<img src="data:image/svg.xml;base64,([^"]+)"', text)
    return base64.b64decode(address).decode(), re.findall(r">[●○]</span> (.+?)(?: &nbsp;|</p>)", text)


def test_classes_lie_apart_where_they_differ():
    split = make_split(300, 3, 40, 0, 0.05)
    places = plane(split.inputs, split.labels)
    means = np.stack([places[split.labels == label].mean(0) for label in range(3)])
    spread = max(places[split.labels == label].std() for label in range(3))
    apart = np.linalg.norm(means[:, None] - means, axis=2)[np.triu_indices(3, 1)]
    assert apart.min() > 5 * np.median([places[split.labels == label].std(0).max() for label in range(3)]), spread
    # Two classes, one dimension, and rows that are all the same have places as well.
    for inputs, labels in ((split.inputs[:, :1], split.labels), (np.ones((4, 3)), np.array([0, 0, 1, 1]))):
        assert plane(inputs, labels).shape == (len(labels), 2) and np.isfinite(plane(inputs, labels)).all()


def test_the_largest_classes_and_suspects_are_named():
    split = make_split(2 * MOST_DRAWN, 9, 12, 0, 0.3)
    names = ["<b>$x$", "日本", *map(str, range(2, 9))]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        text = embedding_map(split.inputs, split.labels, names, [3, 4])
    picture, shown = drawn(text)
    assert shown == ["&lt;b&gt;$x$", "日本", "2", "3", "4", "5", "suspects"] and len(picture) < 10**6
    assert "suspects" not in embedding_map(split.inputs, split.labels, names)


def test_the_report_and_the_page_of_an_audit_have_one(clusters, features, tmp_path):
    result = train(TrainingConfig(method="contrastive", epochs=1, batch_size=32), clusters, device="cpu")
    text = render_run(result, clusters)
    assert "A map of the samples" in text and "class 0" in text[text.index("A map of the samples") :]
    run_command("audit", features, "--out", "audit", "--epochs", "1", "--device", "cpu")
    assert "A map of the samples" in (tmp_path / "audit" / "audit.html").read_text()
