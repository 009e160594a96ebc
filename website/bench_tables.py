"""Tables of ``bench/results``: times and memory on the CPU.

``python -m website.bench_tables BENCH.json`` takes new times into the stored ones; ``python -m website.written`` then
writes the tables of the pages.
"""

import argparse
import json
from collections.abc import Mapping
from functools import cache
from typing import Any

from website.repository import ROOT
from website.tables import table

CPU = ROOT / "bench" / "results" / "cpu.json"
ZEN, OLDER = ", Zen 4", ", Zen 3"  # end the group of a row of that processor beside those of another
# Who computes the same as a row of ours, by the beginning of the contender's name.
RIVALS = {
    "pml": "pytorch-metric-learning",
    "torch": "PyTorch",
    "compile": "`torch.compile`",
    "linear_cross_entropy": "`F.linear_cross_entropy`",
}
# What tables call a row of bench/, where B is 256 and D is 128 unless the row says otherwise: its group and contender.
STEPS = {
    "Proxy-Anchor, 10⁵ classes": ("proxy-anchor, B=256 C=1e5 D=128", "proxy-anchor"),
    "softmax, 10⁵ classes": ("normalized-softmax, B=256 C=1e5 D=128", "normalized-softmax"),
    "softmax, 10⁴ classes": ("normalized-softmax, B=256 C=1e4 D=128", "normalized-softmax"),
    "multi-similarity, mined, B=1024, D=512": ("pairs, ms, B=1024 D=512", "ms"),
    "contrastive with a memory of 10⁵": ("pairs, memory, B=256 D=128 m=1e5", "memory"),
    "multi-similarity, mined, half of the labels wrong, B=1024, D=512": (
        "pairs, ms, B=1024 D=512, 50 % wrong labels",
        "ms",
    ),
    "softmax, 2·10⁴ classes, B=512, D=512": ("normalized-softmax, B=512 C=2e4 D=512", "normalized-softmax"),
    "ArcFace, 10⁵ classes": ("arcface, B=256 C=1e5 D=128", "arcface"),
    "ArcFace, 10⁴ classes": ("arcface, B=256 C=1e4 D=128", "arcface"),
    "sub-centre ArcFace, 10⁴ classes, 3 centres each": ("subcenter-arcface, B=256 C=3e4 D=128", "subcenter-arcface"),
    "Proxy-NCA, 10⁵ classes": ("proxy-nca, B=256 C=1e5 D=128", "proxy-nca"),
    "Proxy-NCA, 10⁵ classes, two labels a sample": ("proxy-nca, B=256 C=1e5 D=128", "proxy-nca two labels"),
    "SoftTriple, 10⁴ classes, 10 centres each": ("soft-triple, B=256 C=1e5 D=128", "soft-triple"),
    "contrastive, B=1024, D=512": ("pairs, contrastive, B=1024 D=512", "contrastive"),
    "SupCon, B=4096, D=512": ("pairs, supcon, B=4096 D=512", "supcon"),
    "NT-Xent, B=4096, D=512": ("pairs, nt-xent, B=4096 D=512", "nt-xent"),
    "Proxy-Anchor, 10⁵ classes, similar negatives dropped": ("proxy-anchor, B=256 C=1e5 D=128", "proxy-anchor dropped"),
    "Proxy-Anchor, 2·10⁵ classes, D=512": ("proxy-anchor, B=256 C=2e5 D=512", "proxy-anchor"),
    "Proxy-Anchor, 10⁵ classes, autocast to bfloat16 (Zen 5)": (
        "proxy-anchor, B=256 C=1e5 D=128",
        "proxy-anchor autocast",
    ),
    "Proxy-Anchor, 10⁵ classes, autocast to bfloat16 (Zen 4)": (
        "proxy-anchor, B=256 C=1e5 D=128, Zen 4",
        "proxy-anchor autocast",
    ),
    "Proxy-Anchor, 2·10⁵ classes, D=512, autocast to bfloat16 (Zen 5)": (
        "proxy-anchor, B=256 C=2e5 D=512",
        "proxy-anchor autocast",
    ),
    "Proxy-Anchor, 2·10⁵ classes, D=512, autocast to bfloat16 (Zen 4)": (
        "proxy-anchor, B=256 C=2e5 D=512, Zen 4",
        "proxy-anchor autocast",
    ),
    "Proxy-Anchor, 10⁶ classes": ("proxy-anchor, B=256 C=1e6 D=128", "proxy-anchor"),
    "Smooth Proxy-Anchor, 10⁵ classes, (B, C) confidences (Xeon)": ("smooth, B=256 C=1e5 D=128, Xeon", "smooth dense"),
    "PRISM's probabilities, 10⁵ classes, without gradients (Xeon)": ("log P_clean, B=256 C=1e5 D=128, Xeon", "vmf"),
}
# Steps of bench_small.py: 128 samples, 200 classes, D=64.
SMALL = {
    "Proxy-Anchor": ("proxy-anchor, B=128 C=2e2 D=64", "proxy-anchor"),
    "softmax": ("normalized-softmax, B=128 C=2e2 D=64", "normalized-softmax"),
    "CosFace": ("cosface, B=128 C=2e2 D=64", "cosface"),
    "ArcFace": ("arcface, B=128 C=2e2 D=64", "arcface"),
    "Proxy-NCA": ("proxy-nca, B=128 C=2e2 D=64", "proxy-nca"),
    "SoftTriple, 10 centres a class": ("soft-triple, B=128 C=2e3 D=64", "soft-triple"),
    "multi-similarity": ("pairs, multi-similarity, B=128 D=64", "multi-similarity"),
    "contrastive": ("pairs, euclidean-contrastive, B=128 D=64", "euclidean-contrastive"),
    "SupCon": ("pairs, supcon, B=128 D=64", "supcon"),
    "NT-Xent": ("pairs, nt-xent, B=128 D=64", "nt-xent"),
    "InfoNCE of two towers": ("pairs, info-nce, B=128 D=64 m=1e2", "info-nce"),
}
# Steps that were measured on an older processor, too.
WITHOUT_AVX512 = {title: STEPS[title] for title in (*list(STEPS)[:6], "SupCon, B=4096, D=512")}
WITHOUT_AVX512["Proxy-Anchor, 200 classes, B=128, D=64"] = SMALL["Proxy-Anchor"]
FUNCTIONS = {
    "`similarity`, 256 × 10⁵, D=128, with both gradients": (
        "similarity with both",
        "similarity",
        "PyTorch: normalise, multiply",
    ),
    "`nearest`, 10 of 60,000 for each of 60,000, D=128": (
        "nearest, N",
        "nearest",
        "`CustomKNN` of pytorch-metric-learning",
    ),
    "`otsu_threshold` of 1,024 losses": ("Otsu's cut of 1024", "native", "the paper's loop in NumPy"),
    "`log_bessel_i` of 10⁶ values, D=128, float64": ("log I_v", "log_bessel_i", "`log(scipy.special.ive)`"),
}
MEMORY = {
    "Proxy-Anchor, 10⁵ classes": ("B=256 C=1e5 D=128", "proxy-anchor", "pml/proxy-anchor"),
    "Proxy-NCA, 10⁵ classes": ("B=256 C=1e5 D=128", "proxy-nca", "pml/proxy-nca"),
    "contrastive with a memory of 10⁵": ("memory of pairs, B=256 D=128 m=1e5", "memory", "pml/memory"),
    "InfoNCE of two towers of 65,536": ("memory of pairs, B=65536 D=512 m=7e4", "info-nce", None),
    "multi-similarity, mined, B=1024, D=512": ("memory of pairs, B=1024 D=512", "ms", "pml/ms"),
    "Proxy-Anchor, 10⁶ classes": ("B=256 C=1e6 D=128", "proxy-anchor", None),
}


@cache
def cpu() -> dict[str, Any]:
    """Times and memory of ``bench/results/cpu.json``."""
    content: dict[str, Any] = json.loads(CPU.read_text())
    return content


def seconds(value: float) -> str:
    """Three digits and a unit."""
    unit, scale = next((pair for pair in (("s", 1.0), ("ms", 1e3)) if value * pair[1] >= 1), ("µs", 1e6))
    return f"{value * scale:.3g} {unit}"


def contenders(group: str, what: str) -> tuple[dict[str, Any] | None, dict[str, float]]:
    """Our row of a step, and the seconds of those who compute the same, by name."""
    found = {RIVALS[who]: times().get((group, f"{who}/{what}")) for who in RIVALS}
    return times().get((group, f"robustdml/{what}")), {name: row["median_s"] for name, row in found.items() if row}


def steps(rows: Mapping[str, tuple[str, str]] = STEPS, processor: str = "") -> str:
    """Times of a step beside its matrix products and the fastest of the others; of rows that were measured."""
    lines = []
    for title, (group, what) in rows.items():
        ours, others = contenders(group + processor, what)
        if ours is None:
            continue
        own, name = ours["median_s"], min(others, key=others.__getitem__, default="")
        fastest = [f"{name}, {seconds(others[name])}", f"**{others[name] / own:.1f}×**"] if name else ["", ""]
        theirs = seconds(others[RIVALS["pml"]]) if RIVALS["pml"] in others else ""
        lines.append([title, seconds(own), f"{own / ours['floor_s']:.2f}", theirs, *fastest])
    header = ["loss", "a step", "÷ its products", RIVALS["pml"]]
    return table([*header, "fastest rival measured", "faster by"], lines)


def options() -> str:
    """Steps with options beside those without, measured turn by turn."""
    rows, times_of = [], cpu()["times"]
    ratios = {(row["group"], row["contender"]): f"{row['median_s'] / row['floor_s']:.2f}" for row in times_of}
    for row in times_of:
        key = row["group"], row["contender"]
        if row["group"].startswith("options, ") and not row["group"].endswith(ZEN):
            loss, _, given = row["contender"].removeprefix("robustdml/").partition(" ")
            name = {"arcface": "ArcFace", "cosface": "CosFace"}[loss]
            with_options = {"own": '`"own"`', "margins": "`margins=`", "own margins": "both"}[given]
            classes = f"{float(row['group'].split()[2].removeprefix('C=')):,.0f}"
            times = [seconds(row["floor_s"]), seconds(row["median_s"]), ratios[key], ratios[row["group"] + ZEN, key[1]]]
            rows.append([name, classes, with_options, *times])
    return table(["loss", "classes", "with", "a step without", "a step", "÷ without", "÷ without, Zen 4"], rows)


def functions() -> str:
    """Times of single operations beside others' implementations."""
    rows = []
    for title, (group, contender, other) in FUNCTIONS.items():
        found = [row for row in cpu()["times"] if row["group"].startswith(group)]
        ours, theirs = sorted(found, key=lambda row: row["contender"] != f"robustdml/{contender}")
        times = f"{theirs['median_s'] / ours['median_s']:.1f}×"
        rows.append([title, seconds(ours["median_s"]), other, seconds(theirs["median_s"]), times])
    return table(["operation", "here", "other", "other's time", "faster by"], rows)


def memory() -> str:
    """Megabytes of a step beyond inputs and gradients."""
    taken = {(row["group"], row["contender"]): f"{row['beyond_mb']:,.0f} MB" for row in cpu()["memory"]}
    rows = [
        [title, taken[group, f"robustdml/{contender}"], taken[group, peer] if peer else ""]
        for title, (group, contender, peer) in MEMORY.items()
    ]
    return table(["loss", "here", "pytorch-metric-learning"], rows)


def many_cores() -> str:
    """A step with more lanes: calls, the lane with the most chunks or the memory, sums, and meetings of all lanes."""
    content = json.loads((ROOT / "bench" / "results" / "many_cores.json").read_text())
    B, C, D, calls = (content[key] for key in ("B", "C", "D", "calls_s"))
    assumed = content["assumed"]
    rows = []
    for step in content["steps"]:
        computing = step["most_chunks"] * step["rows"] / C * (content["one_s"] - calls)
        moving = 12 * C * D / assumed["bytes_per_s"]
        adding = (step["lanes"] - 1).bit_length() * 12 * B * D / assumed["cache_bytes_per_s"]
        meeting = assumed["meetings"] * assumed["meeting_s"] if step["lanes"] > 2 else 0.0
        whole = calls + max(computing, moving) + adding + meeting
        measured = {1: content["one_s"], 2: content["two_s"]}.get(step["lanes"])
        rows.append(
            [
                str(step["lanes"]),
                f"{step['most_chunks']} × {step['rows']}",
                f"{step['bytes'] / 1e6:.1f} MB",
                seconds(whole),
                seconds(measured) if measured else "",
                f"{content['one_s'] / whole:.1f}×",
                f"{calls / whole:.0%}",
            ]
        )
    header = ["lanes", "most chunks of a lane × rows", "memory of lanes", "predicted", "measured here"]
    return table([*header, "faster than one lane", "share of calls"], rows)


def crowd() -> str:
    """A step, or an operation, alone and beside a busy process."""
    names = {
        "robustdml/proxy-anchor": "Proxy-Anchor",
        "pml/proxy-anchor": "Proxy-Anchor, pytorch-metric-learning",
        "robustdml/similarity": "`similarity`, 256 × 10⁵",
        "robustdml/nearest": "`nearest`, 10 of 20,000 for each of 20,000",
    }
    rows = [
        [
            names[row["contender"]],
            seconds(row["alone_s"]),
            seconds(row["beside_s"]),
            f"{row['beside_s'] / row['alone_s']:.1f}×",
        ]
        for row in cpu()["beside a busy process"]
        if row["contender"] in names
    ]
    return table(["a step, or an operation", "alone", "beside a busy process", "longer by"], rows)


def proxy_bytes() -> str:
    """Peak memory of AdamW within the sweep, by the types of proxies and moments."""
    titles = {
        ("1e+06", "adamw"): "10⁶ × 128, float32",
        ("1e+06", "adamw bfloat16"): "10⁶ × 128, float32, moments bfloat16",
        ("1e+06", "adamw of two bytes"): "10⁶ × 128, bfloat16, moments bfloat16",
        ("1e+07", "adamw of two bytes"): "10⁷ × 128, bfloat16, moments bfloat16",
    }
    found = {(row["group"], row["contender"]): row for row in cpu()["memory"]}
    rows = []
    for (classes, rule), title in titles.items():
        row = found[f"memory of AdamW within the sweep, C={classes} D=128", rule]
        rows.append([title, f"{row['bytes_an_element']:.5g}", f"{row['beyond_mb']:.0f} MB"])
    return table(["`ProxyAdamW`, proxies", "bytes an element, at most", "of it beyond proxies and moments"], rows)


def times() -> dict[tuple[str, str], dict[str, Any]]:
    """Stored times by group and contender."""
    return {(row["group"], row["contender"]): row for row in cpu()["times"]}


def wanted() -> set[tuple[str, str]]:
    """Groups and contenders of the tables of steps."""
    rows = [*STEPS.values(), *SMALL.values()]
    return {(group, f"{who}/{what}") for group, what in rows for who in ("robustdml", *RIVALS)}


def main(path: str, processor: str = "") -> None:
    """Take the times and the memory of a run into the stored ones of a processor."""
    with open(path) as file:
        measured = json.load(file)
    content = json.loads(CPU.read_text())
    commit = measured["commit_info"]["id"][:7]
    for benchmark in measured["benchmarks"]:
        info = benchmark["extra_info"]
        new = {
            "median_s": benchmark.get("stats", {}).get("median"),
            "floor_s": info.get("floor_s"),
            "beyond_mb": info.get("beyond_mb"),
            "bytes_an_element": info.get("bytes_an_element"),
        }
        key = benchmark["group"].removeprefix("memory, ") + processor, info["contender"]
        rows = [row for row in (*content["times"], *content["memory"]) if (row["group"], row["contender"]) == key]
        if not rows and key in wanted() and info.get("floor_s"):
            rows = [{"group": key[0], "contender": key[1], "median_s": None, "floor_s": None}]
            content["times"] += rows
        for row in rows:
            row.update({name: new[name] for name in row if new.get(name) is not None}, commit=commit)
    parts = (f"  {json.dumps(key, ensure_ascii=False)}: {_lines(value)}" for key, value in content.items())
    CPU.write_text("{\n" + ",\n".join(parts) + "\n}\n")
    cpu.cache_clear()


def _lines(value: Any) -> str:
    """A list with a line for each item, so that a change shows as one."""
    if not isinstance(value, list):
        return json.dumps(value, ensure_ascii=False)
    return "[\n" + ",\n".join(f"    {json.dumps(item, ensure_ascii=False)}" for item in value) + "\n  ]"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bench", help="bench.json of python -m robustdml_ops.bench")
    parser.add_argument("--processor", default="", help=f"what ends the group of its rows, as {OLDER!r}")
    given = parser.parse_args()
    main(given.bench, given.processor)
