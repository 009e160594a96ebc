"""Pages in Chromium, as wide as a screen and as a telephone.

``audit.html`` with clicks, keys, and what `apply` makes of the decisions; the report of a run, search and evaluation.
"""

import shutil
import time
from collections import Counter

import numpy as np
import pytest
from PIL import Image

from app.tests.browser import needs_browser, soon
from app.tests.conftest import LONG, PHOTOS, csv_rows, run_command, save_photos
from robustdml.commands import audit

pytestmark = needs_browser
NAMES = (LONG, "golden_retriever", "cat", "a rather long name of which nobody knows why it was chosen")


@pytest.fixture(scope="module")
def audited(tmp_path_factory):
    """Four classes of coloured noise, three images of each under the next one's name, and one of train in test, too."""
    folder = tmp_path_factory.mktemp("page")
    random = np.random.default_rng(0)
    for label, name in enumerate(NAMES):
        for number in range(16):
            file = folder / "data" / ("test" if number > 13 else "train") / name / f"{label}-{number}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            colour = 200 * np.eye(4, 3)[(label + (number < 3)) % len(NAMES)] + random.integers(0, 55, 3)
            pixels = random.integers(-20, 20, (20, 20, 3)) + colour
            Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(file)
    shutil.copy(folder / "data" / "train" / "cat" / "2-8.png", folder / "data" / "test" / "cat" / "copy.png")
    shutil.copy(folder / "data" / "train" / "cat" / "2-9.png", folder / "data" / "test" / "loose.png")

    def features(samples, *_):
        colours = np.asarray(samples.inputs, dtype=np.float32).mean((2, 3)) - 90
        return colours, colours, None

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(audit, "_features", features)
        run_command("audit", folder / "data", "--out", folder / "out", "--image-size", "20")
    return folder


@pytest.fixture
def page(chromium, audited):
    """The page without decisions."""
    chromium.open(audited / "out" / "audit.html")
    yield chromium
    chromium.run("localStorage.clear()")


def here(page):
    """Place of the current suspect, and how many are decided."""
    place = page.run("return [...document.querySelectorAll('.card')].findIndex(one => one.matches('.here'))")
    return place, int(page.texts("#state")[0].split("·")[1].split()[0])


def test_keys_and_clicks_advance_in_the_same_way(page):
    page.press("r")
    assert here(page) == (1, 1)
    page.click(".card:nth-child(2) .choices button")
    assert here(page) == (2, 2)
    page.press("j", "d")
    assert here(page) == (4, 3)
    page.press("u")
    assert here(page) == (3, 2)
    # The next one without a decision: the third has none, the first two are behind.
    page.press("k", "t")
    assert here(page) == (3, 3)
    page.press("c", *"rathe", "enter")
    assert here(page) == (4, 4) and f"apply puts it in “{NAMES[3]}”" in page.texts(".card:nth-child(4) small")
    page.press("k")
    pressed = page.texts(".card:nth-child(4) [aria-pressed=true]")
    assert here(page)[0] == 3 and len(pressed) == 1 and "another class" in pressed[0]
    # Decisions stay when the page is opened again. A busy browser loses what it has not written yet.
    time.sleep(1)
    assert soon(lambda: page.call("/refresh") or here(page), (0, 4)) == (0, 4)


def test_a_click_or_space_enlarges(page):
    def enlarged():
        return page.run("const one = document.querySelector('#large[open] img'); return one && one.width > 400")

    page.press("space")
    assert soon(enlarged, True)
    page.press("t")  # Goes on with the next picture.
    assert soon(enlarged, True) and here(page) == (1, 1)
    page.press("space")
    assert soon(enlarged, None) is None
    page.click(".near img")
    assert soon(enlarged, True)
    page.press("escape")
    assert soon(enlarged, None) is None
    # The samples most similar to a suspect stand beside it with their labels.
    assert len(page.texts(".card:nth-child(1) .near figcaption")) == 4


def test_an_image_beside_the_class_folders_is_named(page):
    assert any("Left out 1: " in one and "loose.png (in no class folder)" in one for one in page.texts("p"))


def test_many_at_once(page):
    alike = page.run("return document.querySelectorAll('.card')[0].querySelector('.choices label').textContent")
    assert "all others given" in alike and "(2)" in alike
    page.press("shift+t")
    assert here(page) == (3, 3)
    page.press("u")
    assert here(page) == (0, 0)
    page.click(".card input")
    page.press("d")
    assert here(page) == (3, 3)


def test_suspects_by_rank_class_pair_and_spread_over_the_classes(page):
    """Every order has every suspect. Spread orders take one suspect of each class in turn, the worst of it first."""

    def arranged(order):
        page.run("[...document.querySelectorAll('#bar select')][1].value = arguments[0]; arrange()", order)
        return page.run(
            "return rows.map(row => [data.samples[row].rank, data.samples[row].label, data.samples[row].proposed])"
        )

    ranks, classes, pairs, spread = (arranged(order) for order in ("worst", "class", "pair", "spread"))
    assert ranks == sorted(ranks) and sorted(classes) == sorted(pairs) == sorted(spread) == ranks and len(ranks) > 10
    for rows, key in ((classes, slice(1, 2)), (pairs, slice(1, 3))):
        seen = [tuple(row[key]) for row in rows]
        together = [one for one, before in zip(seen, [None, *seen], strict=False) if one != before]
        assert len(together) == len({*together}), together
    counts = Counter(tuple(row[1:]) for row in pairs)
    assert [counts[tuple(row[1:])] for row in pairs] == sorted((counts[tuple(row[1:])] for row in pairs), reverse=True)
    assert spread != ranks
    turns = [sum(label == other for _, other, _ in ranks[: ranks.index(row)]) for row in spread for label in [row[1]]]
    assert turns == sorted(turns) and len({label for _, label, _ in spread[: turns.count(0)]}) == turns.count(0) > 1
    assert spread == sorted(spread, key=lambda row: (turns[spread.index(row)], row[0]))


def test_decisions_from_page_to_folder(page, audited, tmp_path):
    page.press("r", "t", "c", *"cat", "enter", "n", "d")
    page.click(".question button")
    page.press("s")
    told = page.texts("#summary li")
    kinds = ("keep their label", "go to the class proposed", "go to another class", "belong to no class, left out")
    assert told[:5] == [f"{kind}: 1" for kind in (*kinds, "dropped, left out")]
    assert "without a decision" in told[5] and told[6] == "apply leaves out 1 of 2 copies"
    page.click("#summary button")
    file = page.folder / "decisions.csv"
    assert soon(lambda: file.exists() and file.stat().st_size > 0, True)
    rows = csv_rows(file)
    assert [row["decision"] for row in rows] == ["right", "relabel", "relabel", "no class", "drop", "copy"]
    labels, clean = audited / "out" / "labels.csv", tmp_path / "clean"
    printed = run_command("apply", labels, "--decisions", file, "--to", clean)
    assert "1 copy, 1 drop, 1 no class, 2 relabel, 1 right" in printed.out
    now = {path.name: path.parent.name for path in clean.rglob("*.png")}
    names = [row["sample"].rpartition("/")[2] for row in rows]
    assert now[names[0]] == rows[0]["sample"].split("/")[-2] and now[names[2]] == "cat"
    assert now[names[1]] == rows[1]["label"] and now["2-8.png"] == "cat"
    assert not {*names[3:5], "copy.png"} & set(now) and {path.name for path in clean.iterdir()} == {"train", "test"}


@pytest.mark.parametrize("width", [1200, 390])
def test_fits_the_window(page, audited, width):
    page.open(audited / "out" / "audit.html", width)
    page.press("j", "j", "j", "j")
    assert page.cut() == []
    # The bar is in front of what lies under it, and the current suspect begins below it.
    front = page.run(
        "scrollBy(0, 150); const bar = document.getElementById('bar').getBoundingClientRect(), out = [];"
        "for (let x = bar.left + 1; x < bar.right; x += 9) out.push(document.elementFromPoint(x, bar.bottom - 9));"
        "scrollBy(0, -150); return out.filter(one => !one || !one.closest('#bar')).length"
    )
    bottom, top = page.run(
        "return ['#bar', '.here'].map(css => document.querySelector(css).getBoundingClientRect())"
        ".map((box, place) => place ? box.top : box.bottom)"
    )
    assert front == 0 and top >= bottom - 1
    # Names break between words.
    assert page.run(
        "return [...document.querySelectorAll('.near figcaption')].every(one => one.scrollWidth <= one.clientWidth)"
    )
    height, line = page.run(
        "const one = [...document.querySelectorAll('.near figcaption')].find(one => one.textContent === arguments[0]);"
        "return [one.offsetHeight, parseFloat(getComputedStyle(one).lineHeight)]",
        "golden_retriever",
    )
    assert round(height / line) == 2


@pytest.fixture(scope="module")
def pages(trained, tmp_path_factory):
    """Pages by their command, of photographs in whose names no line can end."""
    folder = tmp_path_factory.mktemp("pages")
    photos = save_photos(folder / "photos", **PHOTOS)
    shutil.move(photos / "class 2", photos / LONG)
    model = trained[0] / "images"
    run_command("search", model, photos, "--in", photos, "--out", folder / "found")
    run_command("evaluate", model, "--data", photos, "--out", folder / "evaluation")
    return {
        "train": model / "report.html",
        "search": folder / "found" / "search.html",
        "evaluate": folder / "evaluation" / "evaluation.html",
    }


@pytest.mark.parametrize("width", [1200, 390])
@pytest.mark.parametrize("command", ["train", "search", "evaluate"])
def test_each_page_fits_the_window(chromium, pages, command, width):
    chromium.open(pages[command], width)
    assert chromium.cut() == []
    # Letters of a plot are at least two thirds of those that it was drawn with.
    plots = chromium.run("return [...document.querySelectorAll('body > figure > img')].map(one => one.width)")
    assert all(one >= 550 for one in plots) and bool(plots) == (command != "search")
    # No column of a table takes the whole window.
    names = chromium.run("return [...document.querySelectorAll('tbody th')].map(one => one.offsetWidth)")
    assert max(names, default=0) < 0.7 * width
    # A table that is cut has a shadow at its edge.
    edges = chromium.run(
        "return [...document.querySelectorAll('.scroll')].map(one => getComputedStyle(one).backgroundAttachment)"
    )
    assert all("local" in one and "scroll" in one for one in edges)


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
