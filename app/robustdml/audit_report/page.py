"""``audit.html``: one file with what was found, to look at and to decide on."""

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch

from robustdml.arrays import Array, Singles
from robustdml.audit import LabelAuditor
from robustdml.audit.auditor import FEWEST_SAMPLES, NO_CLASS, RIGHT
from robustdml.audit_report.findings import COPY, Decisions, Finding, estimated_share
from robustdml.audit_report.outlook import outlook
from robustdml.audit_report.questions import Section, best_first
from robustdml.data.dataset import Samples
from robustdml.data.image_files import shown
from robustdml.errors import OBEYED
from robustdml.networks.models import unit_rows
from robustdml.progress import OnProgress
from robustdml.reports.embedding_map import embedding_map
from robustdml.reports.html import as_text, filled, left_out_line, page, picture, table
from robustdml_ops.ops import nearest

# Sides of a picture in pixels, by how many there are: all of them have at most so many pixels.
SMALLEST, LARGEST, MOST_PIXELS = 72, 224, 10**8
# Samples beside a suspect that show what a class looks like, and the samples most similar to it.
TYPICAL, NEAR = 3, 4
# Suspects and groups of duplicates in the page; the rest is in labels.csv.
MOST_SUSPECTS = 5000
MOST_GROUPS = 500
MOST_CONFUSIONS = 200
MOST_SPREAD = 20


def render_page(
    samples: Samples,
    findings: list[Finding],
    auditor: LabelAuditor,
    features: Singles,
    untouched: Array,
    sections: list[Section],
    decisions: Decisions,
    on_progress: OnProgress,
) -> str:
    """Lay out the page; decisions that the audit has learnt from are shown as made."""
    script = Path(__file__).with_name("page.js").read_text(encoding="utf-8")
    typical = [rows[:TYPICAL].tolist() for rows in best_first(samples.labels, auditor.label_quality_)]
    suspects = _suspects(findings, {samples.class_names[label] for label in auditor.small_classes_})
    near, shared = _most_similar(features, suspects), _shared_duplicates(findings)
    number = {name: label for label, name in enumerate(samples.class_names)}
    named = {number[name] for row in suspects for name in (findings[row].label, findings[row].proposed)}
    sides = [rows for section in sections for question in section.questions for _, rows in question.sides]
    shown = sorted({*suspects, *chain(*shared, *near.values(), *sides, *(typical[label] for label in named))})
    pictures = _pictures(samples, shown, on_progress)
    data = {
        "audit": samples.source,
        # By the browser's key of a suspect, see page.js.
        "decisions": {f"s{name}": decision for name, decision in decisions.samples.items() if decision[0] != COPY},
        "classes": samples.class_names,
        "samples": {row: _sample(findings[row]) | pictures.get(row, {}) for row in shown},
        "suspects": suspects,
        "typical": {label: typical[label] for label in sorted(named)},
        "near": near,
        "groups": shared,
        "sections": [asdict(section) for section in sections],
    }
    # No end of the script may be in it, nor what turns the text beside it, whatever classes and files are called.
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False)
    text = re.sub(f"<|{OBEYED}", lambda found: f"\\u{ord(found[0]):04x}", text)
    scripts = f'<script type="application/json" id="data">{text}</script><script>{script}</script>'
    body = _overview(samples, findings, auditor, (features, untouched), len(suspects)) + scripts
    return page(f"Labels of {samples.source}", body, Path(__file__).with_name("page.css"), script)


def _most_similar(features: Singles, rows: list[int]) -> dict[int, list[int]]:
    """The samples nearest to each of some rows."""
    if not rows:
        return {}
    X = unit_rows(features)
    found = nearest(X[rows], X, min(NEAR + 1, len(X))).indices.tolist()
    return {row: [one for one in like if one != row][:NEAR] for row, like in zip(rows, found, strict=True)}


def _doubted(findings: list[Finding]) -> list[int]:
    """Rows whose label is not called right."""
    return [row for row, one in enumerate(findings) if one.verdict != RIGHT]


def _suspects(findings: list[Finding], small: set[str]) -> list[int]:
    """Rows whose label is not called right: the class with most of them first, within a class the worst first."""
    doubted = [(row, findings[row]) for row in _doubted(findings)]
    doubted = [(row, one) for row, one in doubted if one.label not in small or one.proposed != one.label]
    doubted = sorted(doubted, key=lambda pair: pair[1].rank)[:MOST_SUSPECTS]
    of_class = Counter(one.label for _, one in doubted)
    doubted.sort(key=lambda pair: (-of_class[pair[1].label], pair[1].label, pair[1].rank))
    return [row for row, _ in doubted]


def _shared_duplicates(findings: list[Finding]) -> list[list[int]]:
    """Groups of near duplicates under different labels."""
    groups: dict[int, list[int]] = {}
    for row, one in enumerate(findings):
        if one.duplicate_group >= 0:
            groups.setdefault(one.duplicate_group, []).append(row)
    mixed = [rows for rows in groups.values() if len({findings[row].label for row in rows}) > 1]
    return [rows[:12] for rows in mixed[:MOST_GROUPS]]


def _sample(one: Finding) -> dict[str, Any]:
    said = {"name": one.sample, "label": one.label, "proposed": one.proposed, "verdict": one.verdict}
    scores = {"right": round(one.probability, 3), "sure": round(one.proposed_probability, 3)}
    return said | scores | {"rank": one.rank}


def _pictures(samples: Samples, rows: list[int], on_progress: OnProgress) -> dict[int, dict[str, str]]:
    """Small pictures, by the number of the sample; nothing of features."""
    out: dict[int, dict[str, str]] = {}
    if not samples.is_images:
        return out
    side = int(np.clip((MOST_PIXELS / max(len(rows), 1)) ** 0.5, SMALLEST, LARGEST))
    for done, (row, pixels) in enumerate(zip(rows, shown(samples.inputs, rows, side), strict=True)):
        on_progress("pictures", done, len(rows))
        out[row] = {"picture": "" if pixels is None else picture(pixels)}
    return out


def _overview(
    samples: Samples, findings: list[Finding], auditor: LabelAuditor, seen_by: tuple[Singles, Array], shown: int
) -> str:
    """The figures above the suspects, by learnt features and by those before training."""
    features, untouched = seen_by
    verdicts = Counter(one.verdict for one in findings)
    said = ", ".join(f"{count:,} {as_text(verdict)}" for verdict, count in verdicts.most_common())
    pairs = Counter((one.label, one.proposed) for one in findings if one.label != one.proposed)
    confused = [(given, proposed, str(count)) for (given, proposed), count in pairs.most_common(MOST_CONFUSIONS)]
    small = [(samples.class_names[label],) for label in auditor.small_classes_]
    drawn = embedding_map(features, samples.labels, samples.class_names, _doubted(findings))
    tables = [drawn, _per_class(samples, findings, auditor), _table(*_most_spread(samples, untouched))]
    tables.append(_table("Which classes are confused", ("given", "proposed", "samples"), confused))
    if small:
        tables.append(_table(f"Classes of fewer than {FEWEST_SAMPLES} samples, not judged", ("class",), small))
    return filled(
        Path(__file__).with_name("overview.html"),
        source=as_text(samples.source),
        labels=f"{len(findings):,}",
        classes=f"{len(samples.class_names):,}",
        share=estimated_share(auditor),
        verdicts=said,
        left_out=left_out_line(samples.left_out, samples.notes),
        suspects=f"{shown:,}",
        outlook="".join(f"<p>{as_text(line)}</p>" for line in outlook(findings)),
        tables="".join(tables),
    )


def _per_class(samples: Samples, findings: list[Finding], auditor: LabelAuditor) -> str:
    shares, strangers = auditor.class_wrong_share_, Counter(one.label for one in findings if one.verdict == NO_CLASS)
    sizes = np.bincount(samples.labels, minlength=len(samples.class_names))
    rows = [
        (name, f"{sizes[label]:,}", f"{shares[label, 0]:.1%}", f"{shares[label, 1]:.1%} – {shares[label, 2]:.1%}",
         str(strangers[name]))
        for label, name in sorted(enumerate(samples.class_names), key=lambda one: -shares[one[0], 0])
    ]  # fmt: skip
    return _table("Classes, worst first", ("class", "samples", "wrong", "95 % interval", "belong to no class"), rows)


def _most_spread(samples: Samples, untouched: Array) -> tuple[str, tuple[str, ...], list[tuple[str, ...]]]:
    """The classes whose samples are least like each other: a folder that holds two classes is among them.

    By features before training, which draws the samples of a folder together.
    """
    labels, num_classes = torch.from_numpy(samples.labels), len(samples.class_names)
    X = unit_rows(untouched)
    sizes = torch.bincount(labels, minlength=num_classes)
    length = torch.zeros(num_classes, X.shape[1]).index_add_(0, labels, X).norm(dim=1)
    # Mean cosine of two different samples of a class.
    alike = (length.square() - sizes) / (sizes * (sizes - 1)).clamp(min=1)
    order = [label for label in alike.argsort().tolist() if sizes[label] >= FEWEST_SAMPLES][:MOST_SPREAD]
    rows: list[tuple[str, ...]] = [
        (samples.class_names[label], f"{int(sizes[label]):,}", f"{float(alike[label]):.2f}") for label in order
    ]
    return "Most spread classes", ("class", "samples", "mean cosine of two samples"), rows


def _table(title: str, head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    return f"<h2>{as_text(title)}</h2><details open><summary>{len(rows):,}</summary>{table(head, rows)}</details>"
