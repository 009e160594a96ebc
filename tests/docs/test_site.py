"""What the site is made of: a page for every public name and command, and figures that are those of the results.

`make docs` builds the site and looks at it as it is built (`website/check.py`); here are the parts that need no build.
"""

import importlib
import pkgutil
import re

import pytest

import robustdml_ops
from robustdml.cli import COMMANDS
from tests.docs.blocks import PAGES, ROOT

griffe = pytest.importorskip("griffe", reason="the extra docs is not installed")

from pymdownx.superfences import SuperFencesException  # noqa: E402

from website import check, commands, mathematics, plots, reference, repository, tables  # noqa: E402

# Where a page that quotes figures has them from.
SOURCES = {
    "docs/choosing.md": (
        "README.md",
        "docs/robust.md",
        "docs/training.md",
        "bench/results/cpu-epyc-2-threads-lanes.md",
        "bench/results/suite-all.md",
    ),
    "docs/start.md": ("bench/results/suite-all.md",),
    "docs/filtering.md": ("docs/audit.md",),
    "docs/large-classes.md": (
        "README.md",
        "docs/optimizers.md",
        "docs/scaling.md",
        "bench/results/cpu-epyc-2-threads.md",
    ),
}
# Rooms of modules that are called.
MODULES = ("robustdml_ops.losses", "robustdml_ops.robust")
# Functions without an example, and why.
WITHOUT_EXAMPLE = {
    "robustdml.loss_inputs.make_loss_inputs": "takes a whole run of training",
    "experiments.taxonomy.tree_from_wordnet": "reads WordNet's files, which a machine need not have",
}


def _public():
    """Objects by module and name, found by importing: what stands in some `__all__`."""
    for found in pkgutil.walk_packages(robustdml_ops.__path__, "robustdml_ops."):
        if re.search(r"_native|triton|\.bench", found.name) or found.name in reference.INNER:
            continue
        module = importlib.import_module(found.name)
        yield from ((found.name, name, getattr(module, name)) for name in getattr(module, "__all__", ()))


def _modules():
    """Losses and filters: classes with methods."""
    documented = [name for name in reference.documented().values() if name.module in MODULES and name.target.is_class]
    return [name for name in documented if any(part.is_function for part in name.target.members.values())]


def test_every_public_name_has_a_page_of_its_own_object():
    pages, documented = reference.pages(), reference.documented()
    for module, name, there in _public():
        (found,) = [each for each in reference.public_names()[module] if each.name == name]
        page = documented[found.target.path].page
        assert f"::: {found.target.path}\n" in pages[page], f"{module}.{name}"
        assert found.text, f"{module}.{name}: nothing is said of it"
        defined = getattr(there, "__module__", None)
        if callable(there) and str(defined).startswith("robustdml_ops"):
            assert found.target.path.removeprefix("robustdml_ops.") == f"{defined}.{name}".removeprefix(
                "robustdml_ops."
            )


def test_pages_differ_where_capitals_do_not_count():
    addresses = [address.lower() for address in reference.pages()]
    assert len(set(addresses)) == len(addresses)


def test_every_function_and_module_has_an_example():
    """`tests/package/test_examples.py` runs them. Records of results have theirs at the function that gives them."""
    asked = [name for name in reference.documented().values() if name.target.is_function or name in _modules()]
    without = {f"{name.module}.{name.name}" for name in asked if ">>>" not in name.text}
    assert without == set(WITHOUT_EXAMPLE)


def test_every_module_says_what_it_raises():
    """At its own docstring, or at the method that is called, which its page shows though it may be inherited."""
    assert "inherited_members: true" in (ROOT / "website" / "mkdocs.yml").read_text()
    assert len(_modules()) > 20
    for name in _modules():
        methods = [part for each in (name.target, *name.target.mro()) for part in each.members.values()]
        said = [name.text, *(part.docstring.value for part in methods if not part.is_alias and part.docstring)]
        assert any("Raises\n" in text for text in said), f"{name.module}.{name.name}"


def test_every_command_has_a_page_with_all_its_options():
    pages = commands.pages()
    assert set(pages) == {f"api/commands/{name}.md" for name in COMMANDS}
    for name in COMMANDS:
        flags = [flag for action in commands.parser_of(name)._actions for flag in action.option_strings]
        text = pages[f"api/commands/{name}.md"]
        assert [flag for flag in flags if f"`{flag}" not in text and flag not in ("-h", "--help")] == []


def test_every_page_is_in_the_navigation():
    named = re.findall(r"^ +- (?:\w+: )?([\w-]+\.md)$", (ROOT / "website" / "mkdocs.yml").read_text(), re.MULTILINE)
    assert sorted(named) == sorted({page.removeprefix("docs/") for page in PAGES if "/" in page} | {"contributing.md"})


@pytest.mark.parametrize("page", SOURCES)
def test_quoted_figures_are_in_their_sources(page):
    """Scores have three decimals; a time or a size has its unit."""
    quoted = r"\b0\.\d{3}\b|\b[\d.,]+ (?:µs|ms|s|MB|GiB|GB)\b"
    sources = "\n".join((ROOT / source).read_text() for source in SOURCES[page])
    figures = re.findall(quoted, (ROOT / page).read_text())
    assert figures and [figure for figure in figures if figure not in sources] == []


def test_plots_draw_what_was_printed():
    assert plots.step_times()["Proxy-Anchor, 10⁵ classes"] == (0.107, 1.44)
    assert plots.memory()["Proxy-Anchor, 10⁵ classes"] == (8, 1061)
    assert plots.crowd()["beside a busy process"] == (0.148, 3.0)
    assert plots.ranks()[0] == ("Robust", 1.54, 1.18, 2.03)
    by_method = plots.precision_by_noise()
    assert len(by_method) == 9 and len({*by_method[plots.BASELINE]}) == 1  # noise does not change the features
    table = tables.sections(plots.RESULTS / "suite-all.md")[
        "The suite, fifteen data sets, eight noises / Average ranks by MAP@R"
    ]
    assert [row[""] for row in table] == [method for method, *_ in plots.ranks()]


def test_tables_are_read_with_their_headings_and_units(tmp_path):
    file = tmp_path / "t.md"
    file.write_text(
        "# A\n\n| x | x |\n|---|---|\n| 1 | 2 |\n\n## B\n\n| t |\n|---|\n| 5 µs |\n\n# C\n| t |\n|---|\n| 1 |\n"
    )
    assert tables.sections(file) == {"A": [{"x": "1", "x (2)": "2"}], "A / B": [{"t": "5 µs"}], "C": [{"t": "1"}]}
    assert tables.seconds("5 µs") == pytest.approx(5e-6) and tables.megabytes("1,061 MB") == 1061
    assert tables.mean("0.9 ± 0.1") == 0.9 and list(tables.interval("[1, 2.5]")) == [1, 2.5]
    with pytest.raises(ValueError, match="expected MB"):
        tables.megabytes("3 GB")


def test_links_between_files_become_links_between_pages():
    text = "[a](../bench/results/audit.md) [b](robust.md#x) [c](../CONTRIBUTING.md)"
    assert repository.from_site(text, "docs/start.md") == "[a](results/audit.md) [b](robust.md#x) [c](contributing.md)"
    back = repository.from_site("[a](docs/design.md#the-house)", "CONTRIBUTING.md")
    assert back == "[a](design.md#the-house)"


def test_mathematics_is_drawn_or_fails():
    drawn = mathematics.fence("a^2 + b^2\n\n\\frac{c}{d}")
    assert drawn.count("<svg") == 2 and "currentColor" in drawn and 'aria-label="a^2 + b^2"' in drawn
    too_high = r"\ell = \frac{e^x}{\sum_k e^{-t d}}, \quad \lVert \hat{x} - \hat{p} \rVert^2"
    for wrong in (too_high, r"\frac{a", r"\nosuchcommand{a}"):
        with pytest.raises(SuperFencesException):
            mathematics.fence(wrong)


def test_the_check_finds_what_is_wrong(tmp_path):
    other = check.Document('<h1 id="there">b</h1>')
    wrong = check.Document(
        '<script src="https://cdn.example/x.js"></script><img src="gone.svg"><a href="b.html#gone">x</a>'
        '<a href="b.html#there">y</a><a href="c.html">z</a><p>As follows:\n- one\n- two</p>'
        "<p>a <code>x\n1</code>. b</p>"
    )
    pages = {tmp_path / "a.html": wrong, tmp_path / "b.html": other}
    for page, document in pages.items():
        page.write_text(document.text)
    (tmp_path / "a.css").write_text("@import url('https://fonts.example/f.css');")
    found = [line for line in check.findings(tmp_path, pages) if not line.startswith(("robustdml_ops", "api/"))]
    assert found == [
        "a.html: fetches https://cdn.example/x.js",
        "a.html: gone.svg leads nowhere",
        "a.html: b.html#gone leads nowhere",
        "a.html: c.html leads nowhere",
        "a.html: not rendered: 'As follows:\\n- one\\n- two'",
        "a.css: fetches https://fonts.example/f.css",
    ]
    assert any("has no page" in line for line in check.findings(tmp_path, pages))
