"""Benchmarks first check their result, then time it; none fails for being slow."""

import json
import shutil
import statistics
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

import robustdml_ops

ROUNDS = 9
# Packages that a contender needs, by a word of its name.
NEEDED = {"pml/": "pytorch_metric_learning", "peer": "pytorch_metric_learning", "miner": "pytorch_metric_learning"}
NEEDED["scipy"] = "scipy"
IN_CHECKOUT = (Path(__file__).resolve().parents[1] / "pyproject.toml").exists()


def pytest_benchmark_generate_commit_info(config):
    """Installed from a wheel there is no commit; that of a repository around the installation would be another's."""
    return None if IN_CHECKOUT else {"id": "unversioned", "dirty": False, "branch": "(unknown)"}


def pytest_benchmark_update_machine_info(config, machine_info):
    machine_info["robustdml_ops"] = robustdml_ops.__version__
    machine_info["torch"] = torch.__version__
    machine_info["threads"] = torch.get_num_threads()
    machine_info["gpu"] = torch.cuda.get_device_name() if torch.cuda.is_available() else None


def pytest_runtest_setup(item):
    contender = str(getattr(item, "callspec", None) and item.callspec.params.get("contender"))
    for word, package in NEEDED.items():
        if word in contender and find_spec(package) is None:
            pytest.skip(f"{contender} needs {package}")
    if contender.startswith("compile/") and not (torch.cuda.is_available() or shutil.which("c++")):
        pytest.skip(f"{contender} needs a C++ compiler")


@pytest.fixture
def in_own_process(benchmark):
    """Run ``python -m MODULE ARGUMENTS`` and keep the figures that it prints as JSON; its time means nothing."""

    def run(module, *arguments, group, contender):
        command = [sys.executable, "-m", f"{__package__}.{module}", *map(str, arguments)]
        benchmark.group = group
        out = benchmark.pedantic(lambda: subprocess.run(command, capture_output=True, text=True, check=True), rounds=1)
        benchmark.extra_info.update(contender=contender, **json.loads(out.stdout))

    return run


@pytest.fixture
def timed(benchmark):
    """Time ``step`` against ``floor`` turn by turn, so that both see the same machine; medians of both are kept."""

    def run(step, floor, group, contender, rounds=ROUNDS, **facts):
        floors = []

        def measure_floor():
            start = time.perf_counter()
            floor()
            _synchronize()
            floors.append(time.perf_counter() - start)

        def timed_step():
            step()
            _synchronize()

        benchmark.group = group
        benchmark.extra_info.update(contender=contender, **facts)
        benchmark.pedantic(timed_step, setup=measure_floor, rounds=rounds, warmup_rounds=2)
        benchmark.extra_info["floor_s"] = statistics.median(floors[2:])

    return run


def _synchronize():
    if torch.cuda.is_available():
        torch.cuda.synchronize()
