"""``robustdml search`` and what `load_embedder` takes."""

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from robustdml import load_embedder
from robustdml.cli import main
from robustdml.errors import UsageError

ROOT = Path(__file__).resolve().parents[2]


def test_an_image_finds_itself_and_its_class(model_of_images, photos, tmp_path, capsys):
    query = photos / "class 2" / "3.png"
    command = ["search", str(model_of_images), str(query), "--in", str(photos), "-k", "4", "--device", "cpu"]
    assert main([*command, "--out", str(tmp_path / "out")]) == 0
    assert "1 queries in 48 samples" in capsys.readouterr().out
    (one,) = json.loads((tmp_path / "out" / "search.json").read_text())
    assert one["query"] == str(query) and one["class"] is None
    assert one["found"][0]["sample"] == str(query)
    assert one["found"][0]["similarity"] == pytest.approx(1, abs=1e-5)
    assert [hit["class"] for hit in one["found"]] == ["class 2"] * 4
    embedder = load_embedder(model_of_images)
    for hit in one["found"]:
        cosine = float(embedder.embed(query) @ embedder.embed(hit["sample"]).T)
        assert cosine == pytest.approx(hit["similarity"], abs=1e-5)
    text = (tmp_path / "out" / "search.html").read_text()
    assert len(re.findall('<img src="data:image/jpeg', text)) == 5 and "class 2" in text


def test_features_are_searched_without_pictures(trained, clusters, features, tmp_path):
    command = ["search", str(trained[0] / "features"), features, "--in", features, "-k", "500", "--device", "cpu"]
    assert main([*command, "--out", str(tmp_path / "out")]) == 0
    listed = json.loads((tmp_path / "out" / "search.json").read_text())
    assert len(listed) == 123 and all(len(one["found"]) == 122 for one in listed)
    # Among themselves no sample finds itself.
    assert all(one["query"] not in [hit["sample"] for hit in one["found"]] for one in listed)
    assert listed[7]["class"] == str(clusters.test.labels[7])
    assert "<img" not in (tmp_path / "out" / "search.html").read_text()


def test_one_loose_image_takes_no_labels_away(model_of_images, photos, tmp_path, capsys):
    (photos / "stray.png").symlink_to(photos / "class 0" / "0.png")
    out = tmp_path / "out.npz"
    assert main(["embed", str(model_of_images), str(photos), "-o", str(out), "--device", "cpu"]) == 0
    assert "left out 1: " in capsys.readouterr().err
    with np.load(out) as arrays:
        assert len(arrays["labels"]) == len(arrays["features"]) == 48
    assert main(["embed", str(model_of_images), str(photos / "class 1"), "-o", str(out), "--device", "cpu"]) == 0
    assert "has no labels, such as class folders give" in capsys.readouterr().out
    with np.load(out) as arrays:
        assert set(arrays) == {"features", "paths"}


def test_paths_pil_images_and_arrays_are_one(model_of_images, photos):
    embedder = load_embedder(model_of_images)
    files = sorted(photos.rglob("*.png"))[:3]
    images = [Image.open(file).convert("RGB") for file in files]
    arrays = [np.asarray(image) for image in images]
    expected = embedder.embed(files)
    prepared = embedder.prepare(files)
    for given in (list(map(str, files)), images, arrays, np.stack(arrays), [files[0], images[1], arrays[2]], prepared):
        np.testing.assert_allclose(embedder.embed(given, batch_size=2), expected, atol=1e-6)
    for given in (files[0], str(files[0]), images[0], arrays[0]):
        np.testing.assert_allclose(embedder.embed(given), expected[:1], atol=1e-6)
    np.testing.assert_allclose(embedder.embed((prepared * 255).byte().numpy()), expected, atol=1e-6)
    assert embedder.embed(np.zeros((9, 7), np.uint8)).shape == (1, 8)
    with pytest.raises(UsageError, match=r"an array of float32 \(9, 7, 3\); expected uint8 \(H, W\) or \(H, W, 3\)"):
        embedder.embed(np.zeros((9, 7, 3), np.float32))
    with pytest.raises(UsageError, match="expected paths, PIL images or arrays, got dict"):
        embedder.embed([{}])


@pytest.mark.skipif(importlib.util.find_spec("faiss") is None, reason="faiss is not installed: pip install faiss-cpu")
def test_the_example_of_faiss_finds_an_image(model_of_images, photos):
    query = photos / "class 4" / "0.png"
    command = [sys.executable, ROOT / "examples" / "faiss_index.py", model_of_images, photos, query]
    found = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    assert found[0] == f"1.000 {query}"
