"""Where training gains nothing, the embeddings are the features; and data of awkward kinds end not below them."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from app.tests.conftest import save_features
from app.tests.test_principal_start import mixture
from robustdml import load_embedder
from robustdml.cli import main
from robustdml.config import TrainingConfig
from robustdml.data import RetrievalData, Split
from robustdml.networks.models import unit_length
from robustdml.noise import with_wrong_labels
from robustdml.reports.run_report import render_run
from robustdml.retrieval import METRICS
from robustdml.run import trials
from robustdml.train import train
from robustdml.trained.exporting import export_model
from robustdml.trained.model_file import read_model


def nothing_to_learn():
    """Training features at random, and test classes that the features tell apart."""
    data = mixture(classes=16, size=4)
    random = np.random.default_rng(0).normal(size=data.train.inputs.shape).astype(np.float32)
    return replace(data, train=replace(data.train, inputs=random))


@pytest.fixture(scope="module")
def kept(tmp_path_factory, cache_of_the_session):
    """The folder of a run that keeps the features, and its data."""
    folder, data = tmp_path_factory.mktemp("kept"), nothing_to_learn()
    source = save_features(data, folder / "data.npz")
    assert main(["train", "--data", source, "--epochs", "2", "--out", str(folder / "run"), "--device", "cpu"]) == 0
    return folder / "run", source, data


def test_they_are_the_features_bit_for_bit_wherever_they_are_used(kept, tmp_path, capsys):
    folder, source, data = kept
    stored = json.loads((folder / "metrics.json").read_text())
    assert stored["chosen"]["kept_features"] and stored["embedding_size"] == 24
    assert {name: stored[name] for name in METRICS} == stored["untouched"] and stored["below_untouched"] is None
    inputs = torch.from_numpy(data.test.inputs)
    expected = unit_length(inputs)
    card, state = read_model(folder)
    assert card.layer == "identity" and not state
    embedder = load_embedder(folder)
    assert torch.equal(embedder.embed(inputs), expected)
    assert main(["embed", str(folder), source, "-o", str(tmp_path / "out.npz"), "--device", "cpu"]) == 0
    assert np.array_equal(np.load(tmp_path / "out.npz")["test_features"], expected.numpy())
    capsys.readouterr()
    assert main(["evaluate", str(folder), "--data", source, "--json", "--device", "cpu"]) == 0
    evaluated = json.loads(capsys.readouterr().out)
    assert {name: evaluated[name] for name in METRICS} == stored["untouched"]
    export_model(embedder, tmp_path / "model.pt2")
    assert torch.equal(torch.export.load(tmp_path / "model.pt2").module()(inputs), expected)


def test_onnx_has_no_layer_either(kept, tmp_path):
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: the extra export has it")
    pytest.importorskip("onnxscript", reason="onnxscript is not installed: the extra export has it")
    export_model(load_embedder(kept[0]), tmp_path / "model.onnx")
    session = runtime.InferenceSession(str(tmp_path / "model.onnx"), providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"inputs": kept[2].test.inputs})
    # Another order of the sum below the root.
    np.testing.assert_allclose(found, unit_length(torch.from_numpy(kept[2].test.inputs)), rtol=3e-7)


def test_resume_keeps_the_features_and_what_is_told(kept, tmp_path):
    config = TrainingConfig(epochs=1)
    first = train(config, kept[2], out=tmp_path, device="cpu")
    again = train(replace(config, epochs=2), kept[2], out=tmp_path, resume=True, device="cpu")
    assert again.summary["chosen"] == first.summary["chosen"] and again.summary["chosen"]["kept_features"]
    assert {name: again.summary[name] for name in METRICS} == again.summary["untouched"]


def test_the_evidence_is_told_in_metrics_terminal_and_report(tmp_path, capsys):
    data = with_wrong_labels(mixture(classes=24, size=8), "symmetric:0.2", seed=0)
    result = train(TrainingConfig(epochs=3), data, out=tmp_path, device="cpu")
    chosen = json.loads((tmp_path / "metrics.json").read_text())["chosen"]
    (best,) = [one for one in chosen["contestants"] if one["chosen"]]
    assert best["supported"] and not chosen["kept_features"]
    assert (chosen["filter"], best["averaging"]) == (result.summary["filter"], result.summary["averaging"])
    assert best["splits"] == 2 and best["classes"] == 16 and best["mean_average_precision_at_r_error"] > 0
    assert [one["averaging"] for one in chosen["contestants"]] == list(trials.TRIED)
    assert chosen["steps"] == 12 and 0.05 < chosen["doubted"] < 0.4
    page = render_run(result, data)
    for text in ("What was chosen", chosen["advice"], "→ "):
        assert text in page
    assert chosen["advice"].startswith("Chosen: ")
    source = save_features(data, tmp_path / "data.npz")
    assert main(["train", "--data", source, "--epochs", "3", "--device", "cpu"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "with filter audit" in printed and "Chosen: " in printed and "points of MAP@R" in printed


def _offset(data):
    return [split.inputs + np.float32(3) for split in (data.train, data.test)]


def _constant(data):
    return [
        np.concatenate([split.inputs, np.full((len(split), 6), 9, np.float32)], 1) for split in (data.train, data.test)
    ]


def _deficient(data):
    """More features than samples, many of them copies of others."""
    return [1e-4 * np.tile(split.inputs, (1, 8)) for split in (data.train, data.test)]


KINDS = {
    "offset": (_offset, 8),
    "constant columns": (_constant, 8),
    "rank": (_deficient, 5),
    "pairs": (None, 2),
    "long tail": (None, 0),
}


@pytest.mark.parametrize("kind", KINDS)
def test_awkward_data_end_not_below_the_features(kind):
    change, size = KINDS[kind]
    data = mixture(classes=24, size=size or 40)
    if size == 0:
        keep = [
            np.flatnonzero(np.arange(len(split)) % 40 < np.maximum(2, 40 // (split.labels + 1)))
            for split in (data.train, data.test)
        ]
        data = RetrievalData(
            "tail",
            *(
                Split(s.inputs[k], s.labels[k], s.class_names)
                for s, k in zip((data.train, data.test), keep, strict=True)
            ),
        )
    if change is not None:
        train_inputs, test_inputs = change(data)
        data = replace(
            data, train=replace(data.train, inputs=train_inputs), test=replace(data.test, inputs=test_inputs)
        )
    for noise in ("none", "symmetric:0.4"):
        result = train(TrainingConfig(epochs=3), with_wrong_labels(data, noise, seed=0), device="cpu")
        for name in ("precision_at_1", "mean_average_precision_at_r"):
            assert result.summary[name] >= result.summary["untouched"][name] - 0.01
