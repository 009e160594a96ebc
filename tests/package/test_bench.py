"""``python -m robustdml_ops.bench``: the benchmarks that it runs, their devices, and its report."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from robustdml_ops.bench import __main__ as command
from robustdml_ops.bench import suite
from robustdml_ops.bench.families import FAMILIES, assert_same
from robustdml_ops.bench.pair_workloads import TOWERS, PairShape, PairWorkload
from robustdml_ops.bench.workloads import Shape, Workload
from tests.subprocesses import ROOT


@pytest.fixture
def bench(monkeypatch):
    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["bench", *map(str, arguments)])
        return command.main()

    return run


def timed(group, contender, median, floor, **facts):
    info = {"contender": contender, "floor_s": floor, **facts}
    return {"group": group, "stats": {"median": median}, "extra_info": info}


CONTENT = {
    "machine_info": {"machine": "x86_64", "cpu": {"brand_raw": "a CPU"}, "python_version": "3.12", "torch": "2.12",
                     "threads": 2, "robustdml_ops": "0.1.0"},
    "commit_info": {"id": "0123456789abcdef", "dirty": True},
    "benchmarks": [
        timed("proxy-anchor", "robustdml/proxy-anchor", 0.02, 0.01, flops=1e9),
        timed("proxy-anchor", "pml/proxy-anchor", 0.1, 0.01, flops=1e9),
        {"group": "memory, B=1", "extra_info": {"contender": "robustdml/proxy-anchor", "beyond_mb": 8.0,
                                                "inputs_and_gradients_mb": 100.0, "process_mb": 300.0}},
    ],
}  # fmt: skip


def test_an_earlier_result_is_shown_again(bench, tmp_path, capsys):
    path = tmp_path / "earlier.json"
    path.write_text(json.dumps(CONTENT))
    assert bench("--json", path, "--out", tmp_path / "out") == 0
    text = capsys.readouterr().out
    assert "a CPU, 2 threads, torch 2.12, Python 3.12, robustdml_ops 0.1.0, commit 0123456789 with changes" in text
    assert "| 100 ms | 10 ms | 10.00   | 5.0    | 100 GFLOP/s  |" in text
    assert "8 MB" in text
    assert (tmp_path / "out" / "bench.md").read_text() in text
    assert (tmp_path / "out" / "bench.png").stat().st_size > 1000
    of_a_wheel = {**CONTENT, "commit_info": {"id": "unversioned", "dirty": False}}
    assert suite.machine(of_a_wheel).endswith("robustdml_ops 0.1.0")
    path.write_text("{")
    assert bench("--json", path, "--out", tmp_path / "out") == 2
    assert "holds no benchmark result" in capsys.readouterr().err


def test_what_is_missing_is_named_in_one_line(bench, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(suite, "find_spec", lambda module: None if module == "pytest_benchmark" else module)
    assert bench("--out", tmp_path) == 2
    assert capsys.readouterr().err == (
        "python -m robustdml_ops.bench: needs pytest-benchmark: install with `pip install 'robustdml_ops[bench]'`\n"
    )


WITHOUT_EXTRAS = """
import sys
sys.modules |= dict.fromkeys(["robustdml", "scipy", "matplotlib", "pytorch_metric_learning"])
"""


@pytest.mark.nightly
def test_it_measures_wherever_it_is_called_from(tmp_path):
    """The settings of the project that it is called in, here wrong ones, are none of its business."""
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --no-such-option\n")
    (tmp_path / "conftest.py").write_text("raise RuntimeError\n")
    # Without the application, scipy, matplotlib and pytorch-metric-learning.
    (tmp_path / "sitecustomize.py").write_text(WITHOUT_EXTRAS)
    called = [sys.executable, "-m", "robustdml_ops.bench", "--out", "out"]
    memory = "test_memory and (robustdml/proxy-nca or pml/proxy-nca or [100000-128-adamw])"
    called += ["--only", f"(test_cut and 64-robustdml and eager) or ({memory})"]
    # A worker of pytest-xdist would pass its name on, and with it that nothing is to be timed.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment["PYTHONPATH"] = os.pathsep.join([str(tmp_path), str(ROOT)])
    done = subprocess.run(called, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    measured = json.loads((tmp_path / "out" / "bench.json").read_text())
    contenders = {benchmark["extra_info"]["contender"] for benchmark in measured["benchmarks"]}
    assert contenders == {"robustdml/eager", "robustdml/proxy-nca", "adamw"}  # pml/proxy-nca is skipped
    written = {path.name for path in tmp_path.iterdir()} - {"__pycache__"}
    assert written == {"conftest.py", "out", "pytest.ini", "sitecustomize.py"}


@pytest.mark.nightly
def test_a_selection_of_nothing_is_an_error(bench, tmp_path, capsys):
    with pytest.raises(SystemExit):
        bench("--only")
    assert bench("--only", "no_such_benchmark", "--out", tmp_path) == 2
    assert "none was selected" in capsys.readouterr().err


PROXY = ["proxy-anchor", "proxy-anchor none", "smooth dense", "smooth factored", "adaptive", "proxy-nca", "arcface own"]
PAIRS = ["ms", "ms none", "contrastive", "memory", "supcon", "nt-xent", "info-nce", "sigmoid"]


def on_meta(tensors):
    """Whether all lie on "meta", where mixing in a tensor of the CPU raises."""
    return {tensor.device.type for tensor in tensors} == {"meta"}


@pytest.mark.parametrize("name", [*(f"robustdml/{loss}" for loss in PROXY), "torch/proxy-nca"])
def test_steps_over_proxies(name):
    workload = Workload(Shape(4, 20, 8), "meta")
    assert on_meta(workload.contender(name)())
    workload.products(logits="smooth" in name)()


@pytest.mark.parametrize("name", [f"robustdml/{loss}" for loss in PAIRS])
def test_steps_over_pairs(name):
    bank = 16 if "memory" in name else 8 if name.split("/")[1] in TOWERS else 0
    workload = PairWorkload(PairShape(8, 4, bank, wrong=50), "meta")
    assert on_meta(workload.contender(name)())
    workload.products(3, 2)()


KINDS = [kind for kind, family in FAMILIES.items() if family.formula is not None and kind != "smooth"]


def compare_rivals(kind, chosen):
    """Values and gradients of all who compute a family."""
    if FAMILIES[kind].classes:
        workload = Workload(Shape(32, 60, 16))
    else:
        workload = PairWorkload(PairShape(32, 16, 32 if kind in ("memory", *TOWERS) else 0))
    ours = workload.contender(f"robustdml/{kind}")()
    whose = [name for name in FAMILIES[kind].contenders(kind) if chosen(name) and name != "pml/memory"]
    for name in whose:
        assert_same(workload.contender(name)(), ours)
    return len(whose)


@pytest.mark.parametrize("kind", KINDS)
def test_rivals_compute_the_same(kind):
    assert compare_rivals(kind, lambda name: not name.startswith("compile/")) >= 2


@pytest.mark.nightly
@pytest.mark.filterwarnings("default")
@pytest.mark.skipif(shutil.which("c++") is None, reason="torch.compile needs a C++ compiler")
@pytest.mark.parametrize("kind", KINDS)
def test_compiled_rivals_compute_the_same(kind):
    assert compare_rivals(kind, lambda name: name.startswith("compile/")) == 1


@pytest.mark.parametrize("what", ["miner's pairs", "queue"])
def test_the_peer_s_own_pairs_give_the_same(what):
    workload = PairWorkload(PairShape(32, 16, 64))
    peer = workload.contender(f"pml/{what}")()
    for who in ("robustdml", *(["torch"] if "pairs" in what else [])):
        assert_same(workload.contender(f"{who}/{what}")(), peer)
