import numpy as np
import pytest

from robustdml.data import RetrievalData, Split
from robustdml.methods import METHODS
from robustdml.noise import with_wrong_labels

# A method of each kind: a robust one, proxies, pairs, confidences.
_ALWAYS = (
    "robust",
    "proxy-anchor",
    "smooth-proxy-anchor",
    "adaptive-proxy-anchor",
    "multi-similarity",
    "procsim",
    "bspml",
)


def pytest_collection_modifyitems(items):
    """Tests of every method run on some of them by day, and on all at night."""
    for item in items:
        method = getattr(item, "callspec", None) and item.callspec.params.get("method")
        if method in METHODS and method not in _ALWAYS and item.originalname in _OF_EVERY_METHOD:
            item.add_marker(pytest.mark.nightly)


_OF_EVERY_METHOD = ("test_learns", "test_bfloat16_is_close", "test_every_method_comes_back_from_its_file_as_it_was")


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """No test reads or writes the user's cache."""
    monkeypatch.setenv("ROBUSTDML_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def make_split(samples, classes, size, seed, spread):
    random = np.random.default_rng(seed)
    labels = np.arange(samples) % classes
    features = random.normal(size=(classes, size))[labels] + spread * random.normal(size=(samples, size))
    return Split(features.astype(np.float32), labels, tuple(f"class {c}" for c in range(classes)))


@pytest.fixture
def clusters():
    """Features of 12 training classes and 9 others, close enough to be confused."""
    return RetrievalData("clusters", make_split(252, 12, 20, 1, 0.6), make_split(123, 9, 20, 2, 0.6))


@pytest.fixture
def tiny_images():
    """Grey images, each class a pattern with noise."""

    def split(samples, classes, seed):
        features = make_split(samples, classes, 32 * 32, seed, 0.5)
        pixels = (features.inputs * 40 + 128).clip(0, 255).astype(np.uint8).reshape(-1, 1, 32, 32)
        return Split(pixels, features.labels, features.class_names)

    return RetrievalData("glyphs", split(60, 6, 3), split(45, 5, 4))


@pytest.fixture
def noisy(clusters):
    """The clusters with 30 % wrong labels."""
    return with_wrong_labels(clusters, "symmetric:0.3", seed=0)
