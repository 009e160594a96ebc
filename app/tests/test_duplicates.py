"""Copies in a folder of images, and their removal by decisions."""

import json
import shutil

import numpy as np
import pytest
from PIL import Image

from app.tests.conftest import csv_rows, refused, run_command


@pytest.fixture
def folder(tmp_path):
    """Five pictures: two copied byte for byte, one of them twice, and one saved as a small JPEG."""
    root, random = tmp_path / "photos", np.random.default_rng(0)
    (root / "deep").mkdir(parents=True)
    for number in range(5):
        scene = Image.fromarray(random.integers(0, 255, (6, 8, 3)).astype(np.uint8))
        scene.resize((160, 120), Image.Resampling.BICUBIC).save(root / f"{number}.png")
    shutil.copy(root / "0.png", root / "deep" / "copy.png")
    shutil.copy(root / "0.png", root / "deep" / "copy2.png")
    shutil.copy(root / "1.png", root / "deep" / "one.png")
    Image.open(root / "2.png").resize((80, 60)).save(root / "small.jpg", quality=80)
    (root / "broken.png").write_text("no image")
    return root


def files(root):
    return {str(file.relative_to(root)) for file in root.rglob("*") if file.is_file()}


def test_copies_are_listed_and_removed_by_decision(folder):
    before = files(folder)
    said = run_command("duplicates", folder)
    assert "duplicates.csv: 4 copies beside 3 images, of 9; they take" in said.out
    assert "broken.png (cannot identify" in said.err
    rows = csv_rows("duplicates.csv")
    groups = [[row for row in rows if row["group"] == str(number)] for number in range(3)]
    assert [[row["decision"] for row in group].count("keep") for group in groups] == [1, 1, 1]
    assert [len(group) for group in groups] == [3, 2, 2] and files(folder) == before
    # The larger one of a picture and its small copy is kept.
    assert next(row for row in rows if row["image"].endswith("small.jpg"))["decision"] == "remove"
    kept = next(row for row in groups[0] if row["decision"] == "keep")
    text = (folder.parent / "duplicates.csv").read_text().replace(f"0,keep,{kept['image']}", f"0,,{kept['image']}")
    (folder.parent / "duplicates.csv").write_text(text)
    printed = json.loads(run_command("duplicates", folder, "--remove", "duplicates.csv", "--json").out)
    assert printed["removed"] == 4 and printed["stay"] == 3
    gone = {row["image"] for row in rows if row["decision"] == "remove"}
    assert files(folder) == {name for name in before if str(folder / name) not in gone}
    assert "no copies in" in refused("duplicates", folder, "--remove", "duplicates.csv")
    assert json.loads(run_command("duplicates", folder, "--json").out)["copies"] == 0


def test_one_of_each_group_stays(folder):
    run_command("duplicates", folder)
    before, text = files(folder), (folder.parent / "duplicates.csv").read_text()
    cases = {
        text.replace(",keep,", ",remove,"): "of 3 groups no image would stay",
        text.replace(",remove,", ",delete,"): "decisions delete; expected keep or remove",
        text.replace("decision", "verdict"): "no column 'decision'",
        f"{text}9,remove,{folder}/3.png,1\n": f"no copies in {folder} (any longer): {folder}/3.png",
    }
    for number, (changed, told) in enumerate(cases.items()):
        (folder.parent / f"{number}.csv").write_text(changed)
        assert told in refused("duplicates", folder, "--remove", f"{number}.csv")
    assert files(folder) == before
    assert "no such folder" in refused("duplicates", "none")


def test_a_file_that_is_linked_to_stays(folder):
    (folder / "link.png").symlink_to(folder / "4.png")
    run_command("duplicates", folder)
    text = (folder.parent / "duplicates.csv").read_text()
    assert f"keep,{folder}/4.png" in text and f"remove,{folder}/link.png" in text
    swapped = text.replace(f"keep,{folder}/4.png", f"remove,{folder}/4.png")
    swapped = swapped.replace(f"remove,{folder}/link.png", f"keep,{folder}/link.png")
    (folder.parent / "swapped.csv").write_text(swapped)
    assert "4.png is what" in refused("duplicates", folder, "--remove", "swapped.csv")
    run_command("duplicates", folder, "--remove", "duplicates.csv")
    assert (folder / "4.png").exists() and not (folder / "link.png").is_symlink()
