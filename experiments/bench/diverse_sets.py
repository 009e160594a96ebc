"""Wrong labels found among diverse classes, by the auditor, by cleanlab and by neighbours.

    python -m experiments.bench.diverse_sets --part choosing --out out/diverse
    python -m experiments.bench.diverse_sets --seeds 3 --out out/diverse --store experiments/results/audit-diverse.json

Settings are chosen on the choosing half. Every outcome is a line of OUT/outcomes.jsonl; the same command goes on.

Icons come from the fonts of ``pip install --no-deps qtawesome``: a class is a meaning, such as *bell*, a sample its
drawing in one font and style. Classes in groups put three letters of Glyphs, or a printed and a written digit, under
one label. Texts are docstrings by module, and names of countries by language in babel. Drawn classes have several
clusters of unequal size. Of noise no class can be told. Needs ``pip install cleanlab`` as well.
"""

import argparse
import json
from functools import partial
from pathlib import Path
from statistics import fmean
from zlib import crc32

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer

from experiments.bench.audit import FORM, NOISES, run
from experiments.bench.audit_sets import CHOOSING, REPORT, AuditSet, Samples, digits, drawn, letters, numbered, texts
from experiments.bench.audit_tools import LEARNT, OURS, VOTE
from experiments.data.packages import package_file
from robustdml.config import TrainingConfig
from robustdml.data import RetrievalData, Split
from robustdml.networks.preparation import prepare

SIDE, GREY, LARGEST, FONTS, MOST_ICONS = 64, 16, 14, 3, 1600
# Endings of names that tell the style of a drawing.
STYLES = {"outline", "o", "fill", "line", "light", "thin", "bold", "alt", "variant", "regular", "solid"}
ICONS, GROUPS, TEXTS, CLUSTERS, NOTHING = "icons", "groups", "diverse texts", "clusters", "no classes"


def icon_drawings(half: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Drawings (N, SIDE, SIDE) of half of the meanings that three fonts share, and the meanings' numbers."""
    folder = package_file("icons", "qtawesome", "qtawesome", "__init__.py").parent / "fonts"
    found: dict[str, list[tuple[Path, int]]] = {}
    for charmap in sorted(folder.glob("*charmap*.json")):
        font = folder / charmap.name.replace("-charmap", "").replace(".json", ".ttf")
        for name, code in json.loads(charmap.read_text()).items():
            words = name.split("-")
            while len(words) > 1 and words[-1] in STYLES:
                words.pop()
            found.setdefault("-".join(words), []).append((font, int(code, 16)))
    images, labels = [], []
    for name, drawings in sorted(found.items()):
        if len({font.name[:6] for font, _ in drawings}) < FONTS or crc32(name.encode()) % 2 != half:
            continue
        order = np.random.default_rng(crc32(name.encode())).permutation(len(drawings))
        kept = dict.fromkeys(_icon(*drawings[place]) for place in order)
        images += list(kept)[:LARGEST]
        labels += [name] * min(len(kept), LARGEST)
    pixels = np.stack([np.frombuffer(one, np.uint8).reshape(SIDE, SIDE) for one in images])
    return pixels, numbered(labels)


def _icon(font: Path, code: int) -> bytes:
    path = font if font.exists() else next(font.parent.glob(font.name.split("-webfont")[0] + "*.ttf"))
    image = Image.new("L", (SIDE, SIDE))
    typeface = ImageFont.truetype(str(path), SIDE - 16)
    ImageDraw.Draw(image).text((SIDE / 2, SIDE / 2), chr(code), fill=255, font=typeface, anchor="mm")
    return image.tobytes()


def icons(half: int) -> Samples:
    """Icons in grey, GREY pixels wide."""
    pixels, labels = icon_drawings(half)
    small = torch.nn.functional.adaptive_avg_pool2d(torch.from_numpy(pixels)[:, None].float(), GREY)
    return small.flatten(1).numpy(), labels


def icons_seen(half: int) -> Samples:
    """Icons as the backbone for photographs sees them."""
    pixels, labels = icon_drawings(half)
    split = Split(np.repeat(255 - pixels[:, None], 3, 1), labels, tuple(map(str, range(int(labels.max()) + 1))))
    config = TrainingConfig(backbone="efficientnet-lite0")
    seen = prepare(config, RetrievalData(f"icons-{half}", split, split.subset(np.arange(4))), torch.device("cpu"))
    return np.asarray(seen.data.train.inputs, np.float32), labels


def grouped(part: str, classes: int, size: int) -> Samples:
    """Letters of Glyphs, three that have nothing in common under each label."""
    features, labels = letters(part, classes, size)
    group = np.random.default_rng(0).permutation(int(labels.max()) + 1) // 3
    return features, numbered(group[labels].tolist())


def pairs_of_digits(seed: int) -> Samples:
    """Handwritten digits, two of them under each label, at random."""
    features, labels = digits()
    return features, np.random.default_rng(seed).permutation(10)[labels] // 2


def languages() -> Samples:
    """Names of countries by language: n-grams of their letters, and of these the principal directions."""
    from babel import Locale

    names = [(str(text), code) for code in LANGUAGES for text in list(Locale(code).territories.values())[:30]]
    weights = TfidfVectorizer(analyzer="char_wb", ngram_range=(1, 3), min_df=2, sublinear_tf=True)
    found = TruncatedSVD(64, random_state=0).fit_transform(weights.fit_transform([name for name, _ in names]))
    return found.astype(np.float32), numbered([code for _, code in names])


LANGUAGES = (
    "de", "nl", "sv", "da", "nb", "es", "pt", "it", "fr", "ca",
    "ro", "pl", "cs", "sk", "hr", "fi", "et", "hu", "tr", "id",
)  # fmt: skip


def unequal_clusters(seed: int, classes: int, clusters: int, spread: float) -> Samples:
    """Classes of 3 to 40 samples, in several clusters of unequal size."""
    random = np.random.default_rng(seed)
    labels = np.repeat(np.arange(classes), np.exp(random.uniform(np.log(3), np.log(40), classes)).astype(int))
    share = random.dirichlet(np.full(clusters, 0.7), classes)
    place = (random.random((len(labels), 1)) > share.cumsum(1)[labels]).sum(1).clip(max=clusters - 1)
    means = random.normal(size=(classes, clusters, 24))[labels, place]
    return (means + spread * random.normal(size=means.shape)).astype(np.float32), labels


def nothing(seed: int, classes: int) -> Samples:
    random = np.random.default_rng(seed)
    labels = np.sort(random.integers(0, classes, 600))
    return random.normal(size=(600, 24)).astype(np.float32), labels


SETS = {
    "icons-a": AuditSet(ICONS, CHOOSING, partial(icons, 0), MOST_ICONS),
    "icons-b": AuditSet(ICONS, REPORT, partial(icons, 1), MOST_ICONS),
    "icons-seen-a": AuditSet(ICONS, CHOOSING, partial(icons_seen, 0), MOST_ICONS),
    "icons-seen-b": AuditSet(ICONS, REPORT, partial(icons_seen, 1), MOST_ICONS),
    "letters-in-threes": AuditSet(GROUPS, CHOOSING, partial(grouped, "train", 120, 8)),
    "letters-in-threes-2": AuditSet(GROUPS, REPORT, partial(grouped, "test", 240, 4)),
    "digits-in-pairs": AuditSet(GROUPS, REPORT, partial(pairs_of_digits, 0)),
    "torch-texts": AuditSet(TEXTS, CHOOSING, partial(texts, "torch", 1)),
    "rich-texts": AuditSet(TEXTS, CHOOSING, partial(texts, "rich", 1)),
    "sympy-texts": AuditSet(TEXTS, REPORT, partial(texts, "sympy", 1)),
    "languages": AuditSet(TEXTS, REPORT, languages),
    "drawn-clusters": AuditSet(CLUSTERS, CHOOSING, partial(unequal_clusters, 1, 50, 4, 0.7)),
    "drawn-clusters-close": AuditSet(CLUSTERS, CHOOSING, partial(unequal_clusters, 2, 50, 3, 1.1)),
    "drawn-clusters-2": AuditSet(CLUSTERS, REPORT, partial(unequal_clusters, 3, 70, 6, 0.6)),
    "drawn-clusters-large": AuditSet(CLUSTERS, REPORT, partial(drawn, 11, np.full(20, 40), 16, 0.8, 0.0, 5)),
    "noise": AuditSet(NOTHING, CHOOSING, partial(nothing, 1, 20)),
    "noise-2": AuditSet(NOTHING, REPORT, partial(nothing, 2, 60)),
}

# A rival's form that is better on texts than `FORM`.
SECOND = "cleanlab, logistic regression, prune_by_noise_rate"
RIVALS = (FORM, SECOND, VOTE)
ALL = "all but no classes"
# Rate of wrong labels from which on the precision of the verdict counts, that precision, the width of an interval that
# tells nothing, and an average precision that is far below a rival's.
ENOUGH, PRECISE, UNKNOWN, FAR_BELOW = 0.1, 0.8, 0.5, 0.03


def summary(outcomes: list[dict]) -> dict[str, dict[str, dict[str, float | int | None]]]:
    """Figures of the auditor and of the command by kind of data, and over all where the features tell something."""
    cells: dict[tuple[str, str], dict[str, list[dict]]] = {}
    for one in outcomes:
        cells.setdefault((one["data"], one["noise"]), {}).setdefault(one["tool"], []).append(one)
    kinds = {key: SETS[key[0]].kind for key in cells}
    out: dict[str, dict[str, dict[str, float | int | None]]] = {}
    for kind in (*dict.fromkeys(kinds.values()), ALL):
        some = {key: cells[key] for key, of in kinds.items() if of == kind or (kind == ALL and of != NOTHING)}
        out[kind] = {tool: figures(some, tool) for tool in (OURS, LEARNT)}
    return out


def figures(cells: dict[tuple[str, str], dict[str, list[dict]]], tool: str) -> dict[str, float | int | None]:
    """Figures of a tool over data sets and noises, means over the seeds in each."""
    noisy = [of for (_, noise), of in cells.items() if noise != "none"]
    clean = [fmean(one["called wrong"] for one in of[tool]) for (_, noise), of in cells.items() if noise == "none"]
    precision = [[fmean(one["ap"] for one in of[name]) for name in (tool, *RIVALS)] for of in noisy]
    ahead = [ours - max(theirs) for ours, *theirs in precision]
    calling = [of[tool] for of in noisy if of[tool][0]["rate"] >= ENOUGH and any(one["called"] for one in of[tool])]
    precise = [
        # Whole labels: 20 of 25 are no less than `PRECISE`.
        sum(round(one["found"] * one["rate"] * one["samples"]) for one in of) / sum(one["called"] for one in of)
        for of in calling
    ]
    every = [one for of in cells.values() for one in of[tool]]
    told = [one for one in every if one["share"][2] - one["share"][1] <= UNKNOWN]
    return {
        "cells": len(noisy),
        "ap": fmean(ours for ours, *_ in precision),
        **{name: fmean(column) for name, column in zip(RIVALS, list(zip(*precision, strict=True))[1:], strict=True)},
        "at or above": sum(value >= 0 for value in ahead),
        "far below": sum(value < -FAR_BELOW for value in ahead),
        "furthest below": min(ahead),
        "calling": len(calling),
        "precise": sum(value >= PRECISE for value in precise),
        "least precision": min(precise, default=None),
        "found": fmean(one["found"] for of in noisy for one in of[tool]),
        "called wrong, clean": max(clean) if clean else None,
        "told": len(told) / len(every),
        "holds": fmean(one["share"][1] <= one["rate"] <= one["share"][2] for one in told) if told else None,
        "seconds": fmean(one["seconds"] for one in every),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--part", choices=(CHOOSING, REPORT), default=REPORT)
    parser.add_argument("--data", nargs="+", choices=SETS, help="only these of the part")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--store", type=Path, help="the result as .json")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    names = given.data or [name for name, one in SETS.items() if one.part == given.part]
    tools = [OURS, LEARNT, *RIVALS]
    results = summary(run(names, tools, NOISES, range(given.seeds), given.out / "outcomes.jsonl", SETS))
    for kind, of_tools in results.items():
        for tool, found in of_tools.items():
            print(kind, tool, {key: value if value is None else round(value, 3) for key, value in found.items()})
    if given.store:
        command = f"python -m experiments.bench.diverse_sets --part {given.part} --seeds {given.seeds}"
        given.store.write_text(json.dumps({"command": command, "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
