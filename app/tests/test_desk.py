"""Data as other tools leave them: labels in file names, pictures in a table, features and networks."""

import importlib.util
import io
import json

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from app.tests.conftest import SMALL, csv_rows, refused, run_command, save_photos
from robustdml.audit_report.samples import read_samples
from robustdml.data import load_data
from robustdml.data.lists import Columns, read_list
from robustdml.errors import UsageError

PATTERN = Columns(pattern=r"([a-z]+)_\d+\.png$")
needs_pyarrow = pytest.mark.skipif(importlib.util.find_spec("pyarrow") is None, reason="needs the extra lists")


@pytest.fixture
def named(tmp_path):
    """Photographs whose classes are in their names."""
    save_photos(tmp_path / "photos", classes=4, images=6, size=(30, 40))
    folder = tmp_path / "named"
    folder.mkdir()
    for file in (tmp_path / "photos").rglob("*.png"):
        file.rename(folder / f"{'abcd'[int(file.parent.name[-1])]}_{file.stem}.png")
    return folder


def test_labels_by_the_names_of_files(named, tmp_path):
    Image.new("RGB", (9, 9)).save(named / "other.png")
    data = load_data(str(named), image_size=8, columns=PATTERN, test_fraction=0)
    assert data.train.class_names == tuple("abcd") and np.bincount(data.train.labels).tolist() == [6] * 4
    assert data.left_out == (f"{named}/other.png (no label)",)
    assert read_samples(str(named), PATTERN).class_names == tuple("abcd")
    rows = "\n".join(["path", *(f"named/{file.name}" for file in sorted(named.iterdir()))])
    (tmp_path / "list.csv").write_text(rows)
    listed = read_list(tmp_path / "list.csv", PATTERN)
    assert listed.class_names == tuple("abcd") and listed.left_out == ("row 25 of list.csv (no label)",)
    command = ["train", "--data", named, *SMALL, "--label-pattern", PATTERN.pattern, "--out"]
    run_command(*command, "run")
    assert r"label_pattern: ([a-z]+)_\d+\.png$" in (tmp_path / "run" / "config.yaml").read_text().replace("'", "")
    said = run_command("evaluate", "run", "--data", named, "--label-pattern", PATTERN.pattern).out
    assert "24 samples of 4 classes" in said
    wrong = {"(": "no regular expression", "a": "put round brackets", "(z)": "none of 25 images has"}
    for pattern, told in wrong.items():
        with pytest.raises(UsageError, match=told):
            load_data(str(named), columns=Columns(pattern=pattern))


@needs_pyarrow
def test_pictures_within_a_table(named, tmp_path, image_model):
    import pyarrow
    import pyarrow.parquet as parquet

    pictures, labels = [], []
    for file in sorted(named.iterdir()):
        pictures.append({"bytes": file.read_bytes(), "path": file.name})
        labels.append("abcd".index(file.name[0]))
    table = pyarrow.table({"image": pictures, "label": labels, "mask": pictures})
    about = {"info": {"features": {"label": {"_type": "ClassLabel", "names": ["ant", "bee", "cat", "dog"]}}}}
    parquet.write_table(table.replace_schema_metadata({"huggingface": json.dumps(about)}), tmp_path / "hub.parquet")
    parquet.write_table(pyarrow.table({"image": [one["bytes"] for one in pictures]}), tmp_path / "bytes.parquet")
    data = load_data(str(tmp_path / "hub.parquet"), image_size=8, test_fraction=0)
    assert data.train.class_names == ("ant", "bee", "cat", "dog")
    whole = load_data(str(named), image_size=8, columns=PATTERN, test_fraction=0)
    np.testing.assert_array_equal(data.train.inputs[:], whole.train.inputs[:])
    assert "24×8" in run_command("embed", image_model, "bytes.parquet", "-o", "e.npz").out


def joined(folder, kind):
    """A table of features with a path each, in a file of some kind; its last image is missing."""
    files = sorted(folder.iterdir())[:-1]
    random = np.random.default_rng(0)
    centre = random.normal(size=(4, 5))
    rows = np.array([centre["abcd".index(file.name[0])] + 0.1 * random.normal(size=5) for file in files], np.float32)
    path, names = folder.parent / f"features.{kind}", [f"{folder.name}/{file.name}" for file in files]
    if kind == "npz":
        np.savez(path, features=rows, paths=np.array(names))
    elif kind == "parquet":
        import pyarrow
        import pyarrow.parquet as parquet

        parquet.write_table(pyarrow.table({"path": names, "embedding": rows.tolist()}), path)
    else:
        lines = [";".join([name, *map(str, row)]) for name, row in zip(names, rows.tolist(), strict=True)]
        path.write_text("\n".join(["path;a;b;c;d;e", *lines]))
    return path, rows


@pytest.mark.parametrize("kind", ["csv", "npz", pytest.param("parquet", marks=needs_pyarrow)])
def test_features_of_another_tool_joined_by_path(kind, named, tmp_path):
    table, rows = joined(named, kind)
    common = {"columns": PATTERN, "test_fraction": 0, "features": str(table)}
    data = load_data(str(named), skip_broken=True, **common)
    np.testing.assert_allclose(data.train.inputs, rows, rtol=1e-6)
    assert data.train.class_names == tuple("abcd") and data.train.names()[0] == f"{named}/a_0.png"
    assert data.left_out == (f"{named}/d_5.png (not in {table.name})",)
    with pytest.raises(UsageError, match=r"1 image cannot be read; .*d_5.png .not in features"):
        load_data(str(named), **common)


def test_train_and_audit_with_features_of_another_tool(named, tmp_path):
    table, _ = joined(named, "csv")
    given = ["--label-pattern", PATTERN.pattern, "--features", table, "--epochs", "1", "--device", "cpu"]
    run_command("train", "--data", named, *given, "--skip-broken", "--batch-size", "8", "--out", "run")
    assert "features: " in (tmp_path / "run" / "config.yaml").read_text()
    run_command("audit", named, *given, "--out", "audit")
    rows = csv_rows("audit/labels.csv")
    assert len(rows) == 23 and rows[0]["sample"] == f"{named}/a_0.png"
    run_command("apply", "audit/labels.csv", "--to", "clean", "--yes")
    assert list((tmp_path / "clean").rglob("*.png"))
    (tmp_path / "other.csv").write_text("path,a\nx.png,1\n")
    said = refused("audit", named, *given[:2], "--features", "other.csv", "--out", "no")
    assert "none of 24 images of" in said and "its paths, relative to its folder, are x.png" in said
    (tmp_path / "other.csv").write_text("path,a\nx.png,blue\n")
    assert "values that are no numbers" in refused("audit", named, *given[:2], "--features", "other.csv", "--out", "no")
    said = refused("train", "--data", "glyphs", "--features", "other.csv")
    assert "data 'glyphs' has no files of images that they could be joined to" in said


class Tiny(nn.Module):
    def __init__(self):
        super().__init__()
        self.network = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten())

    def forward(self, images):
        return self.network(images - 0.5)


SOURCE = """
import torch
from part import SIDE

def encoder():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(SIDE), torch.nn.Flatten())

number = 1
"""


@pytest.mark.parametrize("kind", ["pt2", "py"])
def test_a_backbone_by_path(kind, photos, tmp_path):
    name, other = ("net/tiny.pt2", "net/none.pt2") if kind == "pt2" else ("net/tiny.py:encoder", "net/none.py:encoder")
    (tmp_path / "net").mkdir()
    torch.manual_seed(0)
    batch = torch.export.Dim("batch", min=1)
    program = torch.export.export(Tiny().eval(), (torch.rand(2, 3, 24, 24),), dynamic_shapes={"images": {0: batch}})
    torch.export.save(program, tmp_path / "net" / "tiny.pt2")
    (tmp_path / "net" / "tiny.py").write_text(SOURCE)
    (tmp_path / "net" / "part.py").write_text("SIDE = 4\n")
    common = ("--image-size", "24", "--epochs", "1", "--device", "cpu", "--batch-size", "8")
    run_command("train", "--data", photos, "--backbone", name, *common, "--out", "run")
    assert "code that is not in the file" in refused("embed", "run", photos, "-o", "e.npz")
    run_command("embed", "run", photos, "--backbone", name, "-o", "e.npz", "--device", "cpu")
    arrays = np.load("e.npz")
    assert len(arrays["features"]) == 48 and np.isfinite(arrays["features"]).all()
    assert "none" in refused("train", "--data", photos, "--backbone", other, *common, "--out", "no")
    (tmp_path / "net" / "none.pt2").write_bytes(io.BytesIO(b"PK none").getvalue())
    if kind == "pt2":
        said = refused("train", "--data", photos, "--backbone", other, *common, "--out", "no")
        assert "not a program of torch.export" in said
