"""Decisions on an audit: kept per data set, from several files, shown in the next page; and tables beside them."""

import json
import re

import numpy as np
import pytest

from app.tests.conftest import csv_rows, run_command
from app.tests.test_auditor import made_up


@pytest.fixture
def audited(tmp_path):
    """30 classes of 12, of which the last holds two things, with a copied row and four wrong labels."""
    X, truth = made_up(31, 12, spread=0.4, seed=7)
    labels = np.minimum(truth, 29)
    labels[[5, 100, 200, 300]] = [3, 4, 5, 6]
    X = np.concatenate([X, X[40:41]])
    np.savez(tmp_path / "things.npz", features=X, labels=np.append(labels, 9), class_names=[f"c{k}" for k in range(30)])

    def audit(*more, out="out"):
        printed = run_command("audit", "things.npz", "--out", out, "--as-they-are", *more)
        page = (tmp_path / out / "audit.html").read_text()
        return printed, page, json.loads(re.search(r'id="data">(.*?)</script>', page, re.S)[1])

    return audit


def write(path, *lines):
    path.write_text("\n".join(("sample,class,decision,label", *lines, "")))


def test_files_of_several_flags_count_and_the_page_shows_them(audited, tmp_path):
    first = audited()[2]
    write(tmp_path / "one.csv", "5,,wrong,", "0,,right,")
    write(tmp_path / "two.csv", "100,,drop,")
    printed, _, data = audited("--decisions", "one.csv", "--decisions", "two.csv")
    assert "3, of them 2 wrong" in printed.out
    assert data["decisions"] == {"s5": ["wrong", ""], "s0": ["right", ""], "s100": ["drop", ""]}
    probabilities = {row["sample"]: float(row["probability"]) for row in csv_rows(tmp_path / "out" / "labels.csv")}
    assert [probabilities[name] for name in ("5", "0", "100")] == [0, 1, 0]
    # A browser keeps decisions by the data set: other suspects, or another folder, do not lose them.
    assert data["audit"] == first["audit"] == audited(out="other")[2]["audit"]
    assert data["suspects"] != first["suspects"] or data["decisions"]
    both = ("--decisions", "one.csv", "--decisions", "two.csv")
    told = json.loads(run_command("apply", "out/labels.csv", "--to", "clean.csv", "--json", *both).out)
    assert told["decisions"] == {"wrong": 1, "right": 1, "drop": 1}


def test_copies_have_a_table_and_a_section(audited, tmp_path):
    _, _, data = audited()
    rows = csv_rows(tmp_path / "out" / "copies.csv")
    assert [(row["group"], row["sample"], row["label"]) for row in rows] == [("0", "40", "c3"), ("0", "372", "c9")]
    section = next(one for one in data["sections"] if one["title"] == "Copies under different labels")
    assert [question["name"] for question in section["questions"]] == ["copy 40"]
    found = {row["sample"]: row["verdict"] for row in csv_rows(tmp_path / "out" / "labels.csv")}
    assert [found["40"], found["372"]].count("right") <= 1


def test_a_folder_that_holds_two_things_is_the_most_spread_class(audited):
    _, page, _ = audited()
    table = page.split("Most spread classes")[1]
    first = re.search(r'<tbody><tr><th scope="row">(.*?)</th>', table)
    assert first is not None and first[1] == "c29"
