"""The model file and `load_embedder`: what a run leaves gives the embeddings that the run had."""

import json
import signal
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

import robustdml_ops
from app.tests.conftest import CPU, Ends, make_tiny_images
from robustdml import load_embedder
from robustdml.config import TrainingConfig
from robustdml.errors import UsageError
from robustdml.networks.models import apply_in_batches
from robustdml.train import train

FAST = TrainingConfig(method="contrastive", epochs=1, batch_size=32, embedding_size=8)
GREY = replace(FAST, backbone="untrained", finetune=True, batch_size=20)


@pytest.fixture(scope="module")
def image_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("images") / "run"
    return train(GREY, make_tiny_images(), out=folder, device="cpu"), folder


def unit(embeddings):
    return embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True)


@pytest.mark.parametrize("file_or_folder", ["", "model.pt"])
def test_features_give_the_embeddings_of_the_run(feature_run, clusters, file_or_folder):
    result, folder = feature_run
    embedder = load_embedder(folder / file_or_folder)
    inputs = clusters.test.inputs
    expected = unit(apply_in_batches(result.embedder, inputs, CPU))
    for given in (inputs, torch.from_numpy(inputs)):
        embeddings = embedder.embed(given, batch_size=50)
        assert embeddings.shape == (123, 8)
        np.testing.assert_allclose(embeddings, expected, atol=1e-6)
    np.testing.assert_allclose(result.model.embed(inputs), expected, atol=1e-6)
    with torch.no_grad():
        np.testing.assert_allclose(embedder(torch.from_numpy(inputs)), expected, atol=1e-6)
    assert embedder.embed(inputs[:0]).shape == (0, 8)


def test_images_are_set_upright_scaled_and_cropped_to_the_centre(image_run, tmp_path):
    embedder = load_embedder(image_run[1])
    picture = Image.new("RGB", (300, 100), (255, 0, 0))
    picture.paste((255, 255, 255), (100, 0, 200, 100))
    assert embedder.prepare([picture]).min() > 0.9  # red is 0.3
    sideways = picture.rotate(90, expand=True)
    exif = Image.Exif()
    exif[0x0112] = 6
    sideways.save(tmp_path / "sideways.png", exif=exif)
    assert embedder.prepare([tmp_path / "sideways.png"]).shape == (1, 1, 32, 32)
    assert embedder.prepare([tmp_path / "sideways.png"]).min() > 0.9


def test_a_frozen_backbone_is_in_the_file(tiny_images, tmp_path, monkeypatch):
    """The run trains one layer on features; what it leaves takes images."""
    (tmp_path / "frozen_backbone.py").write_text(
        "import torch\nfrom torch import nn\n"
        "def make():\n    return nn.Sequential(nn.Flatten(), nn.Linear(1024, 16), nn.BatchNorm1d(16))\n"
    )
    config = replace(FAST, backbone="frozen_backbone:make")
    result = train(config, tiny_images, out=tmp_path / "run", device="cpu")
    # Code is imported where the caller names it, never because a file does.
    monkeypatch.delitem(sys.modules, "frozen_backbone")
    with pytest.raises(UsageError, match=r"not in the file; if it is yours, .* \(backbone frozen_backbone:make\)"):
        load_embedder("run")
    assert "frozen_backbone" not in sys.modules
    embedder = load_embedder("run", backbone="frozen_backbone:make")
    images = tiny_images.test.inputs
    np.testing.assert_allclose(embedder.embed(images), result.model.embed(images), atol=1e-6)
    features = embedder.network.backbone(torch.from_numpy(images).float() / 255).detach().numpy()
    expected = unit(apply_in_batches(result.embedder, features, CPU))
    np.testing.assert_allclose(embedder.embed(images), expected, atol=1e-5)
    (tmp_path / "frozen_backbone.py").write_text("from torch import nn\ndef make():\n    return nn.Linear(3, 4)\n")
    monkeypatch.delitem(sys.modules, "frozen_backbone")
    with pytest.raises(UsageError, match="its weights do not fit backbone frozen_backbone:make;"):
        load_embedder("run", backbone="frozen_backbone:make")


def test_the_file_is_plain_data_and_says_what_trained_it(image_run, tiny_images, tmp_path):
    result, folder = image_run
    content = torch.load(folder / "model.pt", weights_only=True)
    assert content["backbone"] == "untrained"
    assert content["class_names"] == [f"class {c}" for c in range(6)]
    assert content["embedding_size"] == 8
    assert content["trained_by"]["config"] == json.loads(json.dumps(result.config.as_dict()))
    metrics = content["trained_by"]["metrics"]
    record = result.history[-1]
    assert metrics == {name: value for name, value in record.items() if name not in ("seconds", "samples")}
    assert content["preprocessing"]["shape"] == ["batch", 1, 32, 32]
    assert content["package_version"] == robustdml_ops.__version__
    before = torch.get_rng_state()
    embedder = load_embedder(folder)
    assert torch.equal(torch.get_rng_state(), before)
    assert embedder.card == result.model.card
    assert embedder.card.takes == "grey images of 32×32 pixels"
    embedder.save(tmp_path / "again.pt")
    again = load_embedder(tmp_path / "again.pt")
    assert again.card == embedder.card
    assert torch.equal(again.embed(tiny_images.test.inputs), embedder.embed(tiny_images.test.inputs))


def test_a_run_that_was_broken_off_ends_in_the_same_file(clusters, tmp_path):
    """In the middle of an epoch, and after the last: bit by bit, whatever time it took."""
    config, contents = replace(FAST, method="contrastive", epochs=2), []
    train(config, clusters, out=tmp_path / "whole", device="cpu")
    with pytest.raises(SystemExit):
        train(config, clusters, out=tmp_path / "broken", device="cpu", recorders=[Ends(signal.SIGTERM)])
    for folder, resume in (("whole", False), ("broken", True), ("broken", True)):
        if resume:
            train(config, clusters, out=tmp_path / folder, resume=True, device="cpu")
        contents.append((tmp_path / folder / "model.pt").read_bytes())
    assert contents[0] == contents[1] == contents[2]


def test_it_is_a_module_like_any_other(image_run, tiny_images):
    embedder = load_embedder(image_run[1])
    assert not embedder.training
    batch = torch.from_numpy(tiny_images.train.inputs[:8])
    embedder(batch).sum().backward()
    assert embedder.network.head.weight.grad.abs().max() > 0
    with torch.no_grad():
        torch.testing.assert_close(embedder(batch), embedder(batch.float() / 255))
    embedder.train()
    before = embedder.network.backbone[2].running_mean.clone()
    embedder.embed(batch)
    assert embedder.training
    assert torch.equal(embedder.network.backbone[2].running_mean, before)


def test_what_it_does_not_take_is_told(feature_run, image_run, tmp_path):
    features, images = feature_run[0].model, image_run[0].model
    (tmp_path / "text.png").write_text("no image")
    for call, message in (
        (lambda: features.embed(["a.jpg"]), "takes 20 features and no images"),
        (lambda: features(torch.zeros(2, 19)), r"shape \(2, 19\): expected 20 features, \(B, 20\)"),
        (lambda: features.embed(np.full((3, 20), np.nan, np.float32)), "3 embeddings are NaN or infinite, the first"),
        (lambda: features(["a.jpg"]), "expected a tensor, got list; `embed` takes paths"),
        (lambda: images(torch.zeros(2, 3, 32, 32)), r"expected grey images of 32×32 pixels, \(B, 1, 32, 32\)"),
        (lambda: images.embed([tmp_path / "text.png"]), r"text\.png .*: the image cannot be read"),
        (lambda: images.embed(tmp_path / "nowhere.png"), r"nowhere\.png .*No such file"),
        (lambda: images.embed([3]), "expected paths, PIL images or arrays, got int"),
    ):
        with pytest.raises(UsageError, match=message):
            call()
