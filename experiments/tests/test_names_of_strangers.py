"""Names that strangers chose, in the pages of the experiments."""

import pytest

from app.tests.browser import needs_browser
from app.tests.test_hostile_pages import NAMES, check_page, check_rendered, shown
from experiments.comparison.section import markdown, page
from experiments.comparison.tables import sections as sections_of_data
from experiments.large.page import LargeOutcome
from experiments.large.page import render as render_large
from experiments.statistics.sections import sections
from experiments.tests.test_statistics import make_suite


@pytest.mark.parametrize("name", NAMES)
def test_the_page_of_a_comparison(name):
    suite = make_suite({data: {"none": {"robust": 0.6, "proxy-anchor": 0.5}} for data in (name, "other")})
    parts = [*sections(suite), *sections_of_data(suite.results[name])]
    text = page(parts, name)
    assert shown(name) in shown(check_page(text).text)
    # The same as Markdown, whose readers take HTML for HTML.
    written = markdown(parts)
    assert "<" not in written
    rows = [line for line in written.splitlines() if line.startswith("|")]
    assert all(line.endswith("|") for line in rows)


@pytest.mark.parametrize("name", NAMES[:6])
def test_the_page_of_the_large_demo(name):
    result = {"seconds": 1.0, "step_seconds": 1e-3, "extra_bytes": 1, "filter_bytes": 0}
    figures = {"precision_at_1": 0.5, "mean_average_precision_at_r": 0.2}
    result["history"] = [{"epoch": 1, "loss": 1.0, "seconds": 1.0, **figures}]
    results = {"proxy-anchor": result, "proxy-anchor-peer": result}
    assert name in check_page(render_large(LargeOutcome(name, figures, results, "machine"))).text


@needs_browser
def test_in_a_real_browser(chromium, tmp_path):
    suite = make_suite({data: {"none": {"robust": 0.6, "proxy-anchor": 0.5}} for data in NAMES[:6]})
    (tmp_path / "compare.html").write_text(page(sections(suite), NAMES[0]))
    check_rendered(chromium, tmp_path / "compare.html", "robustdml_ops: ")
