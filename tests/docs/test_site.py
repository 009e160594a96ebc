"""The site has a page for every public name and command, and README and pages show stored results alone.

`make docs` builds the site and checks it as built (`website/check.py`); here are the parts that need no build.
"""

import importlib
import re

import pytest

from robustdml.cli import COMMANDS
from tests.docs.blocks import PAGES, ROOT

griffe = pytest.importorskip("griffe", reason="the extra docs is not installed")

from pymdownx.superfences import SuperFencesException  # noqa: E402

from website import bench_tables, commands, mathematics, plots, readme, reference, repository, results, written  # noqa: E402

# Modules of classes that are called.
MODULES = ("robustdml_ops.losses", "robustdml_ops.robust")


def _modules():
    """Losses and filters: classes with methods."""
    documented = [name for name in reference.documented().values() if name.module in MODULES and name.target.is_class]
    return [name for name in documented if any(part.is_function for part in name.target.members.values())]


def test_every_public_name_has_a_page_of_its_own_object():
    pages, documented = reference.pages(), reference.documented()
    for module in reference.MODULES:
        imported = importlib.import_module(module)
        assert [name.name for name in reference.public_names()[module]] == imported.__all__
        for name in reference.public_names()[module]:
            there = getattr(imported, name.name)
            assert f"::: {name.target.path}\n" in pages[documented[name.target.path].page]
            assert name.text, f"{module}.{name.name}: nothing is said of it"
            defined = getattr(there, "__module__", None)
            if callable(there) and str(defined).startswith("robustdml"):
                assert name.target.path == f"{defined}.{name.name}"


def test_pages_differ_where_capitals_do_not_count():
    addresses = [address.lower() for address in reference.pages()]
    assert len(set(addresses)) == len(addresses)


def test_every_function_and_module_has_an_example():
    """`tests/package/test_examples.py` runs them. Records of results have theirs at the function that returns them."""
    asked = [name for name in reference.documented().values() if name.target.is_function or name in _modules()]
    assert [f"{name.module}.{name.name}" for name in asked if ">>>" not in name.text] == []


def test_every_command_has_a_page_with_all_its_options():
    pages = commands.pages()
    own = [name for name, (module, _) in COMMANDS.items() if module.startswith("robustdml.")]
    assert set(pages) == {f"api/commands/{name}.md" for name in own}
    for name in commands.addresses():
        flags = [flag for action in commands.parser_of(name)._actions for flag in action.option_strings]
        text = pages[f"api/commands/{name}.md"]
        assert [flag for flag in flags if f"`{flag}" not in text and flag not in ("-h", "--help")] == []
    assert "## Proxy-NCA\n" in pages["api/commands/train.md"]


def test_every_page_is_in_the_navigation():
    named = re.findall(r"^ +- (?:\w+: )?([\w-]+\.md)$", (ROOT / "website" / "mkdocs.yml").read_text(), re.MULTILINE)
    pages = {page.removeprefix("docs/") for page in PAGES if "/" in page}
    assert sorted(named) == sorted(pages | {"contributing.md"}) and len(pages) <= 16


def test_readme_shows_what_is_stored():
    text = (ROOT / "README.md").read_text()
    assert results.robustness() in " ".join(text.split())
    words = [word for word in text.split() if set(word) - set("|-–")]
    assert len(words) <= 700 and text.count("\n") <= 120
    assert readme.drawn_numbers() == readme.numbers(), "python -m website.readme"
    drawn, by_method = plots.picture_numbers(), plots.precision_by_noise()
    assert "Robust" in drawn and drawn == {method: by_method[method] for method in drawn}
    assert plots.PICTURE.stat().st_size < 60_000


def test_pages_quote_no_figure_of_their_own():
    """Scores of three decimals and measured times stand in tables from stored results alone."""
    for page in PAGES:
        text = (ROOT / page).read_text() if page != "docs/equations.md" else ""  # which derives its numbers
        text = written.without_tables(text)
        if page == "README.md":
            text = " ".join(text.split()).replace(results.robustness(), "")
        assert re.findall(r"\b0\.\d{3}\b|\b\d[\d.,]* (?:µs|ms)\b", text) == [], page


def test_pages_hold_the_tables_that_are_stored():
    used = set()
    for page in written.PAGES:
        text = page.read_text()
        used |= set(written.MARKED.findall(text))
        assert text == written.with_tables(text), f"{page.name}: python -m website.written"
    assert used == set(results.TABLES)
    assert written.with_tables("<!-- table: twos -->\n\nText.\n").endswith(" |\n\nText.\n")


@pytest.mark.parametrize("name", results.TABLES)
def test_tables_are_whole(name):
    lines = results.TABLES[name]().splitlines()
    assert len(lines) > 2 and len({line.count(" | ") for line in lines}) == 1


def test_tables_compute_what_they_say():
    assert results.score([0.9, 0.01]) == "0.900 ± 0.010" and results.score(None) == "–"
    assert [bench_tables.seconds(value) for value in (1.444, 0.0334, 3.3e-5)] == ["1.44 s", "33.4 ms", "33 µs"]
    assert results.below_untouched("Recall@1", "Robust") == results.below().count("Recall@1")
    by_method = plots.precision_by_noise()
    assert len({*by_method[plots.BASELINE]}) == 1  # noise does not change the features


def test_new_times_are_taken_into_the_stored_ones(tmp_path, monkeypatch):
    """A row that a table asks for is added; README's table shows the fastest rival by its name."""
    copy = tmp_path / "cpu.json"
    copy.write_text(bench_tables.CPU.read_text())
    monkeypatch.setattr(bench_tables, "CPU", copy)
    bench_tables.cpu.cache_clear()

    def timed(group, contender, median):
        info = {"contender": contender, "floor_s": 0.5}
        return {"group": group, "extra_info": info, "stats": {"median": median}}

    group = "normalized-softmax, B=9 C=9 D=9"
    monkeypatch.setitem(bench_tables.STEPS, "softmax, 10⁵ classes", (group, "normalized-softmax"))
    memory = {
        "group": "memory, B=256 C=1e6 D=128",
        "extra_info": {"contender": "robustdml/proxy-anchor", "beyond_mb": 7.0},
    }
    measured = {
        "commit_info": {"id": "0123456789abc"},
        "benchmarks": [
            timed("proxy-anchor, B=256 C=1e6 D=128", "robustdml/proxy-anchor", 2),
            memory,
            *(
                timed(group, f"{who}/normalized-softmax", at)
                for who, at in (("robustdml", 2), ("pml", 8), ("torch", 4))
            ),
            timed("a group of no table", "robustdml/proxy-anchor", 1),
        ],
    }
    (tmp_path / "bench.json").write_text(bench_tables.json.dumps(measured))
    before = copy.read_text().splitlines()
    try:
        bench_tables.main(str(tmp_path / "bench.json"))
        assert "| softmax, 10⁵ classes | 2 s | 4.00 | 8 s | PyTorch, 4 s | **2.0×** |" in bench_tables.steps()
    finally:
        bench_tables.cpu.cache_clear()
    after = copy.read_text().splitlines()
    changed = [line for line in after if line.rstrip(",") not in {old.rstrip(",") for old in before}]
    assert len(after) == len(before) + 3 and len(changed) == 5
    assert '"median_s": 2, "floor_s": 0.5, "commit": "0123456"' in changed[0] and '"beyond_mb": 7.0' in changed[4]


def test_links_between_files_become_links_between_pages():
    text = "[a](labels.md#x) [b](../CONTRIBUTING.md)"
    assert repository.from_site(text, "docs/start.md") == "[a](labels.md#x) [b](contributing.md)"
    assert repository.from_site("[a](docs/design.md#x)", "CONTRIBUTING.md") == "[a](design.md#x)"


def test_pages_that_files_name_are_there():
    """Docstrings and comments name pages as docs/NAME.md."""
    for folder in ("robustdml_ops", "app", "experiments", "bench", "csrc", "python_ref", "tests", "examples"):
        for file in (ROOT / folder).rglob("*"):
            if file.suffix in (".py", ".h", ".cpp", ".cu", ".md", ".sbatch"):
                named = re.findall(r"\bdocs/([a-z-]+\.md)\b", file.read_text())
                assert [name for name in named if not (ROOT / "docs" / name).exists()] == [], file


def test_mathematics_is_drawn_or_fails():
    drawn = mathematics.fence("a^2 + b^2\n\n\\frac{c}{d}")
    assert drawn.count("<svg") == 2 and "currentColor" in drawn and 'aria-label="a^2 + b^2"' in drawn
    too_high = r"\ell = \frac{e^x}{\sum_k e^{-t d}}, \quad \lVert \hat{x} - \hat{p} \rVert^2"
    for wrong in (too_high, r"\frac{a", r"\nosuchcommand{a}"):
        with pytest.raises(SuperFencesException):
            mathematics.fence(wrong)
