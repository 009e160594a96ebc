"""The report of a run and the pages of search and evaluation in Chromium, as wide as a screen and as a telephone."""

import shutil

import pytest

from app.tests.browser import needs_browser
from app.tests.conftest import LONG, PHOTOS, save_photos
from robustdml.cli import main

pytestmark = needs_browser


@pytest.fixture(scope="module")
def pages(trained, tmp_path_factory):
    """Pages by their command, of photographs in whose names no line can end."""
    folder = tmp_path_factory.mktemp("pages")
    photos = save_photos(folder / "photos", **PHOTOS)
    shutil.move(photos / "class 2", photos / LONG)
    model = str(trained[0] / "images")
    assert main(["search", model, str(photos), "--in", str(photos), "--out", str(folder / "found")]) == 0
    assert main(["evaluate", model, "--data", str(photos), "--out", str(folder / "evaluation")]) == 0
    return {
        "train": trained[0] / "images" / "report.html",
        "search": folder / "found" / "search.html",
        "evaluate": folder / "evaluation" / "evaluation.html",
    }


@pytest.mark.parametrize("width", [1200, 390])
@pytest.mark.parametrize("command", ["train", "search", "evaluate"])
def test_fits_the_window(chromium, pages, command, width):
    chromium.open(pages[command], width)
    assert chromium.cut() == []
    # Letters of a plot are at least two thirds of those that it was drawn with.
    plots = chromium.run("return [...document.querySelectorAll('body > figure > img')].map(one => one.width)")
    assert all(one >= 550 for one in plots) and bool(plots) == (command != "search")
    # No column of a table takes the whole window.
    names = chromium.run("return [...document.querySelectorAll('tbody th')].map(one => one.offsetWidth)")
    assert max(names, default=0) < 0.7 * width


@pytest.mark.parametrize(("width", "columns"), [(1200, 5), (390, 4)])
def test_what_was_found_stands_in_rows(chromium, pages, width, columns):
    chromium.open(pages["search"], width)
    places = chromium.run(
        "return [...document.querySelectorAll('.searched')].map(row => [...row.querySelectorAll('figure')].map(one => {"
        "const box = one.getBoundingClientRect();"
        "return [Math.round(box.left), Math.round(box.top), Math.round(box.right), Math.round(box.bottom)] }))"
    )
    above = 0
    for query, *found in places:
        assert len({left for left, *_ in found}) == columns
        assert all(left >= query[2] or top >= query[3] for left, top, *_ in found)
        assert min(query[1], found[0][1]) >= above
        above = max(bottom for *_, bottom in (query, *found))
