"""``audit.html``: one file with what was found, to look at and to decide on."""

import base64
import io
import json
from collections import Counter
from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from robustdml.audit import LabelAuditor
from robustdml.audit.auditor import FEWEST_SAMPLES, NO_CLASS, RIGHT
from robustdml.audit_report.findings import Finding
from robustdml.audit_report.page_script import SCRIPT, STYLE
from robustdml.audit_report.samples import AuditSamples
from robustdml.data.images import MODES, to_square
from robustdml.progress import OnProgress
from robustdml.reports.html import in_browser, policy

THUMBNAIL = 72
# Samples beside a suspect that show what a class looks like.
TYPICAL = 3
# Suspects and groups of duplicates in the page; the rest is in labels.csv.
MOST_SUSPECTS = 5000
MOST_GROUPS = 500
MOST_CONFUSIONS = 200
# Classes in the matrix of those that are confused.
MOST_IN_MATRIX = 40


def render_page(samples: AuditSamples, findings: list[Finding], auditor: LabelAuditor, on_progress: OnProgress) -> str:
    """Lay out the page."""
    typical = _typical(samples.labels, auditor)
    suspects = _suspects(findings, {samples.class_names[label] for label in auditor.small_classes_})
    shared = _shared_duplicates(findings)
    shown = {*suspects, *(row for rows in shared for row in rows)}
    number = {name: label for label, name in enumerate(samples.class_names)}
    named = {number[name] for row in suspects for name in (findings[row].label, findings[row].proposed)}
    shown |= {row for label in named for row in typical[label]}
    pictures = _pictures(samples, sorted(shown), on_progress)
    data = {
        "source": samples.source,
        "classes": samples.class_names,
        "samples": {row: _sample(findings[row]) | pictures.get(row, {}) for row in sorted(shown)},
        "suspects": suspects,
        "typical": {label: rows for label, rows in enumerate(typical) if rows and rows[0] in shown},
        "groups": shared,
    }
    # No end of the script may be in it, whatever classes and files are called.
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c")
    return in_browser(
        f'<!doctype html><html lang="en"><head><meta charset="utf-8">{policy(SCRIPT)}'
        f"<title>Labels of {escape(samples.source)}</title>"
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{STYLE}</style></head><body>'
        f"{_overview(samples, findings, auditor, len(suspects))}"
        f'<script type="application/json" id="data">{text}</script><script>{SCRIPT}</script></body></html>'
    )


def _suspects(findings: list[Finding], small: set[str]) -> list[int]:
    """Rows whose label is not called right: the class with most of them first, within a class the worst first."""
    rows = [
        row
        for row, one in enumerate(findings)
        if one.verdict != RIGHT and not (one.label in small and one.proposed == one.label)
    ]
    rows = sorted(rows, key=lambda row: findings[row].probability)[:MOST_SUSPECTS]
    of_class = Counter(findings[row].label for row in rows)
    return sorted(
        rows, key=lambda row: (-of_class[findings[row].label], findings[row].label, findings[row].probability)
    )


def _typical(labels: NDArray[np.int64], auditor: LabelAuditor) -> list[list[int]]:
    """Of each class the samples whose label is the surest."""
    order = np.lexsort((-auditor.label_quality_, labels))
    starts = np.searchsorted(labels[order], np.arange(len(auditor.classes_)))
    return [order[start : start + TYPICAL][labels[order[start : start + TYPICAL]] == label].tolist()
            for label, start in enumerate(starts)]  # fmt: skip


def _shared_duplicates(findings: list[Finding]) -> list[list[int]]:
    """Groups of near duplicates under different labels."""
    groups: dict[int, list[int]] = {}
    for row, one in enumerate(findings):
        if one.duplicate_group >= 0:
            groups.setdefault(one.duplicate_group, []).append(row)
    mixed = [rows for rows in groups.values() if len({findings[row].label for row in rows}) > 1]
    return [rows[:12] for rows in mixed[:MOST_GROUPS]]


def _sample(one: Finding) -> dict[str, Any]:
    return {
        "name": one.sample,
        "label": one.label,
        "proposed": one.proposed,
        "right": round(one.probability, 3),
        "sure": round(one.proposed_probability, 3),
        "verdict": one.verdict,
    }


def _pictures(samples: AuditSamples, rows: list[int], on_progress: OnProgress) -> dict[int, dict[str, str]]:
    """Small JPEG files as texts, by the number of the sample; nothing of features."""
    out: dict[int, dict[str, str]] = {}
    if samples.inputs is None or samples.inputs.ndim != 4:
        return out
    for done, row in enumerate(rows):
        on_progress("pictures", done, len(rows))
        pixels = np.asarray(samples.inputs[row]).transpose(1, 2, 0)
        image = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels, MODES[pixels.shape[2]])
        small = to_square(image, THUMBNAIL, pixels.shape[2]).transpose(1, 2, 0)
        file = io.BytesIO()
        Image.fromarray(small[:, :, 0] if small.shape[2] == 1 else small).save(file, "JPEG", quality=75)
        out[row] = {"picture": base64.b64encode(file.getvalue()).decode()}
    return out


def _overview(samples: AuditSamples, findings: list[Finding], auditor: LabelAuditor, shown: int) -> str:
    share, low, high = auditor.wrong_share_
    verdicts = Counter(one.verdict for one in findings)
    said = ", ".join(f"{count:,} {escape(verdict)}" for verdict, count in verdicts.most_common())
    left_out = samples.left_out
    more = f" … and {len(left_out) - 20:,} more" if len(left_out) > 20 else ""
    pairs = Counter((one.label, one.proposed) for one in findings if one.label != one.proposed)
    confused = [(given, proposed, str(count)) for (given, proposed), count in pairs.most_common(MOST_CONFUSIONS)]
    small = [(samples.class_names[label],) for label in auditor.small_classes_]
    cells = [
        f"<h1>Labels of {escape(samples.source)}</h1>",
        f'<p class="finding">Of {len(findings):,} labels of {len(samples.class_names):,} classes about '
        f"<b>{share:.1%}</b> are wrong (95 % interval: {low:.1%} to {high:.1%}). Verdicts: {said}.</p>",
        f"<p>{len(left_out):,} could not be judged: {escape('; '.join(left_out[:20]))}{more}.</p>" if left_out else "",
        f"<h2>Suspects</h2><p>{shown:,} labels that are not called right, class by class, worst first. Keys: "
        "<kbd>j</kbd> <kbd>k</kbd> next and previous, <kbd>n</kbd> <kbd>p</kbd> page, <kbd>a</kbd> accept the "
        "proposal, <kbd>r</kbd> refuse it, <kbd>u</kbd> undo. Decisions stay in this browser until downloaded.</p>"
        '<div id="bar"></div><div id="list"></div>',
        "<h2>Near duplicates under different labels</h2><div id='groups'></div>",
        _per_class(samples, findings, auditor),
        f"<h2>Which classes are confused</h2>{render_matrix(findings)}",
        _table("Confused classes, pair by pair", ("given", "proposed", "samples"), confused),
        _table(f"Classes of fewer than {FEWEST_SAMPLES} samples, not judged", ("class",), small) if small else "",
        "<h2>What cannot be seen</h2><p>A class of which most labels are wrong in the same way looks like a class; two "
        "names for one thing look like labels that are mixed up at random, and both names are then in doubt.</p>",
    ]
    return "".join(cells)


def _per_class(samples: AuditSamples, findings: list[Finding], auditor: LabelAuditor) -> str:
    shares, strangers = auditor.class_wrong_share_, Counter(one.label for one in findings if one.verdict == NO_CLASS)
    sizes = np.bincount(samples.labels, minlength=len(samples.class_names))
    rows = [
        (name, f"{sizes[label]:,}", f"{shares[label, 0]:.1%}", f"{shares[label, 1]:.1%} – {shares[label, 2]:.1%}",
         str(strangers[name]))
        for label, name in sorted(enumerate(samples.class_names), key=lambda one: -shares[one[0], 0])
    ]  # fmt: skip
    return _table("Classes, worst first", ("class", "samples", "wrong", "95 % interval", "belong to no class"), rows)


def confused_classes(pairs: Counter[tuple[str, str]], most: int = MOST_IN_MATRIX) -> list[str]:
    """Choose classes for a matrix, confused ones beside each other."""
    # In both directions two classes are one pair.
    either: Counter[tuple[str, str]] = Counter()
    for (given, proposed), count in pairs.items():
        either[(proposed, given) if (proposed, given) in either else (given, proposed)] += count
    groups: list[list[str]] = []
    chosen = 0
    for pair, _ in either.most_common():
        new = [name for name in pair if not any(name in group for group in groups)]
        if chosen + len(new) > most:
            continue
        chosen += len(new)
        touched = [group for group in groups if set(pair) & set(group)]
        joined = [name for group in touched for name in group] + new
        place = groups.index(touched[0]) if touched else len(groups)
        groups = [group for group in groups if group not in touched]
        groups.insert(place, joined)
    return [name for group in groups for name in group]


def render_matrix(findings: list[Finding]) -> str:
    """Draw the matrix: rows are classes as given, columns as proposed, the darker the larger the share of the row."""
    pairs = Counter((one.label, one.proposed) for one in findings)
    confused = Counter({pair: count for pair, count in pairs.items() if pair[0] != pair[1]})
    names = confused_classes(confused)
    if not names:
        return ""
    sizes = Counter(one.label for one in findings)
    head = "".join(f"<th><span>{escape(name)}</span></th>" for name in names)
    rows = "".join(
        f"<tr><th>{escape(given)}</th>{''.join(_cell(pairs, sizes, given, name) for name in names)}</tr>"
        for given in names
    )
    shown = sum(count for pair, count in confused.items() if set(pair) <= set(names))
    return (
        f"<p>The {len(names):,} classes that are most confused, {shown:,} of {sum(confused.values()):,} proposals of "
        "another class. Rows: the label given; columns: the class proposed; on the diagonal what keeps its label.</p>"
        f'<div class="wide"><table class="matrix"><tr><td></td>{head}</tr>{rows}</table></div>'
    )


def _cell(pairs: Counter[tuple[str, str]], sizes: Counter[str], given: str, proposed: str) -> str:
    count = pairs[given, proposed]
    if given == proposed:
        return f'<td class="own">{count:,}</td>'
    if not count:
        return "<td></td>"
    # No share of a small class is so light that it is not seen.
    strength = 0.15 + 0.85 * count / sizes[given]
    title = escape(f"{given} given, {proposed} proposed: {count:,} of {sizes[given]:,}")
    return f'<td style="background:rgba(213,94,0,{strength:.2f})" title="{title}">{count:,}</td>'


def _table(title: str, head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    def line(cells: tuple[str, ...], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>"

    body = "".join(line(row, "td") for row in rows)
    table = f"<table>{line(head, 'th')}{body}</table>"
    return f"<h2>{escape(title)}</h2><details open><summary>{len(rows):,}</summary>{table}</details>"
