"""The GPU benchmark on the CPU: dry runs, sections that fail, what does not fit, and settings that win."""

import json

import pytest
import torch

from bench.gpu import __main__ as command
from bench.gpu import contenders, results, sections
from bench.shapes import Shape
from robustdml_ops.backends import cards
from tests.package.test_cards import check_tiles
from tests.subprocesses import run_python

MACHINE = {"dry_run": True}
# Packages that need a GPU, as functions of the same arguments.
PEERS = {
    "cut_cross_entropy": "linear_cross_entropy = lambda e, c, y, filter_eps='auto': cross_entropy(e @ c.t(), y)",
    "liger_kernel/transformers/functional": "liger_fused_linear_cross_entropy = lambda e, c, y, **options: "
    "cross_entropy(e @ c.t(), y)",
    "liger_kernel/ops/cutile/ops/fused_linear_cross_entropy": "class LigerFusedLinearCrossEntropyFunction:\n"
    "    apply = staticmethod(lambda e, c, y: (cross_entropy(e @ c.t(), y), None))",
    "liger_kernel/ops/cutedsl/ops/fused_linear_cross_entropy_sm90": "liger_fused_linear_cross_entropy_sm90 = "
    "lambda e, c, y: cross_entropy(e @ c.t(), y)",
    "liger_kernel/ops/cutedsl/ops/fused_scaled_cross_entropy_sm90": "class LigerFusedScaledCrossEntropySM90Function:\n"
    "    apply = staticmethod(lambda e, c, y: cross_entropy(e @ c.t(), y, reduction='none'))",
    "quack/linear_cross_entropy": "chunked_linear_cross_entropy = lambda x, w, y: cross_entropy(x @ w.t(), y)",
    "siglip_kernel": "fused_siglip_loss = lambda x, v, t, b: (-logsigmoid((2 * eye(len(x)) - 1) * "
    "(x @ v.t() * t.exp() + b))).sum() / len(x)",
}


@pytest.mark.parametrize("only", [["ceilings"], pytest.param([*command.SECTIONS], marks=pytest.mark.nightly)])
def test_a_dry_run_passes_through_every_line(only, tmp_path):
    for name, source in PEERS.items():
        file = tmp_path / "peers" / f"{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"from torch import eye\nfrom torch.nn.functional import cross_entropy, logsigmoid\n{source}\n")
    options = ("--dry-run", "--minutes", "60", "--only", *only)
    done = run_python("-m", "bench.gpu", str(tmp_path), *options, timeout=2000, PYTHONPATH=str(tmp_path / "peers"))
    assert done.returncode == 0, done.stderr
    rows = results.read(tmp_path)
    assert {row["section"] for row in rows} == set(only)
    assert [row for row in rows if row["status"] not in (results.OK, "skipped")] == []
    apart = {row["who"]: max(row["apart"]) for row in rows if row.get("apart")}
    assert all(error < 0.06 for error in apart.values()), apart  # the same problem
    assert results.table(rows) in done.stdout


def sheet(tmp_path):
    return results.Sheet("ceilings", tmp_path, 60, MACHINE)


def test_a_row_that_fails_leaves_the_others_be_and_is_not_measured_again(tmp_path, monkeypatch):
    def fail(device, dtype, shape, who):
        raise {"float32": ValueError, "bfloat16": results.Missing}[dtype]("made to fail")

    monkeypatch.setattr(sections, "of_chunk", fail)
    sections.ceilings(sheet(tmp_path))
    found = [row["status"] for row in results.read(tmp_path)]
    assert [found.count(status) for status in ("ok", "failed", "missing")] == [3, 3, 3]
    monkeypatch.setattr(sections, "of_chunk", lambda *_: {})
    sections.ceilings(sheet(tmp_path))
    found = [row["status"] for row in results.read(tmp_path)]
    assert [found.count(status) for status in ("ok", "failed", "missing")] == [6, 3, 0]


def test_a_section_that_crashes_is_a_row(tmp_path, monkeypatch):
    monkeypatch.setattr(command, "TRIES", 1)
    row = {"section": "none", "dtype": "amp", "machine": MACHINE, "status": "begun"}
    for who in ("triton", "native"):
        results.append(tmp_path, row | {"what": "a row", "who": who})
    command.section("none", tmp_path, 60, MACHINE, {"PYTHONPATH": str(command.ROOT)}, None, "triton amp")
    told = {(row["what"], row["who"]): (row["status"], row.get("reason")) for row in results.read(tmp_path)}
    failed = ("failed", "the process ended with code 1: see log.txt")
    assert told.pop(("a row", "native")) == ("begun", None)  # of a process beside it
    assert told == {("a row", "triton"): failed, ("all of it", "triton amp"): failed}


def test_what_does_not_fit_is_halved_and_compared_at_its_own_size(tmp_path, monkeypatch):
    def step(family, who, shape, *_):
        if who != contenders.OURS and shape.C > 300:
            raise torch.OutOfMemoryError
        return lambda: [torch.ones(())]

    monkeypatch.setattr(contenders, "step", step)
    monkeypatch.setattr(sections, "sized", lambda _, shape: shape)
    monkeypatch.setattr(sections, "STEPS", [("multi-similarity", Shape(8, 1000, 4), "float32")])
    sections.steps(sheet(tmp_path))
    found = [(row["who"], row["shape"], row["status"]) for row in results.read(tmp_path)]
    sizes = [(f"B=8 C={C} D=4", status) for C, status in (("1e3", "no memory"), ("5e2", "no memory"), ("250", "ok"))]
    ours = [(contenders.OURS, "B=8 C=1e3 D=4", "ok"), (contenders.OURS, "B=8 C=250 D=4", "ok")]
    whose = [who for who in contenders.CONTENDERS["multi-similarity"] if who not in (contenders.OURS, contenders.GRAPH)]
    recorded, others = ([(who, *size) for who in names for size in sizes] for names in ([contenders.GRAPH], whose))
    assert contenders.PML in whose and found == [ours[0], *recorded, *others, ours[1]]


def test_what_is_stored_has_the_last_row_of_a_key_and_numbers_of_calls_and_tests():
    def row(section, what, who, status="ok", **facts):
        return facts | {
            "section": section, "what": what, "who": who, "status": status,
            "shape": "", "dtype": "amp", "machine": MACHINE,
        }  # fmt: skip

    rows = [
        row("correctness", "a", "triton", errors=[1e-3, 0.1]),
        row("correctness", "b", "triton", errors=[1e-3, 0.02]),
        row("correctness", "c", "triton", "failed", errors=[1.0], reason="wrong"),
        row("tests", "t.py", "x"),
        row("tests", "t.py", "y", "skipped"),
        row("steps", "s", "robustdml", step_s=1.0),
        row("steps", "s", "robustdml", step_s=0.123456),
    ]
    told = json.loads(results.stored(rows))
    assert told["machines"] == [MACHINE]
    summed, tests, wrong, step = told["rows"]
    assert (summed["ok"], summed["failed"], summed["errors"]) == (2, 1, 1.0)
    assert (tests["what"], tests["ok"], tests["skipped"]) == ("t.py", 1, 1)
    assert (wrong["what"], wrong["reason"], step["step_s"]) == ("c", "failed: wrong", 0.1235)


def test_reports_of_a_sanitizer():
    none, one = "call a\n========= ERROR SUMMARY: 0 errors\n", "========= RACECHECK SUMMARY: 1 hazard displayed\n"
    invalid = "call a\n========= Invalid __global__ read of size 4 bytes\n"
    cases = [(0, none), (0, one), (1, none), (0, "Device not supported"), (None, "call a\n"), (None, invalid)]
    found = [sections.judged(*case)["status"] for case in cases]
    assert found == ["ok", "failed", "failed", "failed", "time", "failed"]
    assert {"robustdml", "anchor_lse", "vmf_fit"} <= set(sections.kernels())


def test_variants_are_rows_of_the_table_and_the_fastest_wins():
    rows = []
    for group, (steps, _) in sections.VARIANTS.items():
        for name, changes in sections.named(group).items():
            check_tiles(sections.changed(cards.CARDS[cards.DEFAULT], group, changes))
            took = {"chunk_least_mb: 512, chunk_most_mb: 512": 0.8, "num_warps: 8": 0.7}.get(name, 0.99)
            took = 1.0 if name == "present" or (group == "class_lse" and took == 0.7) else took
            facts = {"section": "settings", "status": "ok", "who": f"{group}; {name}"}
            rows += [facts | {"what": what, "shape": str(shape), "step_s": took} for what, shape in steps]
    won = {"chunk": "chunk_least_mb: 512, chunk_most_mb: 512", "anchor_lse": "num_warps: 8"}
    assert results.winners(rows) == won
