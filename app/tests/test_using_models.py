"""``embed``, ``evaluate``, ``export`` and ``search`` on what ``train`` left, and what `load_embedder` takes."""

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from PIL import Image, ImageOps

from app.tests.conftest import SIZE, metrics_of, refused, run_command
from robustdml import load_embedder
from robustdml.cli import main
from robustdml.commands import export as exporting
from robustdml.data import load_data
from robustdml.errors import UsageError
from robustdml.retrieval import retrieval_metrics
from tests.nightly import nightly_but
from tests.subprocesses import ROOT


@pytest.fixture
def feature_run(trained):
    return trained[0] / "features"


def test_training_ends_with_the_next_command(trained):
    folder, text = trained
    for name, data in (("images", "IMAGES"), ("features", "FEATURES.npz")):
        assert f"robustdml embed {folder / name} {data} -o embeddings.npz" in "".join(text.splitlines())


def embed(model, images, tmp_path, *options):
    out = tmp_path / "out" / "embeddings.npz"
    assert main(["embed", str(model), str(images), "-o", str(out), "--device", "cpu", *options]) == 0
    with np.load(out) as archive:
        return dict(archive)


def evaluated(*arguments):
    """JSON output of `evaluate`."""
    return json.loads(run_command("evaluate", *arguments, "--json", "--device", "cpu").out)


def test_class_folders_are_embedded_with_labels_and_read_again_as_data(image_model, photos, tmp_path, capsys):
    (photos / "stray.png").symlink_to(photos / "class 0" / "0.png")  # takes no labels away
    arrays = embed(image_model, photos, tmp_path, "--batch-size", "5")
    assert "left out 1: " in capsys.readouterr().err
    assert arrays["features"].shape == (48, 8)
    np.testing.assert_allclose(np.linalg.norm(arrays["features"], axis=1), 1, atol=1e-6)
    assert arrays["class_names"].tolist() == [f"class {c}" for c in range(6)]
    embedder = load_embedder(image_model)
    for path, label, embedding in zip(arrays["paths"], arrays["labels"], arrays["features"], strict=True):
        assert f"class {label}/" in path
        np.testing.assert_allclose(embedder.embed(path)[0], embedding, atol=2e-4)
    data = load_data(str(tmp_path / "out" / "embeddings.npz"))
    assert len(data.train) + len(data.test) == 48
    assert set(data.train.class_names) | set(data.test.class_names) == {f"class {c}" for c in range(6)}
    run_command("train", "--data", "out/embeddings.npz", "--epochs", "1", "--batch-size", "8", "--device", "cpu")


def test_train_and_test_folders_stay_apart(image_model, photos, tmp_path):
    for part, classes in (("train", (0, 3)), ("test", (1, 3, 5))):
        (tmp_path / "parts" / part).mkdir(parents=True)
        for label in classes:
            (tmp_path / "parts" / part / f"class {label}").symlink_to(photos / f"class {label}")
    arrays = embed(image_model, tmp_path / "parts", tmp_path)
    assert arrays["class_names"].tolist() == ["class 0", "class 3", "class 1", "class 5"]
    assert arrays["labels"].tolist() == [0] * 8 + [1] * 8
    assert arrays["test_labels"].tolist() == [2] * 8 + [1] * 8 + [3] * 8
    data = load_data(str(tmp_path / "out" / "embeddings.npz"))
    assert data.train.class_names == ("class 0", "class 3")
    assert data.test.class_names == ("class 3", "class 1", "class 5")
    np.testing.assert_array_equal(data.test.inputs, arrays["test_features"])


def test_a_folder_an_image_and_a_list(image_model, photos, tmp_path, capsys):
    whole = embed(image_model, photos, tmp_path)["features"]
    flat = embed(image_model, photos / "class 2", tmp_path)
    assert "has no labels, such as class folders give" in capsys.readouterr().out
    assert set(flat) == {"features", "paths"}
    np.testing.assert_allclose(flat["features"], whole[16:24], atol=2e-4)
    one = embed(image_model, photos / "class 2" / "3.png", tmp_path)
    np.testing.assert_allclose(one["features"], whole[19:20], atol=2e-4)
    listed = tmp_path / "list.txt"
    absolute = photos / "class 1" / "0.png"
    listed.write_text(f"photos/class 4/1.png\n\n{absolute}\nphotos/class 0/7.png\n")
    arrays = embed(image_model, listed, tmp_path)
    np.testing.assert_allclose(arrays["features"], whole[[33, 8, 7]], atol=2e-4)
    assert set(arrays) == {"features", "paths"}


def test_features_are_embedded_with_and_without_labels(feature_run, features, tmp_path, clusters):
    arrays = embed(feature_run, features, tmp_path)
    assert arrays["features"].shape == (252, 20)  # kept as they are
    assert arrays["test_features"].shape == (123, 20)
    np.testing.assert_array_equal(arrays["labels"], clusters.train.labels)
    np.savez(tmp_path / "plain.npz", features=clusters.test.inputs)
    plain = embed(feature_run, tmp_path / "plain.npz", tmp_path)
    assert set(plain) == {"features"}
    np.testing.assert_allclose(plain["features"], arrays["test_features"], atol=1e-6)


def test_broken_images_end_it_or_are_left_out_and_named(image_model, photos, tmp_path, capsys):
    (photos / "class 0" / "2.png").write_text("no image")
    (photos / "class 5" / "7.png").write_bytes((photos / "class 5" / "6.png").read_bytes()[:60])
    out = tmp_path / "all.npz"
    message = refused("embed", image_model, photos, "-o", out, "--batch-size", "4")
    assert "2 images cannot be read" in message and "class 0/2.png" in message and "class 5/7.png" in message
    assert not out.exists()
    arrays = embed(image_model, photos, tmp_path, "--skip-broken", "--batch-size", "4")
    captured = capsys.readouterr().err
    assert "left out 2" in captured and "class 0/2.png" in captured
    assert len(arrays["features"]) == len(arrays["labels"]) == len(arrays["paths"]) == 46
    assert [path for path in arrays["paths"] if "class 0/2.png" in path or "class 5/7.png" in path] == []
    expected = load_embedder(image_model).embed(arrays["paths"].tolist())
    np.testing.assert_allclose(arrays["features"], expected, atol=2e-4)
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "x.png").write_text("no image")
    message = refused("embed", image_model, tmp_path / "one", "-o", out, "--skip-broken")
    assert "no image of 1 can be read" in message


def test_evaluates_on_another_folder_and_on_a_list_of_it(image_model, photos, tmp_path):
    text = run_command("evaluate", image_model, "--data", photos, "--device", "cpu").out
    assert f"{photos}: 48 samples of 6 classes\n" in text and "MAP@R" in text
    found = evaluated(image_model, "--data", photos)
    arrays = embed(image_model, photos, tmp_path)
    expected = retrieval_metrics(arrays["features"], arrays["labels"])
    assert found.items() >= {"data": str(photos), "samples": 48, "classes": 6, **expected}.items()
    files = [file.relative_to(tmp_path) for file in sorted(photos.rglob("*.png"))]
    listed = tmp_path / "list.csv"
    listed.write_text("label;path\n" + "".join(f"{file.parent.name};{file}\n" for file in files))
    assert evaluated(image_model, "--data", listed) == found | {"data": str(listed)}


def test_evaluates_on_the_test_part_as_the_run_did(feature_run, features):
    found = evaluated(feature_run, "--data", features)
    assert (found["samples"], found["classes"]) == (123, 9)
    trained = metrics_of(feature_run)
    for name in ("precision_at_1", "recall_at_8", "r_precision", "mean_average_precision_at_r"):
        assert found[name] == pytest.approx(trained[name], abs=1e-6)


@pytest.mark.parametrize("kind", nightly_but(["features"], ["images", "features"]))
def test_onnx_runs_elsewhere_with_any_batch(kind, image_model, feature_run, photos, clusters, tmp_path):
    model, path = (image_model if kind == "images" else feature_run), tmp_path / "out" / "model.onnx"
    printed = run_command("export", model, "-o", path)
    assert "no number differs from the network's by more than" in printed.out
    embedder = load_embedder(model)
    given = sorted((photos / "class 3").iterdir())[:7]
    inputs = embedder.prepare(given) if kind == "images" else torch.from_numpy(clusters.test.inputs[:7])
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    for batch in (1, 3, 7):
        (embeddings,) = session.run(["embeddings"], {"inputs": inputs[:batch].numpy()})
        np.testing.assert_allclose(embeddings, embedder.embed(inputs[:batch]), atol=1e-5)
    beside = json.loads((tmp_path / "out" / "model.onnx.json").read_text())
    stored = {prop.key: prop.value for prop in onnx.load(path).metadata_props}
    assert json.loads(stored["robustdml_ops.json"]) == beside
    assert beside["preprocessing"]["shape"] == ["batch", *embedder.card.input_shape]
    assert beside["class_names"] == list(embedder.card.class_names)


@pytest.mark.parametrize("kind", ["images", "features"])
def test_torch_export_runs_without_this_package(kind, image_model, feature_run, clusters, tmp_path):
    model, path = (image_model if kind == "images" else feature_run), tmp_path / "model.pt2"
    run_command("export", model, "-o", path)
    embedder = load_embedder(model)
    inputs = torch.rand(6, 3, SIZE, SIZE) if kind == "images" else torch.from_numpy(clusters.test.inputs[:6])
    extra = {"robustdml_ops.json": ""}
    program = torch.export.load(path, extra_files=extra).module()
    for batch in (1, 4, 6):
        torch.testing.assert_close(program(inputs[:batch]).detach(), embedder.embed(inputs[:batch]), atol=1e-5, rtol=0)
    assert json.loads(extra["robustdml_ops.json"])["embedding_size"] == embedder.embedding_size


def test_a_file_that_differs_is_not_written(feature_run, tmp_path, monkeypatch):
    """The check is a real one: it fails where what runs is another network."""

    def spoilt(embedder, example, metadata):
        content, run = exporting._torch_program(embedder, example, metadata)
        return content, lambda inputs: run(inputs) + 2e-4

    monkeypatch.setitem(exporting.FORMATS, ".pt2", spoilt)
    message = refused("export", feature_run, "-o", tmp_path / "model.pt2")
    assert "differs from the network by 2.0e-04, more than 0.0001" in message
    assert not list(tmp_path.glob("model.*"))


def test_what_cannot_be_exported_is_told(photos, tmp_path):
    (tmp_path / "odd_backbone.py").write_text(
        "import torch\nclass Odd(torch.nn.Module):\n    def forward(self, images):\n"
        "        return images.flatten(1)[:, : 9 if float(images.sum()) > -1 else 3]\n"
    )
    command = ["train", "--data", "photos", "--image-size", "8", "--backbone", "odd_backbone:Odd", "--epochs", "1"]
    run_command(*command, "--batch-size", "8", "--method", "contrastive", "--device", "cpu", "--out", "odd")
    message = refused("export", "odd", "-o", "odd.pt2", "--backbone", "odd_backbone:Odd")
    assert "odd_backbone:Odd cannot be exported" in message
    assert not (tmp_path / "odd.pt2").exists()


def test_without_the_extra_it_says_what_to_install(feature_run, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    message = refused("export", feature_run, "-o", tmp_path / "x.onnx")
    assert "ONNX needs onnxruntime: install with `pip install onnxruntime`" in message
    run_command("export", feature_run, "-o", tmp_path / "x.pt2")


def test_an_image_finds_its_class_and_not_itself(image_model, photos, tmp_path):
    query = photos / "class 2" / "3.png"
    printed = run_command("search", image_model, query, "--in", photos, "-k", "4", "--device", "cpu", "--out", "out")
    assert "1 query in 48 samples" in printed.out
    (one,) = json.loads((tmp_path / "out" / "search.json").read_text())
    assert one["query"] == str(query) and one["class"] is None
    assert str(query) not in [hit["sample"] for hit in one["found"]]
    assert [hit["class"] for hit in one["found"]] == ["class 2"] * 4
    embedder = load_embedder(image_model)
    for hit in one["found"]:
        cosine = float(embedder.embed(query) @ embedder.embed(hit["sample"]).T)
        assert cosine == pytest.approx(hit["similarity"], abs=1e-5)
    text = (tmp_path / "out" / "search.html").read_text()
    assert len(re.findall('<img src="data:image/jpeg', text)) == 5 and "class 2" in text


def test_features_are_searched_without_pictures(feature_run, clusters, features, tmp_path):
    gallery = features.replace("clusters.npz", "./clusters.npz")
    run_command("search", feature_run, features, "--in", gallery, "-k", "500", "--device", "cpu", "--out", "out")
    listed = json.loads((tmp_path / "out" / "search.json").read_text())
    assert len(listed) == 123 and all(len(one["found"]) == 122 for one in listed)
    # Among themselves no sample finds itself.
    assert all(one["query"] not in [hit["sample"] for hit in one["found"]] for one in listed)
    assert listed[7]["class"] == str(clusters.test.labels[7])
    assert "<img" not in (tmp_path / "out" / "search.html").read_text()


def test_paths_pil_images_and_arrays_are_one(image_model, photos):
    embedder = load_embedder(image_model)
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


@pytest.mark.skipif(importlib.util.find_spec("faiss") is None, reason="faiss is not installed: pip install faiss-cpu")
def test_the_example_of_faiss_finds_an_image(image_model, photos):
    query = photos / "class 4" / "0.png"
    command = [sys.executable, ROOT / "examples" / "faiss_index.py", image_model, photos, query]
    found = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    assert found[0] == f"1.000 {query}"


def test_a_query_does_not_find_itself_under_another_path(image_model, photos, tmp_path):
    """Such as in a folder of links, which `apply` lays out."""
    (tmp_path / "clean").mkdir()
    for number, file in enumerate(sorted(photos.rglob("*.png"))):
        (tmp_path / "clean" / f"{number}.png").symlink_to(file)
    query = photos / "class 3" / "0.png"
    run_command("search", image_model, query, "--in", tmp_path / "clean", "-k", "47", "--device", "cpu", "--out", "out")
    (one,) = json.loads((tmp_path / "out" / "search.json").read_text())
    assert len(one["found"]) == 47
    assert not any(Path(hit["sample"]).resolve() == query.resolve() for hit in one["found"])


def prepared_by(description, file):
    """An image as the description says, and nothing else: each step is done where it is named."""
    side = description["shape"][2:]
    steps = {
        "frame": lambda image: (image.seek(0), image)[1],
        "upright": ImageOps.exif_transpose,
        "depth": to_eight_bits,
        "transparency": over_white,
        "mode": lambda image: image.convert(description["mode"]),
        "crop": central_square,
        "resize": lambda square: square[0].resize(side, Image.Resampling.BICUBIC, box=square[1]),
        "range": lambda image: np.float32(image) / 255 * description["range"][1],
    }
    image = Image.open(file)
    for name in description["order"]:
        assert description[name]
        image = steps[name](image)
    return image.transpose(2, 0, 1)


def to_eight_bits(image):
    if not image.mode.startswith("I;16"):
        return image
    numbers = np.asarray(image)
    return Image.fromarray((numbers >> (4 if numbers.max() < 4096 else 8)).astype(np.uint8))


def over_white(image):
    return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image.convert("RGBA"))


def central_square(image):
    side = min(image.size)
    left, top = (image.width - side) / 2, (image.height - side) / 2
    return image, (left, top, left + side, top + side)


def test_the_exported_description_is_all_that_a_stranger_needs(image_model, tmp_path):
    run_command("export", image_model, "-o", tmp_path / "model.pt2")
    description = json.loads((tmp_path / "model.pt2.json").read_text())["preprocessing"]
    embedder, colours = load_embedder(image_model), np.random.default_rng(0).integers(0, 255, (3, 4, 3))
    scene = Image.fromarray(colours.astype(np.uint8)).resize((61, 40), Image.Resampling.BICUBIC)
    clear, turned, deep = scene.convert("RGBA"), Image.Exif(), np.asarray(scene.convert("L")).astype(np.uint16)
    clear.putalpha(Image.linear_gradient("L").resize(scene.size))
    turned[274] = 6
    scene.save(tmp_path / "turned.png", exif=turned)
    clear.save(tmp_path / "clear.png")
    Image.fromarray(deep << 8).save(tmp_path / "deep.png")
    Image.fromarray(deep << 4).save(tmp_path / "camera.png")
    for name in ("turned.png", "clear.png", "deep.png", "camera.png"):
        theirs = torch.from_numpy(prepared_by(description, tmp_path / name))[None]
        torch.testing.assert_close(theirs, embedder.prepare([tmp_path / name]), atol=1.5 / 255, rtol=0)
        torch.testing.assert_close(embedder.embed(theirs), embedder.embed([tmp_path / name]), atol=1e-3, rtol=0)
