"""The winners of a run go into the table of cards; its report lists predictions and outcomes."""

import dataclasses
import json
import re

import pytest

from bench.gpu import rows
from bench.gpu.adopt import NothingToAdopt, adopt
from bench.gpu.ceilings import Ceilings
from bench.gpu.predictions import Kernel, Prediction, predicted
from bench.gpu.report import draw
from bench.gpu.steps import LARGE, SMALL
from bench.gpu.targets import TARGETS, Found, predictions, table
from bench.gpu.variants import GROUPS, VARIANTS, changed, of_group
from bench.shapes import Shape
from robustdml_ops.backends import cards
from tests.package.test_cards import check_tiles

MACHINE = {"capability": "9.0", "gpu": "NVIDIA H100", "cpu": "x86", "driver": "580", "python": "3.12", "torch": "2.11",
           "triton": "3.6", "commit": "abc"}  # fmt: skip


def measured(faster=(), dry_run=False, **facts):
    """Rows of (f) and (h) in which every variant takes a second, and those of ``faster`` so much of it."""
    times = dict(faster)
    return [
        {"section": letter, "name": name, "status": rows.OK, "shape": vars(shape), "dtype": "bfloat16",
         "variant": f"{group}: {variant.name}", "step_s": times.get((group, variant.name), 1.0), "dry_run": dry_run,
         "run": "r", "machine": MACHINE, **facts}
        for group, (letter, steps) in GROUPS.items() for name, shape in steps for variant in of_group(group)
    ]  # fmt: skip


@pytest.fixture
def shipped(tmp_path):
    path = tmp_path / "cards.json"
    path.write_text(cards.TABLE.read_text())
    return path


def test_winners_are_what_the_code_reads(shipped):
    told = adopt(
        measured({
            ("chunk", "512 MB"): 0.9,
            ("chunk", "2 GB"): 0.7,
            ("backends", "native"): 0.8,
            ("tile of anchor_lse", "8 warps"): 0.9,
            ("forward", "fused up to 128"): 0.5,
            ("graph", "graph"): 0.1,
        }.items()),
        shipped,
    )  # fmt: skip
    before, after = cards.CARDS["sm_90"], cards.read(shipped)["sm_90"]
    tiles = {**before.tiles, "anchor_lse": {**before.tiles["anchor_lse"], "num_warps": 8}}
    assert after == dataclasses.replace(
        before,
        chunk_most_mb=2048,
        chunk_share=32,
        backends=("native", "triton", "eager"),
        fused_columns=128,
        tiles=tiles,
    )
    assert re.search(r"chunk +\| 2 GB +\| 0\.700 +\| 0\.700 +\| adopted", told)
    assert cards.read(shipped)[cards.DEFAULT] == cards.CARDS[cards.DEFAULT]


@pytest.mark.parametrize(
    ("ratio", "name", "fault"),
    [
        (0.985, None, {}),  # chance explains it
        (0.5, "proxy-anchor", {"step_s": 1.2}),  # slower somewhere
        (0.5, "proxy-nca", {"given": vars(SMALL)}),  # measured at another shape
    ],
)
def test_a_winner_that_is_in_doubt_changes_nothing(shipped, ratio, name, fault):
    results = measured({("chunk", "512 MB"): ratio}.items())
    doubted = [row for row in results if row["variant"] == "chunk: 512 MB" and row["name"] == name]
    assert bool(doubted) == bool(name)
    for row in doubted:
        row.update(fault)
    adopt(results, shipped)
    assert shipped.read_text() == cards.TABLE.read_text()


def test_results_of_dry_runs_and_of_other_devices_are_refused(shipped):
    for wrong, reason in (
        (measured(dry_run=True), "not a dry run"),
        ([], "not a dry run"),
        ([*measured(), *measured(machine={**MACHINE, "capability": "10.0"})], "10.0"),
    ):
        with pytest.raises(NothingToAdopt, match=re.escape(reason)):
            adopt(wrong, shipped)
    assert shipped.read_text() == cards.TABLE.read_text()


def test_what_equals_the_default_is_not_written(shipped):
    winner = {("tile of fused_anchor_lse", "64 × 128"): 0.5}
    adopt(measured(winner.items()), shipped)
    assert "fused_anchor_lse" in json.loads(cards.TABLE.read_text())["sm_90"]["tiles"]
    assert "fused_anchor_lse" not in json.loads(shipped.read_text())["sm_90"]["tiles"]


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: f"{variant.group}: {variant.name}")
def test_variants_are_rows_of_the_table(variant):
    for row in cards.CARDS.values():
        check_tiles(changed(row, variant.changes))
    assert variant.graph or any(changed(row, variant.changes) != row for row in cards.CARDS.values())


def test_variants_have_names_of_their_own():
    assert {variant.group for variant in VARIANTS} == set(GROUPS)
    assert len({(variant.group, variant.name) for variant in VARIANTS}) == len(VARIANTS)
    assert set(cards.CARDS[cards.DEFAULT].tiles) == {
        kernel for variant in VARIANTS for kernel in variant.changes.get("tiles", {})
    }


def test_a_prediction_is_its_slowest_part():
    card = Ceilings(bytes_per_s=1e12, bfloat16=1e14, instructions_per_s=1e13, launch_s=1e-5)
    kernels = (Kernel("a", flops=1e12), Kernel("b", bytes=2e10), Kernel("c", instructions=3e11))
    assert Prediction(kernels, None).device_s(card) == pytest.approx(0.01 + 0.02 + 0.03)
    assert Prediction(kernels, 10_000).seconds(card) == pytest.approx(0.1)


def test_predictions_have_the_floor_and_the_launches_that_are_counted():
    card = Ceilings()
    step = predicted("proxy-anchor", LARGE)
    assert sum(kernel.flops for kernel in step.kernels) == 6 * 1024 * 1e6 * 512
    assert step.device_s(card) > 6 * 1024 * 1e6 * 512 / card.bfloat16
    assert 50 < step.launches < 120
    assert predicted("proxy-nca", SMALL).launches < step.launches


def test_every_target_is_predicted():
    printed = predictions()
    for target in TARGETS:
        assert f"| {target.name} " in printed
        assert f"| {target.must} |" in re.sub(" +", " ", printed), target.must


@pytest.mark.nightly
def test_outcomes_stand_beside_predictions():
    shape = vars(LARGE)
    ours = {"section": "g", "name": "robustdml, proxy-anchor", "status": rows.OK, "shape": shape, "dtype": "bfloat16"}
    peer = {**ours, "name": "pytorch-metric-learning, proxy-anchor", "dtype": "amp", "step_s": 0.05}
    ceilings = [{"section": "d", "name": "product bfloat16", "status": rows.OK, "rate": 500e12}]
    card = Ceilings.of(ceilings)
    assert (card.bfloat16, card.source) == (500e12, "section (d)")
    text = table(Found([{**ours, "step_s": 0.010}, peer]), card)
    assert "10 ms: 1.59×, reached" in text
    assert "50 ms: 5.0×, missed" in text
    assert text.count("reached") + text.count("missed") == 2
    stepped_down = {**ours, "step_s": 0.01, "given": vars(Shape(1024, 10, 512))}
    assert "reached" not in table(Found([stepped_down]), card)


@pytest.mark.nightly
def test_a_run_is_drawn(tmp_path):
    path = tmp_path / rows.RESULTS
    for row in measured({("chunk", "2 GB"): 0.7}.items()):
        rows.append(tmp_path, row)
    missing = {"section": "g", "name": "liger-kernel", "status": rows.ABSENT, "reason": "not | there", "shape": None}
    rows.append(tmp_path, {**missing, "dry_run": False, "run": "r", "machine": MACHINE})
    text = draw(tmp_path)
    assert text.startswith("NVIDIA H100; driver 580, python 3.12, torch 2.11, triton 3.6, commit abc")
    assert re.search(r"proxy-anchor +\| B=1024 C=1000000 D=512 +\| bfloat16 +\| chunk: 2 GB +\| 700 ms", text)
    assert "absent: not / there" in text
    assert path.with_suffix(".png").stat().st_size > 1000
