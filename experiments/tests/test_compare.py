"""The comparison: outcomes on disk, runs side by side, and what is made of them."""

import json
import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from app.tests.conftest import save_photos
from experiments.__main__ import main
from experiments.comparison import pool
from experiments.comparison.ablations import ABLATIONS, ALL_ENTRIES, RIVALS
from experiments.comparison.cells import Cell, all_cells
from experiments.comparison.claim import Claim, Operand
from experiments.comparison.claims import CLAIMS, claim_cells
from experiments.comparison.entries import ENTRIES, NOISES, QUICK_ENTRIES, QUICK_NOISES, Entry
from experiments.comparison.neighbour_filter import neighbours_agree
from experiments.comparison.outcomes import read_outcome, write_outcome
from experiments.comparison.results import Results
from experiments.comparison.section import markdown, page
from experiments.comparison.sources import feature_source
from experiments.comparison.subgroup_pairs import Drawn, rejected_loss, subgroups
from experiments.comparison.tables import claim_rows, rows, rows_beside, sections
from experiments.summary import Estimate, compare, estimate
from robustdml.config import TrainingConfig
from robustdml.errors import UsageError
from robustdml.methods.classes import AnchorOptions
from robustdml.networks.backbones.choice import load_origin
from robustdml.noise import parse_noise
from robustdml.options import OptionSet
from robustdml.progress import silent
from robustdml.retrieval import retrieval_metrics
from robustdml.train import train

CPU = torch.device("cpu")
ONE_EPOCH = TrainingConfig(epochs=1)
PLAIN = Entry("plain", "Plain", {"method": "proxy-anchor", "batch_size": 32, "embedding_size": 8})
BROKEN = Entry("broken", "Broken", {"method": "proxy-anchor", "batch_size": 32, "samples_per_class": 5})


def outcome(cell, recall):
    return {"settings": cell.config.as_dict(), "data": "clusters", "summary": {"precision_at_1": recall}}


def synthetic(recalls):
    """Results of ``{(entry, noise): one recall a seed}``."""
    return Results(
        (cell, outcome(cell, recall))
        for (name, noise), values in recalls.items()
        for seed, recall in enumerate(values)
        for cell in [Cell("clusters", Entry(name, name.title(), {}), noise, seed, ONE_EPOCH)]
    )


@pytest.fixture
def features(clusters, own_cache):
    return {"clusters": feature_source(clusters, load_origin(TrainingConfig(), clusters, CPU), CPU)}


def test_runs_what_is_missing_and_keeps_what_is_done(features, tmp_path, monkeypatch):
    """In threads; nightly tests start processes."""
    in_threads = lambda workers, mp_context, **options: ThreadPoolExecutor(workers, **options)  # noqa: E731
    monkeypatch.setattr(pool, "ProcessPoolExecutor", in_threads)
    monkeypatch.setattr(pool, "_open", lambda name: features[name].open())
    cells = all_cells({"clusters": ["none", "symmetric:0.5"]}, [PLAIN, BROKEN], seeds=1, common=ONE_EPOCH)
    told = []
    failures = pool.run_missing(cells, features, tmp_path, "cpu", 1, lambda *report: told.append(report))
    assert [(cell.entry.name, cell.noise) for cell in failures] == [("broken", "none"), ("broken", "symmetric:0.5")]
    assert all("samples_per_class=5 must divide" in message for message in failures.values())
    assert told[-1][1:] == (4, 4)
    results = Results.read(cells, tmp_path)
    assert [entry.name for entry in results.entries] == ["plain"]
    assert len(results.values("plain", "symmetric:0.5", "precision_at_1")) == 1
    test = features["clusters"].open().test
    assert results.untouched("precision_at_1") == retrieval_metrics(test.inputs, test.labels)["precision_at_1"]
    monkeypatch.setattr(pool, "ProcessPoolExecutor", lambda *_, **__: pytest.fail("a run was started again"))
    assert pool.run_missing(cells[::2], features, tmp_path, "cpu", 1, silent) == {}


class Fatal(Cell):
    """A run that takes its process along."""

    def run(self, data, untouched, device):
        os._exit(9)


class Faulty(Cell):
    """A run with a defect."""

    def run(self, data, untouched, device):
        raise ZeroDivisionError("a defect")


@pytest.mark.nightly
def test_neither_a_process_that_dies_nor_a_defect_loses_the_other_runs(features, tmp_path):
    good = all_cells({"clusters": ["none", "symmetric:0.2", "symmetric:0.5"]}, [PLAIN], seeds=1, common=ONE_EPOCH)
    fatal = Fatal("clusters", Entry("fatal", "Fatal", {}), "none", 0, ONE_EPOCH)
    faulty = Faulty("clusters", Entry("faulty", "Faulty", {}), "none", 0, ONE_EPOCH)
    failures = pool.run_missing([faulty, good[0], fatal, *good[1:]], features, tmp_path, "cpu", 2, silent)
    assert failures == {faulty: "ZeroDivisionError: a defect", fatal: pool.DIED}
    assert all(cell.path(tmp_path).exists() for cell in good)


def test_an_outcome_of_other_settings_is_refused(tmp_path):
    cell = Cell("clusters", PLAIN, "none", 0, ONE_EPOCH)
    assert read_outcome(cell, tmp_path) is None
    write_outcome(cell, tmp_path, outcome(cell, 0.5))
    assert read_outcome(cell, tmp_path)["summary"]["precision_at_1"] == 0.5
    glyphs = Cell("glyphs", PLAIN, "none", 0, ONE_EPOCH)
    assert read_outcome(glyphs, tmp_path) is None
    write_outcome(glyphs, tmp_path, outcome(cell, 0.5))
    with pytest.raises(UsageError, match=r"data: clusters then, glyphs now"):
        read_outcome(glyphs, tmp_path)
    settings = {**PLAIN.settings, "options": OptionSet(AnchorOptions(alpha=16.0))}
    other = Cell("clusters", Entry("plain", "Plain", settings), "none", 0, TrainingConfig(epochs=2))
    with pytest.raises(UsageError, match=r"anchor.alpha: 32.0 then, 16.0 now; epochs: 1 then, 2 now"):
        read_outcome(other, tmp_path)
    cell.path(tmp_path).write_text("{")
    with pytest.raises(UsageError, match="no outcome of a comparison"):
        read_outcome(cell, tmp_path)


def test_a_difference_counts_from_twice_its_standard_error():
    assert estimate([]) is None
    assert estimate([0.5]) == Estimate(0.5, None)
    three = estimate([0.5, 0.6, 0.7])
    assert three.mean == pytest.approx(0.6) and three.error == pytest.approx(0.1 / 3**0.5)
    assert compare(Estimate(0.9, 0.03), Estimate(0.8, 0.04)) == "equal"  # twice the error is 0.1
    assert compare(Estimate(0.91, 0.03), Estimate(0.8, 0.04)) == "above"
    assert compare(Estimate(0.8, 0.04), Estimate(0.91, 0.03)) == "below"


def test_verdicts_follow_the_figures():
    sides = Operand(("a",)), Operand(("b",))
    claim = Claim("paper", "above", "2 : 1", *sides, "none")
    weak = Claim("paper", "not below", "2 : 1", *sides, "none", allows_equal=True)
    for first, second, verdict, weak_verdict in (
        ([0.8, 0.81], [0.7, 0.71], "holds", "holds"),
        ([0.7, 0.71], [0.8, 0.81], "does not hold", "does not hold"),
        ([0.7, 0.8], [0.71, 0.81], "within the error", "holds"),
    ):
        results = synthetic({("a", "none"): first, ("b", "none"): second})
        assert (claim.verdict(results), weak.verdict(results)) == (verdict, weak_verdict)
    assert claim.verdict(synthetic({("a", "none"): [1.0], ("b", "symmetric:0.5"): [0.0]})) == "not run"


def test_a_side_of_several_entries_is_their_lowest_or_highest_and_waits_for_all():
    results = synthetic({("a", "none"): [0.5, 0.7], ("b", "none"): [0.8, 0.8], ("c", "symmetric:0.5"): [0.1]})
    assert Operand(("a", "b"), pick=min).estimate(results, "none").mean == pytest.approx(0.6)
    assert Operand(("a", "b"), pick=max).estimate(results, "none").mean == pytest.approx(0.8)
    assert Operand(("a", "b", "c")).estimate(results, "none") is None
    assert Operand(("a",), "sdaw").estimate(results, "none") is None


def test_claims_ask_for_what_the_table_lacks_and_nothing_twice():
    table = all_cells({"glyphs": NOISES}, list(ENTRIES.values()), seeds=2, common=ONE_EPOCH)
    extra = claim_cells("glyphs", None, 2, ONE_EPOCH, table)
    assert len(set(extra)) == len(extra) and not set(extra) & set(table)
    asked = {(cell.entry.name, cell.noise) for cell in extra}
    needed = {(name, claim.noise) for claim in CLAIMS for name in claim.names}
    assert needed <= asked | {(cell.entry.name, cell.noise) for cell in table}
    assert {name for name, _ in asked} == {*ABLATIONS, "bspml", "multi-similarity", "proxy-anchor"}
    assert {cell.seed for cell in extra} == {0, 1}
    assert {cell.noise for cell in claim_cells("glyphs", ["none"], 1, ONE_EPOCH, [])} == {"none"}


def test_what_is_run_for_a_claim_alone_stays_out_of_the_table():
    entry = Entry("proxy-anchor", "Proxy-Anchor", {})
    beside = ABLATIONS["proxy-anchor-margin-0.2"]
    cells = [Cell("glyphs", entry, "none", 0, ONE_EPOCH), Cell("glyphs", beside, "symmetric:0.5", 0, ONE_EPOCH, False)]
    results = Results((cell, outcome(cell, 0.5 + 0.1 * place)) for place, cell in enumerate(cells))
    assert rows(results, "precision_at_1") == [["", "none"], ["Proxy-Anchor", "0.500"]]
    assert rows_beside(results)[1:] == [["Proxy-Anchor, δ = 0.2", "symmetric:0.5", "0.600"]]
    for text in (markdown(sections(results)), page(sections(results), "")):
        assert "Proxy-Anchor, δ = 0.2" in text


def test_tables_and_page_show_what_was_run():
    results = synthetic(
        {
            ("proxy-anchor", "none"): [0.8, 0.9],
            ("proxy-anchor", "symmetric:0.5"): [0.4, 0.5],
            ("smooth-proxy-anchor", "symmetric:0.5"): [0.7, 0.71],
        }
    )
    assert rows(results, "precision_at_1") == [
        ["", "none", "symmetric:0.5"],
        ["Proxy-Anchor", "0.850 ± 0.050", "0.450 ± 0.050"],
        ["Smooth-Proxy-Anchor", "–", "0.705 ± 0.005"],
    ]
    assert [row[0] for row in rows(results, "sdaw")] == [""]
    (claim,) = claim_rows(results)[1:]
    assert claim[4:] == ["0.705 ± 0.005 : 0.450 ± 0.050", "holds"]
    assert "| Proxy-Anchor | 0.850 ± 0.050 | 0.450 ± 0.050 |" in markdown(sections(results))
    text = page(sections(results), "a < b")
    assert "a &lt; b" in text and "0.705 ± 0.005" in text and "data:image/svg+xml" in text
    assert "http" not in text.replace("http://www.w3.org", "").replace("http-equiv", "")


def test_every_row_and_claim_is_a_setting_that_exists():
    for entry in ALL_ENTRIES.values():
        for noise in NOISES:
            assert parse_noise(noise) or noise == "none"
            assert Cell("glyphs", entry, noise, 0, ONE_EPOCH).config.seed == 0
    assert set(QUICK_ENTRIES) <= set(ENTRIES) and set(QUICK_NOISES) <= set(NOISES)
    for claim in CLAIMS:
        assert claim.names <= set(ALL_ENTRIES), claim
        assert parse_noise(claim.noise) or claim.noise == "none"


@pytest.mark.nightly
def test_networks_that_train_as_a_whole_are_compared(tmp_path, capsys):
    save_photos(tmp_path / "photos", classes=8, images=4, size=(9, 9))
    command = ["compare", "--data", str(tmp_path / "photos"), "--methods", "proxy-anchor", "--epochs", "1"]
    command += ["--workers", "1", "--out", str(tmp_path / "out"), "--device", "cpu"]
    network = ["--finetune", "--backbone", "untrained"]
    assert main([*command, *network, "--noise", "symmetric:0.5", "--seeds", "2"]) == 0
    captured = capsys.readouterr()
    first, second = json.loads((tmp_path / "out" / "compare.json").read_text())
    assert first["settings"]["finetune"] and first["settings"]["backbone"] == "untrained"
    # Each seed starts from a network of its own, and the table has their mean.
    before = [outcome["summary"]["untouched"]["mean_average_precision_at_r"] for outcome in (first, second)]
    assert before[0] != before[1]
    assert f"| Untouched features of the untrained network | {sum(before) / 2:.3f} |" in captured.out
    assert "trained as a whole (untrained)" in (tmp_path / "out" / "compare.md").read_text()
    assert main([*command, "--noise", "symmetric:0.5", *network[:1], "--seeds", "1"]) == 2
    assert "backbone: 'untrained' then, '' now" in capsys.readouterr().err


def test_the_label_has_at_least_half_as_many_neighbours_as_the_commonest():
    rows = torch.nn.functional.normalize(torch.eye(2).repeat_interleave(20, 0) + 0.01 * torch.rand(40, 2))
    labels = torch.tensor([0] * 12 + [1] * 5 + [2] * 3 + [3] * 20)
    # Around the first: 12 of class 0, 5 of class 1, 3 of class 2.
    assert neighbours_agree(rows, labels).tolist() == [True] * 12 + [False] * 8 + [True] * 20
    labels[17] = 1  # 6 are half of 12
    assert neighbours_agree(rows, labels)[12:18].all()


def test_the_neighbour_filter_keeps_more_right_labels_than_wrong_ones(noisy):
    config = TrainingConfig(epochs=2, **ALL_ENTRIES["neighbour-filter"].settings)
    result = train(config, noisy, device="cpu")
    kept, wrong = result.scores["kept"], result.changed
    assert np.nanmean(kept[~wrong]) > 0.9 > 0.5 > np.nanmean(kept[wrong])


def test_a_subgroup_is_what_is_alike_among_the_samples_of_the_label_and_among_all():
    rows = torch.nn.functional.normalize(torch.eye(3).repeat_interleave(10, 0) + 0.01 * torch.rand(30, 3))
    labels = torch.tensor([0] * 7 + [1] * 13 + [2] * 10)  # three samples lie among those of another label
    groups, alike = subgroups(rows, labels)
    of_label, of_all = (set(groups[8][kind[8]].tolist()) for kind in alike)
    assert of_label == {7, 9} and of_all == set(range(10)) - {8}


def test_a_rejected_sample_is_drawn_to_its_supports_and_from_its_negatives():
    sample, near, far = torch.eye(3) + 0.5
    drawn = Drawn(torch.stack([near] * 4)[None] / near.norm(), (far / far.norm())[None], torch.tensor([[True]]))
    x = sample[None].requires_grad_()
    rejected_loss(x, drawn).sum().backward()
    positive, negative = torch.nn.functional.cosine_similarity(sample, torch.stack([near, far])).tolist()
    expected = torch.tensor(50 * (negative - positive + 0.1)).exp().log1p()
    assert rejected_loss(x, drawn).item() == pytest.approx(expected.item(), rel=1e-4)
    assert x.grad[0] @ near < 0 < x.grad[0] @ far


def test_subgroups_change_what_is_learnt_only_where_labels_are_rejected(noisy, clusters):
    for data in (noisy, clusters):
        losses = [
            train(TrainingConfig(epochs=2, **ALL_ENTRIES[name].settings), data, device="cpu").history[-1]["loss"]
            for name in ("sgps", "mcl-prism-average")
        ]
        assert (losses[0] == losses[1]) == (data is clusters)


def test_a_rival_from_robusts_start_differs_in_the_start_alone():
    for name in RIVALS:
        own, whitened = ALL_ENTRIES[name], ALL_ENTRIES[f"{name}-whitened"]
        assert whitened.settings == {**own.settings, "start": "whitened"}
