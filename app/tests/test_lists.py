"""Lists and tables as people and spreadsheets save them."""

import importlib.util
import json

import numpy as np
import pytest

from app.tests.conftest import SMALL, finding, run_command, save_photos
from robustdml.audit_report.findings import read_findings, write_findings
from robustdml.audit_report.samples import read_samples
from robustdml.data import load_data
from robustdml.data.lists import Columns, read_list
from robustdml.errors import UsageError


@pytest.fixture
def rows(photos):
    """Path, label and part of each photograph; classes 4 and 5 are for testing."""
    files = sorted(photos.rglob("*.png"))
    return [(str(file), file.parent.name, "test" if file.parent.name[-1] in "45" else "train") for file in files]


def write(path, head, rows, separator=",", encoding="utf-8", before=""):
    lines = [separator.join(row) for row in [head, *rows]]
    path.write_bytes((before + "\r\n".join(lines) + "\r\n").encode(encoding))
    return str(path)


def parts_of(data):
    return data.train.class_names, data.test.class_names


PARTS = tuple(f"class {number}" for number in range(4)), ("class 4", "class 5")


@pytest.mark.parametrize("column", ["part", "split", "Split", "subset"])
@pytest.mark.parametrize("words", [("train", "test"), ("Train", "Test"), ("TRAINING", "testing"), (" train", "test ")])
def test_a_column_of_parts_by_its_names(column, words, rows, tmp_path):
    named = [(path, label, words[part == "test"]) for path, label, part in rows]
    assert parts_of(load_data(write(tmp_path / "list.csv", ("path", "label", column), named), image_size=8)) == PARTS


def test_a_column_that_is_no_training_and_test_part(rows, tmp_path):
    for words in (("train", "val"), ("train", "validation"), ("dev", "test")):
        named = [(path, label, words[part == "test"]) for path, label, part in rows]
        file = write(tmp_path / "list.csv", ("path", "label", "split"), named)
        with pytest.raises(UsageError, match=r"column split holds .*; expected train .training, Train, .*or rename"):
            load_data(file, image_size=8)
    # One of that name may mean anything else, and is told; so is one of another name that looks like it.
    named = [(path, label, "bolt", part) for path, label, part in rows]
    file = write(tmp_path / "list.csv", ("path", "label", "part", "usage"), named)
    data = load_data(file, image_size=8)
    takes = "column usage looks like a split, and is not used; --split-column usage takes it"
    assert data.notes == ("column part is not used: 'bolt'", takes)
    command = ["train", "--data", file, *SMALL, "--out", "run"]
    assert takes in run_command(*command).err
    command = ["train", "--data", file, *SMALL, "--out", "parts", "--split-column", "usage"]
    assert takes not in run_command(*command).err
    assert "split_column: usage" in (tmp_path / "parts" / "config.yaml").read_text()
    assert parts_of(load_data(file, image_size=8, columns=Columns(split="usage"))) == PARTS


def test_columns_by_name(rows, tmp_path):
    shop = write(tmp_path / "shop.csv", ("id", "photo", "sku", "label"), [("1", *row) for row in rows])
    columns = Columns(path="photo", label="sku", split="label")
    assert parts_of(load_data(shop, image_size=8, columns=columns)) == PARTS
    assert read_samples(shop, columns).class_names == PARTS[0] + PARTS[1]
    with pytest.raises(UsageError, match=r"no column 'path'; found id, photo, sku, label\. .*--path-column"):
        load_data(shop, image_size=8)
    with pytest.raises(UsageError, match=r"no column .foto.; found id, photo"):
        load_data(shop, image_size=8, columns=Columns(path="foto"))


def test_a_list_of_every_kind(rows, tmp_path, image_model):
    head, listed = ("file_name", "class", "split"), [row for row in rows if row[1] != "class 0"]
    objects = "\n".join(json.dumps(dict(zip(head, row, strict=True))) for row in listed)
    (tmp_path / "a.jsonl").write_text(objects)
    lists = [str(tmp_path / "a.jsonl"), write(tmp_path / "a.tsv", head, listed, "\t")]
    lists.append(write(tmp_path / "bar.csv", head, listed, "|"))
    lists.append(write(tmp_path / "sep.csv", head, listed, ";", before="sep=;\r\n"))
    lists.append(write(tmp_path / "utf16.csv", head, listed, "\t", encoding="utf-16"))
    lists.append(write(tmp_path / "blanks.csv", (" File_Name ", "Class ", "Split"), listed, ",", encoding="utf-8-sig"))
    for one in lists:
        data = load_data(one, image_size=8)
        assert parts_of(data) == (PARTS[0][1:], PARTS[1]) and len(data.train) == 24, one
    # Without labels there is still something to embed.
    unlabelled = write(tmp_path / "paths.csv", ("image", "price"), [(row[0], "1") for row in rows])
    assert "48×8" in run_command("embed", image_model, unlabelled, "-o", tmp_path / "e.npz").out
    assert "labels" not in np.load(tmp_path / "e.npz")


def test_a_list_that_a_spreadsheet_saved_without_utf_8(tmp_path, capsys):
    save_photos(tmp_path / "photos", classes=2, images=2, size=(9, 9))
    (tmp_path / "photos" / "class 0").rename(tmp_path / "photos" / "café")
    rows = [(f"photos/{label}/{number}.png", label) for label in ("café", "class 1") for number in range(2)]
    path = write(tmp_path / "list.csv", ("path", "label"), rows, ";", "cp1252")
    assert read_list(tmp_path / "list.csv").class_names == ("café", "class 1")
    assert f"{path} is not in UTF-8, and read as Windows-1252" in capsys.readouterr().err
    assert len(load_data(path, image_size=8, test_fraction=0).train) == 4


def test_tables_of_other_kinds_are_refused_by_name(tmp_path):
    for content, told in {
        b"PK\3\4rest": "a workbook or an archive, not a list of images; save it as CSV in UTF-8",
        b"path,label\na.png,\x81\n": "neither in UTF-8 nor in Windows-1252",
        b"path,label\nhttps://example.org/a.png,x\n": "row 1 is an address, https://example.org/a.png; download it",
        b"path,label\na.png\n": "no line has a path and a label",
    }.items():
        (tmp_path / "list.csv").write_bytes(content)
        with pytest.raises(UsageError, match=told):
            read_list(tmp_path / "list.csv")
    (tmp_path / "list.jsonl").write_text('{"path": "a.png", "label": 1}\n[1]\n')
    with pytest.raises(UsageError, match=r"list.jsonl, line 2: not JSON \(a list, and an object"):
        read_list(tmp_path / "list.jsonl")


def test_findings_and_decisions_that_a_spreadsheet_saved(tmp_path):
    """Semicolons, decimal commas and a mark before the text."""
    save_photos(tmp_path / "photos", classes=2, images=2, size=(9, 9))
    files = sorted((tmp_path / "photos").rglob("*.png"))
    findings = [finding(file, file.parent.name, duplicate_group=number) for number, file in enumerate(files)]
    write_findings(tmp_path / "labels.csv", findings)
    text = (tmp_path / "labels.csv").read_text().replace(",", ";").replace("0.9000", "0,9")
    (tmp_path / "saved.csv").write_text("sep=;\n" + text, encoding="utf-8-sig")
    assert read_findings(tmp_path / "saved.csv") == findings
    (tmp_path / "decisions.csv").write_text(f"sample;class;decision;label\n{files[0]};;drop;\n", encoding="utf-8-sig")
    command = ("apply", tmp_path / "saved.csv", "--to", tmp_path / "clean.csv")
    assert "by decision: 1 drop" in run_command(*command, "--decisions", tmp_path / "decisions.csv").out
    (tmp_path / "saved.csv").write_text(text.replace("verdict", "Urteil"))
    with pytest.raises(UsageError, match=r"no column .verdict. among sample; label; probability; .*; Urteil; "):
        read_findings(tmp_path / "saved.csv")


def test_paths_as_other_systems_write_them(tmp_path):
    save_photos(tmp_path / "photos", classes=2, images=1, size=(9, 9))
    (tmp_path / "list.csv").write_text("path,label\nphotos\\class 0\\0.png,a\nphotos/class 1/0.png,b\nnone\\0.png,b\n")
    assert read_list(tmp_path / "list.csv").files[0] == tmp_path / "photos" / "class 0" / "0.png"
    with pytest.raises(UsageError, match=r"No such file; a backslash separates no folders here"):
        load_data(str(tmp_path / "list.csv"), image_size=8)
    rows = "path,label\nphotos/class 0/0.png,a\nphotos/class 1/../class 0/0.png,b\n"
    (tmp_path / "list.csv").write_text(rows)
    with pytest.raises(UsageError, match="rows 1 and 2 are of the same file"):
        read_list(tmp_path / "list.csv")


@pytest.mark.skipif(importlib.util.find_spec("pyarrow") is None, reason="needs the extra lists")
def test_gaps_and_numbers_of_parquet(tmp_path):
    import pyarrow
    import pyarrow.parquet as parquet

    labels = pyarrow.array([1.0, float("nan"), 2.0, None])
    pictures = pyarrow.array([b"x"] * 4)
    table = pyarrow.table({"path": ["a.png", "b.png", "c.png", "d.png"], "label": labels, "image": pictures})
    parquet.write_table(table, tmp_path / "list.parquet")
    listed = read_list(tmp_path / "list.parquet")
    assert listed.class_names == ("1", "2")
    assert listed.left_out == ("row 2 of list.parquet (no label)", "row 4 of list.parquet (no label)")


def test_a_folder_with_a_list_in_it(tmp_path):
    save_photos(tmp_path / "photos", classes=2, images=2, size=(9, 9))
    for number, file in enumerate(sorted((tmp_path / "photos").rglob("*.png"))):
        file.rename(tmp_path / "photos" / f"{number}.png")
    rows = [(f"{number}.png", "cat" if number < 2 else "dog") for number in range(4)]
    write(tmp_path / "photos" / "metadata.csv", ("file_name", "label"), rows)
    assert load_data(str(tmp_path / "photos"), image_size=8, test_fraction=0).train.class_names == ("cat", "dog")
