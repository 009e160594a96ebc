"""Counts and times that the prediction for a server of many cores takes: ``python -m bench.many_cores``.

Times the step of Proxy-Anchor with one lane and with two, and its calls alone, a step of one class; counts chunks and
memory with more lanes; and writes both into ``bench/results/many_cores.json``. Run it at rest.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch

from robustdml_ops.backends.native_module import lane_rows

from .crowd import median_seconds
from .shapes import SMALL, Shape
from .workloads import Workload

STORED = Path(__file__).parent / "results" / "many_cores.json"
LANES = (1, 2, 16, 64, 128)


def measured(shape: Shape) -> dict[str, Any]:
    """Seconds of the step with one lane and two, and of a step of one class, where calls are all that takes time."""
    seconds: dict[str, Any] = {"B": shape.B, "C": shape.C, "D": shape.D}
    for name, lanes, classes in (("one_s", 1, shape.C), ("two_s", 2, shape.C), ("calls_s", 2, 1)):
        torch.set_num_threads(lanes)
        step = Workload(Shape(shape.B, classes, shape.D)).contender("robustdml/proxy-anchor")
        seconds[name] = float(f"{median_seconds(step):.4g}")
    return seconds


def counted(shape: Shape, lanes: int) -> dict[str, int]:
    """Rows of a chunk, the most chunks of a lane, and bytes of all lanes: similarities, and sums of the batch's dX."""
    rows = lane_rows(shape.C, 4 * (shape.B + 2 * shape.D), lanes)
    chunks = -(-shape.C // rows)
    sums = lanes + (chunks - 1).bit_length()
    return {
        "lanes": lanes,
        "rows": rows,
        "most_chunks": -(-chunks // lanes),
        "bytes": 4 * shape.B * (lanes * rows + sums * shape.D),
    }


def main() -> None:
    """Replace all of the stored numbers but those that are assumed."""
    argparse.ArgumentParser(description="Measure and count what the prediction for many cores takes.").parse_args()
    assumed = json.loads(STORED.read_text())["assumed"]
    content = {"assumed": assumed, **measured(SMALL), "steps": [counted(SMALL, lanes) for lanes in LANES]}
    STORED.write_text(json.dumps(content, indent=2) + "\n")


if __name__ == "__main__":
    main()
