import numpy as np
import pytest

from robustdml.config import TrainingConfig
from robustdml.data import take_classes
from robustdml.errors import UsageError
from robustdml.loss_inputs import Training, text_embeddings
from robustdml.loss_inputs.guidance import LanguageGuidance
from robustdml.loss_inputs.text_embeddings import hashed_ngrams, name_by_looks
from robustdml.networks.models import SmallCNN, apply_in_batches
from robustdml.networks.origin import Origin
from robustdml.networks.preparation import Prepared, resolve_device

CPU = resolve_device("cpu")


def test_texts_that_share_words_are_near():
    names = [
        "CIRCLED LATIN CAPITAL LETTER A",
        "CIRCLED LATIN CAPITAL LETTER B",
        "LEFTWARDS ARROW",
        "rightwards arrow",
        "",
    ]
    embedded = hashed_ngrams(names, size=256)
    assert embedded.shape == (5, 256)
    assert embedded.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(embedded, axis=1), [1, 1, 1, 1, 0], atol=1e-6)
    similarity = embedded @ embedded.T
    assert similarity[0, 1] > 0.7
    assert similarity[2, 3] > 0.4
    assert abs(similarity[0, 2]) < 0.3
    assert np.array_equal(embedded, hashed_ngrams(names, size=256))


@pytest.fixture
def characters(tiny_images, monkeypatch):
    """Few pretraining characters, and a network that has seen nothing."""
    network = SmallCNN(1).eval()
    few = take_classes(tiny_images.train, np.arange(6))
    named = few.__class__(few.inputs, few.labels, tuple(f"U+{c:04X} SIGN NUMBER {c}" for c in range(6)))
    monkeypatch.setattr(text_embeddings, "load_pretraining_glyphs", lambda: named)
    monkeypatch.setattr(text_embeddings, "load_pretrained_cnn", lambda name, on_progress: network)
    return named, network


def test_samples_are_named_by_the_nearest_class_means(characters, own_cache):
    split, network = characters
    features = apply_in_batches(network, split.inputs, CPU)
    guidance = name_by_looks(features)
    means = np.stack([features[split.labels == c].mean(0) for c in range(6)])
    unit = [rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (features, means)]
    cosines = unit[0] @ unit[1].T
    assert guidance.names.shape == (60, text_embeddings.NAMES_PER_SAMPLE)
    chosen = np.take_along_axis(cosines, guidance.names, axis=1)
    np.testing.assert_allclose(chosen, -np.sort(-cosines, axis=1)[:, :5], atol=1e-5)
    np.testing.assert_array_equal(guidance.embeddings, hashed_ngrams([f"SIGN NUMBER {c}" for c in range(6)]))
    assert len(list(own_cache.glob("class-means-*.npy"))) == 1
    assert np.array_equal(name_by_looks(features).names, guidance.names)


def training(data, config, features):
    labels = data.train.labels
    origin = Origin("glyphs-cnn", SmallCNN(1), data.train.inputs.shape[1:])
    prepared = Prepared(data, SmallCNN(1), features.shape[1], lambda: features, origin)
    return Training(config, prepared, labels, np.zeros(len(labels), bool), 64, CPU, None)


def test_guidance_of_a_batch(characters, tiny_images, clusters):
    split, network = characters
    features = apply_in_batches(network, split.inputs, CPU)
    rows = np.array([4, 0, 4])
    given = LanguageGuidance(training(tiny_images, TrainingConfig(), features)).arguments(rows)["guidance"]
    guidance = name_by_looks(features)
    np.testing.assert_array_equal(given.numpy(), guidance.embeddings[guidance.names[rows]])
    for data, config, named in (
        (clusters, TrainingConfig(), "clusters"),
        (tiny_images, TrainingConfig(backbone="a:b"), "a:b"),
    ):
        with pytest.raises(UsageError, match=f"language guidance needs text embeddings.* not with {named}"):
            LanguageGuidance(training(data, config, features))
