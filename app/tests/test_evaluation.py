"""Retrieval of queries in a gallery, verification, their intervals, and ``robustdml evaluate`` on two folders."""

import json

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator
from sklearn.metrics import roc_curve

from app.tests.conftest import csv_rows, run_command, save_photos
from robustdml import retrieval, verification
from robustdml.reports import run_plots
from robustdml.retrieval import METRICS, intervals_over_classes, retrieval_by_query, retrieval_metrics
from robustdml.verification import verify


def draw(sizes, seed=0, width=6, spread=1.2):
    random = np.random.default_rng(seed)
    labels = random.permutation(np.repeat(np.arange(len(sizes)), sizes))
    centres = np.random.default_rng(9).normal(size=(len(sizes), width))
    rows = centres[labels] + spread * random.normal(size=(len(labels), width))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32), labels


def by_all_cosines(queries, k, gallery, embeddings_come_from_same_source):
    cosines = queries @ gallery.T
    if embeddings_come_from_same_source:
        cosines.fill_diagonal_(-torch.inf)
    return cosines.topk(k)


CASES = [([2, 3], None), ([30, 30, 30], None), ([1, 1, 2], None)]
CASES += [([40, 3, 9, 1, 12, 0, 2], others) for others in (None, [5, 30, 1, 0, 20, 4, 1])]


@pytest.mark.parametrize("most", [7, 2**23])
@pytest.mark.parametrize(("sizes", "others"), CASES)
def test_they_equal_the_peer_s_whatever_is_in_memory_at_a_time(sizes, others, most, monkeypatch):
    monkeypatch.setattr(retrieval, "_MOST_FOUND", most)
    queries, labels = draw(sizes)
    gallery, there = draw(others, seed=1) if others else (queries, labels)
    found = retrieval_by_query(queries, labels, (gallery, there) if others else None)
    names = ("precision_at_1", "r_precision", "mean_average_precision_at_r")
    peer = AccuracyCalculator(include=names, k="max_bin_count", knn_func=by_all_cosines)
    expected = peer.get_accuracy(queries, labels, gallery, there, ref_includes_query=not others)
    # Some have nothing to find: the peer leaves them out as well.
    nothing = np.isin(labels, there, invert=True) if others else np.bincount(labels)[labels] == 1
    assert (np.isnan(found).any(1) == nothing).all()
    means = dict(zip(METRICS, np.nanmean(found, axis=0), strict=True))
    near = by_all_cosines(torch.from_numpy(queries), len(there), torch.from_numpy(gallery), not others)[1]
    right = (there[near] == labels[:, None])[~nothing]
    expected |= {f"recall_at_{k}": right[:, :k].any(1).mean() for k in (2, 4, 8)}
    for name, value in expected.items():
        assert means[name] == pytest.approx(value, abs=1e-6)
    if not others:
        assert retrieval_metrics(3 * queries, labels) == pytest.approx(means)


def test_copies_of_a_sample_do_not_find_it_itself():
    rows = torch.eye(2)[[0] * 12 + [1] * 12]
    found = retrieval_by_query(rows, np.arange(24) % 2)
    assert found.shape == (24, 6) and not np.isnan(found).any()
    # Of twelve equal rows the first five others are found: those of lower numbers.
    assert found[23, :4].tolist() == [0, 1, 1, 1] and found[12, :4].tolist() == [0, 1, 1, 1]


def test_intervals_cover_the_mean_and_grow_with_fewer_classes():
    random = np.random.default_rng(0)
    hits, widths = 0, []
    for _ in range(60):
        labels = np.repeat(np.arange(40), 5)
        values = (random.normal(size=40)[labels] + random.normal(size=200))[:, None]
        ((low, high),) = intervals_over_classes(values, labels)
        hits += low <= 0 <= high
        widths.append(high - low)
    assert hits >= 50
    # 1.96 standard errors of class means on both sides: √(1 + 1/5) / √40.
    assert np.mean(widths) == pytest.approx(3.92 * np.sqrt(1.2 / 40), rel=0.1)


@pytest.mark.parametrize("apart", [False, True])
def test_rates_are_those_of_all_pairs(apart):
    queries, labels = draw([40, 3, 9, 1, 12])
    gallery, there = draw([5, 30, 1, 0, 20], seed=1) if apart else (queries, labels)
    cosines = queries.astype(np.float64) @ gallery.T
    pairs = np.ones_like(cosines, bool) if apart else np.triu(np.ones_like(cosines, bool), 1)
    same = (labels[:, None] == there)[pairs]
    far, tar, _ = roc_curve(same, cosines[pairs])
    found = verify(torch.from_numpy(queries), labels, (torch.from_numpy(gallery), there) if apart else None)
    assert found.genuine == same.sum() and found.impostor == (~same).sum() * (1 if apart else 2)
    assert [one["far"] for one in found.at] == [0.1, 0.01][: len(found.at)] != []
    for one in found.at:
        place = np.searchsorted(far, one["far"], side="right") - 1
        assert one["tar"] == pytest.approx(tar[place], abs=0.01) and one["low"] <= one["tar"] <= one["high"]
        assert (cosines[pairs][~same] >= one["threshold"]).mean() <= one["far"]
    best = np.argmax(tar - far)
    assert found.best["tar"] - found.best["far"] == pytest.approx(tar[best] - far[best], abs=0.005)


def test_of_very_many_pairs_a_sample_says_the_same(monkeypatch):
    queries, labels = draw([300, 200, 100], width=3)
    whole = verify(torch.from_numpy(queries), labels)
    monkeypatch.setattr(verification, "MOST_ROWS", 200)
    monkeypatch.setattr(verification, "MOST_OF_CLASS", 60)
    some = verify(torch.from_numpy(queries), labels)
    assert some.genuine == 3 * 60 * 59 / 2 and some.impostor < whole.impostor / 5
    assert some.at[0]["tar"] == pytest.approx(whole.at[0]["tar"], abs=0.1)
    assert verify(torch.from_numpy(queries), np.zeros(600, np.int64)) is None
    assert verify(torch.from_numpy(queries), np.arange(600)) is None


def test_a_query_folder_searches_another(image_model, tmp_path):
    photos = save_photos(tmp_path / "photos", classes=4, images=6, size=(30, 40), spread=90)
    for part, classes, numbers in (("query", range(4), (0, 1)), ("gallery", range(3), (1, 2, 3, 4))):
        for folder in (f"class {label}" for label in classes):
            (tmp_path / part / folder).mkdir(parents=True)
            for name in (f"{number}.png" for number in numbers):
                (tmp_path / part / folder / name).symlink_to(photos / folder / name)
    (tmp_path / "query" / "loose.png").symlink_to(photos / "class 0" / "0.png")
    command = ("evaluate", image_model, "--data", "query", "--gallery", "gallery", "--out", "out", "--device", "cpu")
    printed = run_command(*command, "--json")
    found = json.loads(printed.out)
    assert (found["samples"], found["classes"], found["gallery_samples"], found["nothing_to_find"]) == (8, 4, 12, 2)
    assert found == json.loads((tmp_path / "out" / "evaluation.json").read_text())
    assert found["verification"]["genuine_pairs"] == 6 * 4
    assert "left out 1: " in printed.err and "loose.png (in no class folder)" in printed.err
    assert "3 samples in both, and found as their own copies" in printed.err
    rows = csv_rows(tmp_path / "out" / "classes.csv")
    assert sorted(row["class"] for row in rows) == ["class 0", "class 1", "class 2"]
    mean = np.mean([float(row["precision_at_1"]) for row in rows])
    assert mean == pytest.approx(found["precision_at_1"])
    assert "class 1" in (tmp_path / "out" / "evaluation.html").read_text()
    text = run_command(*command).out
    assert "95 % interval over classes" in text and "best threshold" in text and "2 samples without another" in text


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_the_axis_of_a_share_ends_at_0_and_1(share, monkeypatch):
    axes = Figure().subplots()
    monkeypatch.setattr(run_plots, "draw_axes", lambda draw, height: draw(axes))
    run_plots.curve([{"epoch": 1, "recall": share}, {"epoch": 2, "recall": share}], "recall", "run", "Recall@1")
    low, high = axes.get_ylim()
    assert -0.01 < low < share + 1e-9 and share - 1e-9 < high < 1.01
