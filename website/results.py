"""Tables of the documentation, made from stored results: ``bench/results`` and ``experiments/results``.

A page asks for one by a comment, ``<!-- table: NAME -->``, which the site's build replaces. README cannot: it holds the
text of its table, and a test compares. ``python -m website.results BENCH.json`` takes new times into the stored ones.
"""

import argparse
import json
import re
from collections.abc import Callable, Iterable
from functools import cache
from statistics import fmean
from typing import Any

from website.repository import ROOT

MARKER = re.compile(r"^<!-- table: ([\w-]+) -->$", re.MULTILINE)
CPU = ROOT / "bench" / "results" / "cpu.json"
SUPERSCRIPTS = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
BASELINE = "Untouched features"
# What tables call a row of bench/, where B is 256 unless the row says otherwise: its group, contender and peer.
STEPS = {
    "Proxy-Anchor, 10⁵ classes": ("proxy-anchor, B=256 C=1e5 D=128", "proxy-anchor", "pml/proxy-anchor"),
    "Proxy-NCA, 10⁵ classes": ("class LSE, B=256 C=1e5 D=128", "class-lse", "pml/proxy-nca"),
    "contrastive with a memory of 10⁵": ("pairs, memory, B=256 D=128 m=1e5", "memory", "pml/memory"),
    "multi-similarity, mined, half of the labels wrong, B=1024, D=512": (
        "pairs, ms, B=1024 D=512, 50 % wrong labels",
        "ms",
        "pml/ms",
    ),
    "multi-similarity, mined, B=1024, D=512": ("pairs, ms, B=1024 D=512", "ms", "pml/ms"),
    "contrastive, B=1024, D=512": ("pairs, contrastive, B=1024 D=512", "contrastive", "pml/contrastive"),
    "Proxy-Anchor, 200 classes, B=128, D=64": ("proxy-anchor, B=128 C=2e2 D=64", "proxy-anchor", "pml/proxy-anchor"),
    "Proxy-Anchor, 2·10⁵ classes, D=512": ("proxy-anchor, B=256 C=2e5 D=512", "proxy-anchor", None),
    "Proxy-Anchor, 10⁶ classes": ("proxy-anchor, B=256 C=1e6 D=128", "proxy-anchor", None),
}
README_STEPS = list(STEPS)[:4]
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
    "Proxy-NCA, 10⁵ classes": ("B=256 C=1e5 D=128", "class-lse", "pml/proxy-nca"),
    "contrastive with a memory of 10⁵": ("memory of pairs, B=256 D=128 m=1e5", "memory", "pml/memory"),
    "multi-similarity, mined, B=1024, D=512": ("memory of pairs, B=1024 D=512", "ms", "pml/ms"),
    "Proxy-Anchor, 10⁶ classes": ("B=256 C=1e6 D=128", "proxy-anchor", None),
}


def insert(text: str) -> str:
    """Put each table in the place of its comment."""
    return MARKER.sub(lambda found: TABLES[found[1]](), text)


@cache
def stored(study: str) -> dict[str, Any]:
    """A study of ``experiments/results``; its README says what a file holds."""
    content: dict[str, Any] = json.loads((ROOT / "experiments" / "results" / f"{study}.json").read_text())
    return content


@cache
def cpu() -> dict[str, Any]:
    """Times and memory of ``bench/results/cpu.json``."""
    content: dict[str, Any] = json.loads(CPU.read_text())
    return content


def table(titles: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Lay out a table in Markdown."""
    titles = list(titles)
    return "\n".join(f"| {' | '.join(row)} |" for row in (titles, ["---"] * len(titles), *rows))


def seconds(value: float) -> str:
    """Three digits and a unit."""
    unit, scale = next((pair for pair in (("s", 1.0), ("ms", 1e3)) if value * pair[1] >= 1), ("µs", 1e6))
    return f"{value * scale:.3g} {unit}"


def mean(cell: Any) -> float:
    """The mean of a cell, which may have a standard error."""
    return float(cell[0] if isinstance(cell, list) else cell)


def score(cell: Any) -> str:
    """Three decimals, and the standard error where there is one."""
    if cell is None:
        return "–"
    return f"{cell[0]:.3f} ± {cell[1]:.3f}" if isinstance(cell, list) else f"{cell:.3f}"


def steps(titles: Iterable[str] = STEPS) -> str:
    """Times of a step beside its matrix products and pytorch-metric-learning."""
    rows = []
    for title in titles:
        group, contender, peer = STEPS[title]
        ours, theirs = _time(group, f"robustdml/{contender}"), _time(group, peer) if peer else None
        times = f"**{theirs['median_s'] / ours['median_s']:.1f}×**" if theirs else ""
        their_time = seconds(theirs["median_s"]) if theirs else ""
        products = f"{ours['median_s'] / ours['floor_s']:.2f}"
        rows.append([title, seconds(ours["median_s"]), products, their_time, times])
    return table(["loss", "a step", "÷ its products", "pytorch-metric-learning", "faster by"], rows)


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


def predicted() -> str:
    """Steps on a GPU by what they compute and move: between all of it overlapping, and nothing."""
    content = json.loads((ROOT / "bench" / "results" / "predicted.json").read_text())
    rows = []
    for step in content["steps"]:
        shape = f"B={step['B']:,}, C=10{str(len(str(step['C'])) - 1).translate(SUPERSCRIPTS)}, D={step['D']}"
        flops = float(step["products"] * step["B"] * step["C"] * step["D"])
        computing = 1e3 * flops / content["flops_per_s"] / content["share"]
        moving = 1e12 * step["gigabytes"] / content["bytes_per_s"] / content["share"]
        counts = (f"{flops / 1e12:.3g}", f"{step['gigabytes']:.3g}", str(step["launches"]))
        rows.append([step["what"], shape, *counts, f"{max(computing, moving):.2g}–{computing + moving:.2g} ms"])
    return table(["loss", "shape", "TFLOP", "GB", "launches", f"predicted for an {content['card']}"], rows)


def crowd() -> str:
    """A step alone and beside a busy process."""
    names = {"robustdml/proxy-anchor": "Proxy-Anchor", "pml/proxy-anchor": "Proxy-Anchor, pytorch-metric-learning"}
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
    return table(["a step", "alone", "beside a busy process", "longer by"], rows)


def cells(metric: str, method: str) -> dict[tuple[str, str], float]:
    """Means of the suite by data set and noise."""
    found = {}
    for data, results in stored("suite")["results"].items():
        values = zip(results["noises"], results[metric][method], strict=True)
        found |= {(data, noise): mean(value) for noise, value in values if value is not None}
    return found


def below_untouched(metric: str, method: str) -> int:
    """In how many cells of the suite a method ends more than a point below the untouched features."""
    start = cells(metric, BASELINE)
    return sum(value < start[cell] - 0.01 - 1e-9 for cell, value in cells(metric, method).items())


def suite() -> str:
    """Methods of the suite: means, rank, and how often they do harm."""
    ranks = stored("suite")["ranks"]["MAP@R"]
    methods = sorted(ranks, key=lambda method: ranks[method]["rank"][0])
    rows = []
    for method in [BASELINE, *methods]:
        means = [f"{fmean(cells(metric, method).values()):.3f}" for metric in ("Recall@1", "MAP@R")]
        rank, low, high = ranks[method]["rank"] if method in ranks else (0, 0, 0)
        harm = f"{below_untouched('Recall@1', method)}, {below_untouched('MAP@R', method)}"
        rest = ["", ""] if method == BASELINE else [f"{rank:.1f} [{low:.1f}, {high:.1f}]", harm]
        rows.append([method, *means, *rest])
    count = len(cells("MAP@R", BASELINE))
    titles = ["method", "mean Recall@1", "mean MAP@R", "average rank by MAP@R [95 %]"]
    return table([*titles, f"cells of {count} more than a point below the untouched features, Recall@1, MAP@R"], rows)


def robustness() -> str:
    """README's sentence on the suite."""
    means = {m: f"{fmean(cells('MAP@R', m).values()):.3f}" for m in (BASELINE, "Contrastive", "Robust")}
    counts = below_untouched("Recall@1", "Robust"), below_untouched("MAP@R", "Robust"), len(cells("MAP@R", "Robust"))
    return (
        "With none to 70 % of the labels wrong, on fifteen data sets (frozen features, unseen classes, five seeds), "
        f"mean MAP@R is {means[BASELINE]} for the untouched features, {means['Contrastive']} for the contrastive loss "
        f"and **{means['Robust']}** for `robust`, the default method of `robustdml train`, which ends more than a "
        f"point below the untouched features in {counts[0]} of {counts[2]} cases by Recall@1 and in {counts[1]} by "
        "MAP@R."
    )


def by_data() -> str:
    """Each data set of the suite: `robust`, untouched features and the best other method, means over the noises."""
    rows = []
    for data, results in stored("suite")["results"].items():
        scores = {
            method: fmean(mean(v) for v in values if v is not None) for method, values in results["MAP@R"].items()
        }
        other = max((m for m in scores if m not in (BASELINE, "Robust")), key=lambda method: scores[method])
        rows.append(
            [f"`{data}`", *(f"{scores[m]:.3f}" for m in (BASELINE, "Robust")), f"{scores[other]:.3f} ({other})"]
        )
    return table(["MAP@R, mean of the noises", "untouched features", "robust", "best other method"], rows)


def below() -> str:
    """Where `robust` ends more than a point below the untouched features."""
    rows = []
    for metric in ("Recall@1", "MAP@R"):
        start, end = cells(metric, BASELINE), cells(metric, "Robust")
        worse = [cell for cell in end if end[cell] < start[cell] - 0.01 - 1e-9]
        rows += [
            [f"`{data}`", noise, metric, f"{start[data, noise]:.3f}", f"{end[data, noise]:.3f}"]
            for data, noise in worse
        ]
    return table(["data set", "wrong labels", "metric", "untouched features", "robust"], rows)


def study(name: str, data: str, metric: str, *, methods: Iterable[str] | None = None) -> str:
    """A table of one data set of a study, methods by noises."""
    results = stored(name)["results"][data]
    rows = [[m, *map(score, results[metric][m])] for m in methods or results[metric]]
    return table([f"{metric}, `{data}`", *results["noises"]], rows)


def suite_study(data: str) -> str:
    """One data set of the suite, MAP@R."""
    return study("suite", data, "MAP@R")


def finetuned() -> str:
    """Recall@1 and MAP@R where whole networks train."""
    results = stored("finetuned")["results"]
    methods = sorted(results["glyphs"]["Recall@1"], key=lambda m: -mean(results["glyphs"]["Recall@1"][m][0]))
    columns = [(data, metric) for data in results for metric in ("Recall@1", "MAP@R")]
    rows = [[m, *(score(results[data][metric][m][0]) for data, metric in columns)] for m in methods]
    return table(["half of the labels wrong", *(f"`{data}`, {metric}" for data, metric in columns)], rows)


def audit() -> str:
    """The auditor beside other tools on Glyphs, F1 and its own other scores."""
    tools, columns = stored("audit")["tools"], stored("audit")["columns"]
    others = {
        "cleanlab 2.9": [tool for tool in tools if tool.startswith("cleanlab,")],
        "confident learning": [tool for tool in tools if tool.startswith("confident")],
        "Datalab": [tool for tool in tools if "Datalab" in tool],
    }
    ours, at = tools["robustdml audit"], {column: columns.index(column) for column in columns}
    rows = []
    for noise in ours:
        if noise != "none":
            f1 = [max(tools[tool][noise][at["f1"]] for tool in found) for found in others.values()]
            own = [ours[noise][at[column]] for column in ("f1", "precision", "recall", "proposals", "ece")]
            rows.append([f"`{noise}`", *map(score, [own[0], *f1, *own[1:]])])
    titles = [
        "wrong labels",
        "F1",
        *(f"{name}, F1" for name in others),
        "precision",
        "recall",
        "proposals right",
        "ECE",
    ]
    return table(titles, rows)


def audit_training() -> str:
    """Training after an audit."""
    return study("audit-training", "glyphs", "MAP@R")


def audit_digits() -> str:
    """F1 on scikit-learn's digits."""
    content = stored("audit-digits")
    return table(
        ["wrong labels", *content["columns"]], ([name, *map(score, row)] for name, row in content["f1"].items())
    )


def procsim_gain() -> str:
    """ProcSim's gain by how well its detector tells the labels."""
    rows = stored("procsim")["gain"]["rows"]
    return table(rows[0], (row.values() for row in rows))


def claims() -> str:
    """The papers' claims on Glyphs."""
    rows = stored("glyphs")["claims"]
    return table(rows[0], (row.values() for row in rows))


def data_sets() -> str:
    """Sizes of the named data sets, and what their untouched features reach."""
    rows = []
    for data, facts in stored("data")["data"].items():
        parts = [f"{facts[part]['classes']:,} × {facts[part]['samples']:,}" for part in ("training", "test")]
        least, most = facts["of a class"]
        start = [f"{facts[metric]:.3f}" for metric in ("Recall@1", "MAP@R")]
        rows.append([f"`{data}`", facts["kind"], *parts, f"{least}–{most}", f"{facts['features']:,}", *start])
    titles = ["data set", "kind", "training: classes × samples", "test", "a class", "features", "Recall@1", "MAP@R"]
    return table(titles, rows)


def components() -> str:
    """`robust` with parts of it alone or left out, MAP@R with right labels and with half of them wrong."""
    found = stored("robust-components")["results"]
    methods = list(found["digits"]["MAP@R"])
    rows = [[m, *(" / ".join(map(score, found[data]["MAP@R"][m])) for data in found)] for m in methods]
    return table(["MAP@R, right labels / half wrong", *(f"`{data}`" for data in found)], rows)


def printed(key: str) -> str:
    """A table of PRISM's studies, as it was printed."""
    titles, *rows = stored("prism")[key]["table"]
    return table(titles, rows)


def proxy_bytes() -> str:
    """Peak memory of AdamW within the sweep, by the types of proxies and moments."""
    titles = {
        "adamw": "float32",
        "adamw bfloat16": "float32, moments bfloat16",
        "adamw of two bytes": "bfloat16, moments bfloat16",
    }
    found = {row["contender"]: row for row in cpu()["memory"] if row["group"].startswith("memory of AdamW")}
    rows = [
        [title, f"{found[rule]['bytes_an_element']:.2f}", f"{found[rule]['beyond_mb']:.0f} MB"]
        for rule, title in titles.items()
    ]
    return table(
        ["`ProxyAdamW`, 10⁶ × 128, proxies", "bytes an element, at most", "of it beyond proxies and moments"], rows
    )


def proxy_types() -> str:
    """Recall@1 with proxies of each type."""
    rows = []
    for data, losses in stored("bfloat16-proxies")["results"].items():
        for loss, types in losses.items():
            for proxies, found in types.items():
                difference, error = (100 * value for value in found["difference"])
                against = "–" if proxies == "float32" else f"{difference:+.2f} ± {error:.2f}"
                rows.append([f"`{data}`", loss, proxies, score(found["Recall@1"]), against])
    return table(["data set", "loss", "proxies", "Recall@1", "to float32, points"], rows)


TABLES: dict[str, Callable[[], str]] = {
    "steps": steps,
    "functions": functions,
    "memory": memory,
    "predicted": predicted,
    "crowd": crowd,
    "proxy-bytes": proxy_bytes,
    "proxy-types": proxy_types,
    "suite": suite,
    "by-data": by_data,
    "below": below,
    "right-labels": lambda: study("glyphs", "glyphs", "Recall@1", methods=_plain()),
    "pairs": lambda: suite_study("mixture-pairs"),
    "hangul": lambda: suite_study("hangul"),
    "letters": lambda: suite_study("letter-recognition"),
    "finetuned": finetuned,
    "audit": audit,
    "audit-training": audit_training,
    "audit-digits": audit_digits,
    "procsim-gain": procsim_gain,
    "claims": claims,
    "data-sets": data_sets,
    "components": components,
    "prism-cut": lambda: printed("cut"),
    "prism-small-classes": lambda: printed("small classes"),
    "prism-own-copies": lambda: printed("own copies"),
    "prism-thresholds": lambda: printed("thresholds"),
}


def _plain() -> list[str]:
    """Methods of Glyphs without a filter that is told the rate."""
    return [
        method
        for method in stored("glyphs")["results"]["glyphs"]["Recall@1"]
        if " + " not in method and "," not in method
    ]


def _time(group: str, contender: str) -> dict[str, Any]:
    found: dict[str, Any] = next(r for r in cpu()["times"] if (r["group"], r["contender"]) == (group, contender))
    return found


def main(path: str) -> None:
    """Take the times and the memory that a run of the benchmarks wrote into the stored ones."""
    with open(path) as file:
        measured = json.load(file)
    content = json.loads(CPU.read_text())
    for benchmark in measured["benchmarks"]:
        info = benchmark["extra_info"]
        new = {
            "median_s": benchmark.get("stats", {}).get("median"),
            "floor_s": info.get("floor_s"),
            "beyond_mb": info.get("beyond_mb"),
            "bytes_an_element": info.get("bytes_an_element"),
        }
        for row in (*content["times"], *content["memory"]):
            if (row["group"], row["contender"]) == (benchmark["group"].removeprefix("memory, "), info["contender"]):
                row.update(
                    {key: new[key] for key in row if new.get(key) is not None},
                    commit=measured["commit_info"]["id"][:10],
                )
    parts = (f"  {json.dumps(key, ensure_ascii=False)}: {_lines(value)}" for key, value in content.items())
    CPU.write_text("{\n" + ",\n".join(parts) + "\n}\n")


def _lines(value: Any) -> str:
    """A list with a line for each item, so that a change shows as one."""
    if not isinstance(value, list):
        return json.dumps(value, ensure_ascii=False)
    return "[\n" + ",\n".join(f"    {json.dumps(item, ensure_ascii=False)}" for item in value) + "\n  ]"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bench", help="bench.json of python -m robustdml_ops.bench")
    main(parser.parse_args().bench)
