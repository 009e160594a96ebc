"""Pytest's plugin of section tests: keeps tests that meet a GPU, and writes each outcome as it comes."""

import inspect
import json
import os
from pathlib import Path

from . import results


def meets_gpu(item):
    """Kernels of Triton, a parameter "cuda", or a test that asks whether there is a device."""
    parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
    asks = "cuda.is_available" in inspect.getsource(item.function)
    return item.path.name.endswith("_triton.py") or asks or "cuda" in map(str, parameters)


def pytest_collection_modifyitems(items):
    items[:] = filter(meets_gpu, items)


def pytest_runtest_logreport(report):
    if "PYTEST_XDIST_WORKER" in os.environ or (report.when != "call" and report.passed):
        return  # workers hand their reports to the process that started them
    out, machine = json.loads(os.environ["BENCH_GPU_SHEET"])
    what, _, who = report.nodeid.partition("::")
    status = {"passed": results.OK, "failed": results.FAILED}.get(report.outcome, report.outcome)
    row = {"section": "tests", "what": what, "who": who, "machine": machine, "status": status}
    results.append(Path(out), row | ({} if report.passed else {"reason": str(report.longrepr)[-300:]}))
