"""Tables of ``bench/results/host.json``, which ``python -m bench.host`` writes."""

import json
from functools import cache
from typing import Any

from website.bench_tables import RIVALS, SMALL, seconds
from website.repository import ROOT
from website.tables import table

HOST = ROOT / "bench" / "results" / "host.json"
TITLES = {what: title for title, (_, what) in SMALL.items()}
OTHERS = ("torch", "compile", "pml")


@cache
def rows() -> dict[tuple[str, str, str], dict[str, Any]]:
    """Rows by path, family and contender."""
    found = json.loads(HOST.read_text())["rows"]
    return {(row["path"], row["family"], row["who"]): row for row in found}


def on_cpu() -> str:
    """Calls and time of a whole step on the CPU, beside others."""
    lines = []
    for (path, family, who), row in rows().items():
        if path == "cpu" and who == "robustdml":
            counts = [str(row[name]) for name in ("functions", "builtins", "ops", "files")]
            others = [seconds(1e-6 * rows()[path, family, other]["wall_us"]) for other in OTHERS]
            lines.append([TITLES[family], *counts, seconds(1e-6 * row["wall_us"]), *others])
    header = ["loss", "Python functions", "PyTorch's functions", "operations", "files", "a step"]
    return table([*header, *(RIVALS[other] for other in OTHERS)], lines)


def on_gpu() -> str:
    """Calls and time of the host alone, launches doing nothing, beside others on the same tensors of the CPU."""
    lines = []
    for (path, family, who), row in rows().items():
        if path == "gpu" and who in ("robustdml", "prototype"):
            counts = [str(row[name]) for name in ("functions", "builtins", "ops", "launches")]
            chunk = seconds(1e-6 * row["chunk_us"]) if "chunk_us" in row else ""
            found = [rows().get((path, family, other)) for other in OTHERS]
            others = [seconds(1e-6 * other["cpu_us"]) if other else "" for other in found]
            lines.append([TITLES.get(family, family), *counts, seconds(1e-6 * row["cpu_us"]), chunk, *others])
    header = ["loss", "Python functions", "PyTorch's functions", "operations", "Triton's launches", "host"]
    return table([*header, "each further chunk", *(RIVALS[other] for other in OTHERS)], lines)
