"""Tables of ``bench/results/h200.json``, which ``python -m bench.gpu --store`` writes, and predictions beside them."""

import json
from functools import cache
from typing import Any

from website.bench_tables import seconds
from website.repository import ROOT
from website.tables import table

RESULTS = ROOT / "bench" / "results"
LARGE, SMALL, BATCH, SMALL_BATCH = "B=1024 C=1e6 D=512", "B=256 C=1e5 D=128", "B=8192 C=0e0 D=512", "B=1024 C=0e0 D=512"
OURS, RECORDED, PML = "robustdml", "robustdml, CUDA graph", "pytorch-metric-learning"
POWERS = {f"1e{k}": f"10{digit}" for k, digit in zip(range(3, 8), "³⁴⁵⁶⁷", strict=True)}
OTHERS = [PML, "PyTorch", "torch.compile"]
# Families as the pages call them, with the type of the matrices.
FAMILIES = {
    "Proxy-Anchor": ("proxy-anchor", "bfloat16"),
    "Proxy-Anchor, float32 under autocast": ("proxy-anchor", "amp"),
    "softmax": ("softmax", "bfloat16"),
    "multi-similarity": ("multi-similarity", "bfloat16"),
    "contrastive": ("contrastive", "bfloat16"),
}
STEPS = [
    *((family, shape) for family in list(FAMILIES)[:3] for shape in (LARGE, SMALL)),
    *((family, shape) for family in list(FAMILIES)[3:] for shape in (BATCH, SMALL_BATCH)),
]
SOFTMAX = {
    "robustdml": OURS,
    "`torch.compile`": "torch.compile",
    "PyTorch": "PyTorch",
    "cut-cross-entropy 25.1.1": "cut-cross-entropy",
    "the same with all gradients (`filter_eps=None`)": "cut-cross-entropy, filter_eps=None",
    "liger-kernel 0.8.5 with chunks of 256 MB": "liger-kernel, larger chunks",
    "liger-kernel as it is": "liger-kernel",
    "PyTorch by slices of the batch": "PyTorch, chunked",
    "pytorch-metric-learning 2.9": PML,
}


@cache
def rows() -> dict[tuple[str, ...], dict[str, Any]]:
    """Rows by section, family, shape, type and contender."""
    content = json.loads((RESULTS / "h200.json").read_text())
    return {
        tuple(str(row.get(part, "")) for part in ("section", "what", "shape", "dtype", "who")): row
        for row in content["rows"]
    }


def _time(section: str, family: str, shape: str, dtype: str, who: str) -> str:
    row = rows().get((section, family, shape, dtype, who))
    if row is None:
        return "–"
    return seconds(row["step_s"]) if "step_s" in row else str(row["status"])


def _shape(shape: str) -> str:
    """A shape as the pages write it: powers of ten, and no classes where there are none."""
    parts = (part.partition("=") for part in shape.split() if part != "C=0e0")
    return ", ".join(f"{name}={POWERS.get(value, value)}" for name, _, value in parts)


def steps() -> str:
    """Times of a step, also recorded as a CUDA graph, beside others, and memory."""
    lines = []
    for family, shape in STEPS:
        of = ("steps", FAMILIES[family][0], shape, FAMILIES[family][1])
        graph = rows()[(*of, RECORDED)]
        products = f"{graph['step_s'] / graph['floor_s']:.1f}"
        memory = [
            f"{row['beyond_bytes'] / 1e9:.2f} GB" if (row := rows().get((*of, who))) else "–" for who in (OURS, PML)
        ]
        times = [_time(*of, who) for who in (OURS, RECORDED)]
        lines.append(
            [family, _shape(shape), *times, products, *(_time(*of, who) for who in OTHERS), " / ".join(memory)]
        )
    header = [
        "loss",
        "shape",
        "a step",
        "recorded",
        "÷ its products",
        *OTHERS[:2],
        "`torch.compile`",
        "memory here / there",
    ]
    return table(header, lines)


def softmax() -> str:
    """A step of softmax over a million classes by all who have one."""
    lines = []
    for title, who in SOFTMAX.items():
        row = rows()["steps", "softmax", LARGE, "bfloat16", who]
        lines.append([title, seconds(row["step_s"]), f"{row['beyond_bytes'] / 1e9:.2f} GB"])
    return table(["softmax over 10⁶ classes", "a step", "memory beyond gradients"], lines)


def scaling() -> str:
    """A step from 10³ to 10⁷ classes."""
    lines = []
    for classes, power in POWERS.items():
        shape = f"B=1024 C={classes} D=512"
        line = [power]
        for family in ("proxy-anchor", "softmax"):
            of = ("scaling", family, shape, "bfloat16")
            found = rows()[(*of, OURS)]
            line += [_time(*of, OURS), f"{found['beyond_bytes'] / 1e9:.2f} GB", _time(*of, PML)]
        lines.append(line)
    header = ["classes", "Proxy-Anchor", "its memory", "pytorch-metric-learning", "softmax", "its memory"]
    return table([*header, "pytorch-metric-learning"], lines)


def predicted() -> str:
    """Steps by what they compute and move, between all of it overlapping and nothing, beside what was measured."""
    content = json.loads((RESULTS / "predicted.json").read_text())
    lines = []
    for step in content["steps"]:
        shape = "B={B} C={C:.0e} D={D}".format(**step).replace("e+0", "e")
        family = {"normalised softmax": "softmax"}.get(step["what"], "proxy-anchor")
        flops = float(step["products"] * step["B"] * step["C"] * step["D"])
        computing = 1e3 * flops / content["flops_per_s"] / content["share"]
        moving = 1e12 * step["gigabytes"] / content["bytes_per_s"] / content["share"]
        section = "steps" if ("steps", family, shape, "bfloat16", OURS) in rows() else "scaling"
        of = (section, family, shape, "bfloat16")
        counts = (f"{flops / 1e12:.3g}", f"{step['gigabytes']:.3g}", str(step["launches"]))
        between = f"{max(computing, moving):.2g}–{computing + moving:.2g} ms"
        what, measured = step["what"], [_time(*of, OURS), _time(*of, RECORDED)]
        if step.get("fused"):
            what, measured = f"{what}, `fused_steps`", ["–", "–"]
        lines.append([what, _shape(shape), *counts, between, *measured])
    return table(["loss", "shape", "TFLOP", "GB", "launches", "predicted", "measured", "recorded"], lines)
