"""Counts and times the host's part of a step of every family: ``python -m bench.host`` writes bench/results/host.json.

On the CPU's path it is the whole step. On the GPU's path tensors are tiny and of the CPU, and no kernel runs: what is
left is the host's work. There ours stands beside rivals that run their kernels on the same tiny tensors.
"""

import argparse
import json
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from .counts import counted, stand_ins
from .families import PLAIN, assert_same
from .pair_workloads import workload_of
from .shapes import Shape
from .suite import markdown
from .thin_path import thin_step
from .workloads import Workload

STORED = Path(__file__).parent / "results" / "host.json"
RIVALS = ("pml", "torch", "compile")
TURNS, EACH, WARM = 15, 20, 3  # blocks of a contender, its timed steps in a block, and those before them
LONGEST_S = 0.05  # of a block: of slow steps there are fewer
THIN, PROTOTYPE, MORE = "thin prototype", "prototype", 8  # a step without a loss, and whose it is; further chunks
COLUMNS = {
    "path": "path",
    "family": "loss",
    "who": "who",
    "functions": "functions",
    "builtins": "builtins",
    "ops": "ops",
}
COLUMNS |= {
    "launches": "launches",
    "files": "files",
    "cpu_us": "CPU µs",
    "wall_us": "wall µs",
    "chunk_us": "a chunk µs",
}
MEANING = """All of one step, forward and backward, without what bench itself calls.
functions: Python functions entered. builtins: functions and methods of PyTorch in C that Python calls by name.
ops: operations that pass PyTorch's dispatcher, whoever calls them; not counted of compiled code.
launches: of Triton's kernels, which do nothing here. files: of the library, entered.
CPU µs: of the calling thread. a chunk: CPU µs of each further chunk."""


CPU, GPU = Shape(128, 200, 64), Shape(8, 64, 16)


def medians(
    steps: dict[str, Callable[[], object]], within: dict[str, Callable[[], Any]]
) -> dict[str, dict[str, float]]:
    """µs of the thread and of the wall, turn by turn; each block of steps runs ``within`` its context."""
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in steps}
    for _ in range(TURNS):
        for name, step in steps.items():
            with within.get(name, nullcontext)():
                for _ in range(WARM):
                    step()
                end = time.perf_counter() + LONGEST_S
                for _ in range(EACH):
                    wall, thread = time.perf_counter(), time.thread_time()
                    step()
                    times[name].append((time.thread_time() - thread, time.perf_counter() - wall))
                    if time.perf_counter() > end:
                        break
    found = {
        name: [1e6 * statistics.median(column) for column in zip(*each, strict=True)] for name, each in times.items()
    }
    return {name: {"cpu_us": round(cpu, 1), "wall_us": round(wall, 1)} for name, (cpu, wall) in found.items()}


def row(path: str, kind: str, who: str, step: Callable[[], object], launched: list[str]) -> dict[str, Any]:
    """The counts of a step."""
    for _ in range(WARM):
        step()
    launched.clear()
    step()
    launches, counts = len(launched), counted(step, who == "compile")
    figures = {"functions": counts.functions, "builtins": counts.builtins, "ops": counts.ops}
    return {"path": path, "family": kind, "who": who, **figures, "launches": launches, "files": len(counts.files)}


def on_cpu(kind: str) -> list[dict[str, Any]]:
    """Ours and its rivals, whose values are compared first."""
    workload = workload_of(kind, CPU)
    steps = {who: workload.contender(f"{who}/{kind}") for who in ("robustdml", *RIVALS)}
    for who in RIVALS:
        assert_same(steps[who](), steps["robustdml"]())
    times = medians(steps, {})
    return [row("cpu", kind, who, step, []) | times[who] for who, step in steps.items()]


def on_gpu(kind: str) -> list[dict[str, Any]]:
    """Ours with launches that do nothing, in one chunk and in many; rivals on the same tensors of the CPU."""
    sides = workload_of(kind, GPU), workload_of(kind, GPU, 1 + MORE)
    steps = {who: sides[0].contender(f"{who}/{kind}") for who in ("robustdml", *RIVALS)}
    for who in RIVALS:
        assert_same(steps[who](), steps["torch"]())
    few, many = steps["robustdml"], sides[1].contender(f"robustdml/{kind}")
    rows_of_a_chunk = len(sides[0].proxies) if isinstance(sides[0], Workload) else GPU.B

    def pretended() -> AbstractContextManager[list[str]]:
        return stand_ins(rows_of_a_chunk)

    times = medians(steps | {"many": many}, {"robustdml": pretended, "many": pretended})
    with pretended() as launched:
        ours, chunked = (row("gpu", kind, "robustdml", step, launched) for step in (few, many))
    ours["chunk_us"] = round((times["many"]["cpu_us"] - times["robustdml"]["cpu_us"]) / MORE, 1)
    ours["chunk_launches"] = (chunked["launches"] - ours["launches"]) / MORE
    return [ours | times["robustdml"], *(row("gpu", kind, who, steps[who], []) | times[who] for who in RIVALS)]


def thin() -> dict[str, Any]:
    """The prototype of the GPU's path, at the same size."""
    step = thin_step(GPU)
    found = row("gpu", THIN, PROTOTYPE, step, []) | medians({THIN: step}, {})[THIN]
    return {**found, "launches": 5}


@contextmanager
def threads(count: int) -> Iterator[None]:
    """As many threads of PyTorch."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def measured(kinds: list[str]) -> dict[str, Any]:
    """Machine, versions, commit and rows."""
    facts = machine()
    rows = [each for kind in kinds for each in on_cpu(kind)]
    with threads(1):  # nothing of the host's part is parallel
        rows += [thin(), *(each for kind in kinds for each in on_gpu(kind))]
    sizes = {"cpu": str(CPU), "gpu": str(GPU)}
    return {**facts, "command": "python -m bench.host", "sizes": sizes, "rows": rows}


def machine() -> dict[str, Any]:
    """Processor, versions and commit."""
    names = [line.partition(": ")[2] for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line]
    versions = {}
    for package in ("torch", "triton", "pytorch-metric-learning"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "none"
    command = ["git", "describe", "--always", "--dirty", "--abbrev=10"]
    commit = subprocess.run(command, cwd=STORED.parent, capture_output=True, text=True, check=False).stdout.strip()
    cpu = {"processor": names[0] if names else platform.machine(), "threads": torch.get_num_threads()}
    return {**cpu, "python": platform.python_version(), **versions, "commit": commit}


def table(rows: list[dict[str, Any]]) -> str:
    """All figures of all rows."""
    return markdown(tuple(COLUMNS.values()), [tuple(str(each.get(key) or "") for key in COLUMNS) for each in rows])


def main() -> None:
    """Measure, print and store."""
    parser = argparse.ArgumentParser(prog="python -m bench.host", description=__doc__.partition(": ")[0])
    parser.add_argument("--only", nargs="+", choices=PLAIN, default=list(PLAIN), help="families")
    parser.add_argument("--out", type=Path, default=STORED, help="file of the results (default: %(default)s)")
    given = parser.parse_args()
    content = measured(given.only)
    lines = ",\n".join(f"    {json.dumps(each)}" for each in content.pop("rows"))
    facts = "".join(f"  {json.dumps(key)}: {json.dumps(value)},\n" for key, value in content.items())
    given.out.write_text(f'{{\n{facts}  "rows": [\n{lines}\n  ]\n}}\n')
    print(f"{table(json.loads(given.out.read_text())['rows'])}\n\n{MEANING}")


if __name__ == "__main__":
    main()
