"""Benchmarks are not tests: what they time is checked for correctness first, and never fails for being slow."""

import statistics
import time
from pathlib import Path

import pytest
import torch

import robustdml_ops

ROUNDS = 9
IN_CHECKOUT = (Path(__file__).resolve().parents[1] / "pyproject.toml").exists()


def pytest_benchmark_generate_commit_info(config):
    """Installed from a wheel there is no commit; that of a repository around the installation would be another's."""
    return None if IN_CHECKOUT else {"id": "unversioned", "dirty": False, "branch": "(unknown)"}


def pytest_benchmark_update_machine_info(config, machine_info):
    machine_info["robustdml_ops"] = robustdml_ops.__version__
    machine_info["torch"] = torch.__version__
    machine_info["threads"] = torch.get_num_threads()
    machine_info["gpu"] = torch.cuda.get_device_name() if torch.cuda.is_available() else None


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
