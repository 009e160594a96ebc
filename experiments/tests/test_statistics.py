"""What several data sets say together, against figures worked out by hand; names that strangers chose in its pages."""

import json
import sys

import numpy as np
import pytest

from app.tests.test_hostile_pages import NAMES, check_page
from experiments.bench import gain
from experiments.comparison.cells import Cell
from experiments.comparison.entries import ENTRIES
from experiments.comparison.results import Results
from experiments.comparison.section import markdown, page
from experiments.comparison.tables import sections as sections_of_data
from experiments.large.page import LargeOutcome
from experiments.large.page import render as render_large
from experiments.statistics.bars import bars
from experiments.statistics.paired import Difference, mean_over_data, paired_difference
from experiments.statistics.ranks import Ranks, rank
from experiments.statistics.sections import bar_rows, difference_rows, sections, summary_rows
from experiments.statistics.suite import Suite
from robustdml.config import TrainingConfig
from robustdml.errors import in_one_line

RECALL, PRECISION = "precision_at_1", "mean_average_precision_at_r"


def make_suite(values, untouched=0.5, rejected=0.0):
    """A suite of ``{data: {noise: {entry: one value a seed, or one}}}``; both metrics are that value."""

    def outcome(entry, value):
        summary = {RECALL: value, PRECISION: value, "untouched": {RECALL: untouched, PRECISION: untouched}}
        return {"summary": summary | ({"right_rejected": rejected} if entry == "robust" else {})}

    return Suite(
        {
            data: Results(
                (Cell(data, ENTRIES[entry], noise, seed, TrainingConfig()), outcome(entry, value))
                for noise, rows in noises.items()
                for entry, given in rows.items()
                for seed, value in enumerate(np.atleast_1d(given).tolist())
            )
            for data, noises in values.items()
        }
    )


def test_a_paired_difference_by_hand():
    # Differences 1, 2, 3: mean 2, deviation 1, t of two degrees of freedom 4.3027.
    found = paired_difference({0: 4.0, 1: 6.0, 2: 8.0}, {0: 3.0, 1: 4.0, 2: 5.0, 7: 99.0})
    assert found.mean == pytest.approx(2)
    assert (found.low, found.high) == pytest.approx((2 - 4.30265 / 3**0.5, 2 + 4.30265 / 3**0.5), abs=1e-4)
    assert found.verdict == "undecided"
    # The seeds themselves are far apart, and say nothing against a difference that is the same in each.
    level = paired_difference({0: 0.1, 1: 0.5, 2: 0.9}, {0: 0.0, 1: 0.4, 2: 0.8})
    assert level.verdict == "above" and level.high - level.low < 1e-9
    assert paired_difference({0: 0.1, 1: 0.11}, {0: 0.3, 1: 0.31}).verdict == "below"
    assert paired_difference({0: 0.4}, {0: 0.3}) == Difference(pytest.approx(0.1))
    assert paired_difference({0: 0.4}, {0: 0.3}).verdict == "undecided"
    assert paired_difference({0: 0.4}, {1: 0.3}) is None


def test_the_bootstrap_draws_data_sets():
    # Three data sets: 27 draws, of which the lowest and the highest have a share of 1/27 each, more than 2.5 %.
    found = mean_over_data([0.0, 1.0, 2.0])
    assert (found.mean, found.low, found.high) == (1.0, 0.0, 2.0)
    # Ten: against all 92,378 draws, told apart by how often each data set is in them, by a far larger sample here.
    values = [0.0, 0.1, 0.3, 0.2, 0.9, 0.4, 0.6, 0.5, 0.2, 0.8]
    draws = np.random.default_rng(1).choice(values, (200_000, 10)).mean(1)
    found = mean_over_data(values)
    assert (found.low, found.high) == pytest.approx(tuple(np.quantile(draws, [0.025, 0.975])), abs=0.01)
    assert found == mean_over_data(values)
    assert mean_over_data([0.3]) == Difference(0.3)


def ranks_of(by_data):
    by_data = np.array(by_data, float)
    return Ranks(tuple("abcdefgh"[: by_data.shape[1]]), by_data, len(by_data), 0)


def test_the_critical_difference_and_friedman_are_those_of_demsar_and_by_hand():
    # Table 6 of Demšar 2006: four classifiers on 14 data sets, their ranks by AUC.
    table = """4 3 2 1; 1 2 3 4; 4 1 2 3; 4 1 3 2; 4 2 3 1; 1 2.5 4 2.5; 3 2 4 1; 2.5 2.5 4 1; 4 3 2 1; 2.5 2.5 2.5 2.5;
    4 2.5 1 2.5; 3 2 4 1; 4 1 2 3; 3 1 4 2"""
    ranks = ranks_of([list(map(float, row.split())) for row in table.split(";")])
    assert ranks.average == pytest.approx([3.143, 2.000, 2.893, 1.964], abs=5e-4)
    assert ranks.critical_difference == pytest.approx(1.25, abs=5e-3)
    # χ² = 9.28 by his formula, which knows no ties, at three degrees of freedom: p = 0.0257; ties make it less.
    assert 0.015 < ranks.friedman < 0.0257
    assert ranks.order == [3, 1, 2, 0]
    # By hand: three rows in the same order in all of four data sets: χ² = 12·4/(3·4)·Σ(R − 2)² = 8, p = e⁻⁴.
    assert ranks_of([[1, 2, 3]] * 4).friedman == pytest.approx(np.exp(-4))
    assert ranks_of([[2, 2, 2]] * 4).friedman == 1
    assert ranks_of([[1, 2]] * 4).friedman is None and ranks_of([[1, 2, 3]]).friedman is None


def test_ranks_by_hand_and_a_data_set_counts_once_with_its_halves():
    names = ("robust", "contrastive", "proxy-anchor")
    suite = make_suite(
        {
            "first-10": {"none": dict(zip(names, (0.9, 0.8, 0.7), strict=True))},  # 1 2 3
            "first-11": {  # Another half of the same set
                "symmetric:0.5": dict(zip(names, (0.5, 0.5, 0.4), strict=True)),  # 1.5 1.5 3
                "semantic:0.5": dict(zip(names, (0.5, 0.6, 0.7), strict=True)),  # 3 2 1
            },
            "second": {"none": dict(zip(names, ([0.8, 1.0], [0.7, 0.7], [0.95, 0.95]), strict=True))},  # 2 3 1
            "third": {"none": {"robust": 0.9, "contrastive": 0.5}},
        }
    )
    ranks = rank(suite, RECALL)
    assert ranks.names == names
    assert ranks.by_data == pytest.approx(np.array([[5.5 / 3, 5.5 / 3, 7 / 3], [2, 3, 1]]))
    assert (ranks.cells, ranks.cells_left_out) == (4, 1)
    assert ranks.average == pytest.approx([(5.5 / 3 + 2) / 2, (5.5 / 3 + 3) / 2, (7 / 3 + 1) / 2])
    behind = ranks.behind(1, 0)
    assert (behind.mean, behind.low, behind.high) == pytest.approx((0.5, 0, 1))
    assert rank(make_suite({"a": {"none": {"robust": 0.5}}}), RECALL) is None


GOOD = {"robust": 0.90, "contrastive": 0.85, "proxy-anchor": 0.80, "soft-triple-prism-vmf": 0.95}
DATA = [f"data {letter}" for letter in "abcde"]
NOISES = ("none", "symmetric:0.2", "symmetric:0.5")


def with_cells(*changes, **arguments):
    """All cells as in `GOOD`, but for changes ``(data, noise, entry, value)``; [] takes the value away."""
    values = {data: {noise: dict(GOOD) for noise in NOISES} for data in DATA}
    for data, noise, entry, value in changes:
        values[data][noise][entry] = value
    return make_suite(values, **arguments)


def verdicts(suite, start):
    return [bar for bar in bars(suite) if bar.text.startswith(start)]


WITHIN, BASE = "clean labels: within 1 point", "noise of 20 % and more: never below its base loss, Contrastive"
ABOVE = "noise of 20 % and more: above the best"
UNTOUCHED, REJECTED = "any noise: not more than 1 point below", "clean labels: at most 1%"
# As good as the best is not above it.
LEVEL = [(data, "symmetric:0.5", "proxy-anchor", 0.90) for data in DATA]
NOT_ABOVE = tuple(f"{data}, symmetric:0.5 (0.900 : 0.900)" for data in DATA)


@pytest.mark.parametrize(
    ("start", "changes", "arguments", "verdict", "found", "misses"),
    [
        # The row with a filter is above, and no measure here. One point below is within; noise does not count.
        (WITHIN, [], {}, "reached", "5 of 5 data sets, 100%", ()),
        (WITHIN, [("data c", "none", "proxy-anchor", 0.91)], {}, "reached", "5 of 5 data sets, 100%", ()),
        (WITHIN, [("data c", "symmetric:0.5", "proxy-anchor", 0.99)], {}, "reached", "5 of 5 data sets, 100%", ()),
        (WITHIN, [("data c", "none", "proxy-anchor", 0.911)], {}, "not reached", "4 of 5 data sets, 80%",
         ("data c, none (0.900 : 0.911)",)),
        (BASE, [("data a", "none", "contrastive", 0.99)], {}, "reached", "10 of 10 cells, 100%", ()),
        (BASE, [("data b", "symmetric:0.2", "contrastive", 0.901)], {}, "not reached", "9 of 10 cells, 90%",
         ("data b, symmetric:0.2 (0.900 : 0.901)",)),
        (ABOVE, LEVEL[:2], {}, "reached", "8 of 10 cells, 80%", NOT_ABOVE[:2]),
        (ABOVE, LEVEL[:3], {}, "not reached", "7 of 10 cells, 70%", NOT_ABOVE[:3]),
        # Cells that were not run leave it open, and hide no miss.
        (BASE, [("data a", "symmetric:0.5", "robust", [])], {}, "not run", "9 of 9 cells, 100%; 1 not run", ()),
        (BASE, [("data a", "symmetric:0.5", "robust", []), ("data b", "symmetric:0.5", "robust", 0.1)], {},
         "not reached", "8 of 9 cells, 89%; 1 not run", ("data b, symmetric:0.5 (0.100 : 0.850)",)),
        (UNTOUCHED, [], {"untouched": 0.91}, "reached", "15 of 15 cells, 100%", ()),
        (UNTOUCHED, [("data e", "symmetric:0.5", "robust", 0.6)], {"untouched": 0.7},
         "not reached", "14 of 15 cells, 93%", ("data e, symmetric:0.5 (0.600 : 0.700)",)),
        (REJECTED, [], {"rejected": 0.01}, "reached", "5 of 5 data sets", ()),
        (REJECTED, [], {"rejected": 0.011}, "not reached", "0 of 5 data sets", tuple(f"{one} (1.1%)" for one in DATA)),
        (REJECTED, [], {"rejected": None}, "not run", "", ()),
    ],
)  # fmt: skip
def test_targets(start, changes, arguments, verdict, found, misses):
    tested = verdicts(with_cells(*changes, **arguments), start)
    assert [bar.metric for bar in tested] == ([""] if start == REJECTED else ["Recall@1", "MAP@R"])
    assert {(bar.verdict, bar.found, bar.misses) for bar in tested} == {(verdict, found, misses)}


def test_first_in_rank_with_an_interval_that_excludes_the_second():
    start = "average rank"
    without = {**GOOD, "soft-triple-prism-vmf": 0.5}
    first = make_suite({data: dict.fromkeys(NOISES, without) for data in DATA})
    assert [bar.verdict for bar in verdicts(first, start)] == ["reached"] * 2
    assert verdicts(first, start)[0].found == ("1.00 [1.00, 1.00]; Contrastive 2.00, behind by 1.00 [1.00, 1.00]")
    assert [bar.verdict for bar in verdicts(with_cells(), start)] == ["not reached"] * 2
    # First on average, but third in two data sets of five: drawn anew, the second may well be before it.
    third = {**without, "contrastive": 0.99, "proxy-anchor": 0.98}
    mixed = make_suite({data: dict.fromkeys(NOISES, third if data in DATA[:2] else without) for data in DATA})
    assert rank(mixed, RECALL).average[:2] == pytest.approx([1.8, 1.6])
    close = make_suite({data: dict.fromkeys(NOISES, third if data in DATA[:1] else without) for data in DATA})
    assert rank(close, RECALL).order[0] == 0
    assert [bar.verdict for bar in verdicts(close, start)] == ["not reached"] * 2
    assert [bar.verdict for bar in verdicts(make_suite({"a": {"none": GOOD}}), start)] == ["not run"] * 2


def test_tables_and_page_of_a_suite():
    random = np.random.default_rng(0)
    rows = {name: (value + 0.001 * random.normal(size=5)).tolist() for name, value in GOOD.items()}
    suite = make_suite({data: dict.fromkeys(NOISES, rows) for data in DATA})
    _, *summary = summary_rows(suite, RECALL)
    assert [row[:4] for row in summary] == [
        ["Contrastive", "15", "0", "0"],
        ["Proxy-Anchor", "15", "0", "0"],
        ["SoftTriple + PRISM vMF-Sim", "0", "15", "0"],
    ]
    difference = np.mean(rows["robust"]) - np.mean(rows["contrastive"])
    assert summary[0][4].startswith(f"{100 * difference:+.1f} [")
    table = difference_rows(suite, RECALL)
    assert len(table) == 16 and table[1][0] == "data a, none" and table[1][1].startswith(f"{100 * difference:+.1f} [")
    parts = sections(suite)
    text = page(parts, "")
    for bar in bar_rows(suite)[1:]:
        assert bar[2] in ("reached", "not reached", "not run") and bar[3] in text
    assert "Friedman: p = " in markdown(parts) and "Nemenyi" in markdown(parts)
    assert text.count("data:image/svg+xml") == 2
    assert [part.file_name for part in parts if part.picture] == ["average-ranks-by-recall-1", "average-ranks-by-map-r"]


def test_the_gain_of_a_method_over_its_base(tmp_path, monkeypatch, capsys):
    def run(data, entry, seed, value, auc):
        return {"data": data, "noise": "none", "entry": entry, "seed": seed,
                "summary": {PRECISION: value, "clean_auc": auc}}  # fmt: skip

    runs = [run("a", "procsim", 0, 0.5, 0.75), run("a", "procsim", 1, 0.25, 1.0), run("b", "procsim", 0, 0.5, None)]
    runs += [run("a", "proxy-nca", seed, 0.25, None) for seed in (0, 1)]
    path = tmp_path / "compare.json"
    path.write_text(json.dumps(runs))
    monkeypatch.setattr(sys, "argv", ["gain", str(path), "procsim", "proxy-nca"])
    gain.main()
    head, _, row, _, _, _, band = capsys.readouterr().out.splitlines()
    assert head == "| data | noise | procsim | proxy-nca | difference in points | AUC of the score |"
    # Differences of 25 and 0 points: mean 12.5, and t of one degree of freedom 12.706. Of b the base was not run.
    assert row == "| a | none | 0.375 | 0.250 | +12.5 [-146.3, +171.3] | 0.88 |"
    assert band == "| 0.75 to 0.90 | 1 | 1 | +12.5 | +12.5 | +12.5 |"


@pytest.mark.parametrize("name", NAMES)
def test_the_page_of_a_comparison(name):
    suite = make_suite({data: {"none": {"robust": 0.6, "proxy-anchor": 0.5}} for data in (name, "other")})
    parts = [*sections(suite), *sections_of_data(suite.results[name])]
    text = page(parts, name)
    assert in_one_line(name) in check_page(text).text
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
