"""Decisions of a person, ``decisions.csv`` of ``audit.html``, and the labels that samples have from then on."""

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from robustdml.audit.auditor import NOT_SURE, RIGHT, WRONG
from robustdml.audit_report.findings import Finding
from robustdml.config import CONFIDENCE, CORRECT, USES
from robustdml.errors import UnknownNameError, UsageError, few
from robustdml.plain_files import read_csv
from robustdml.reports.html import in_browser

COLUMNS = ("sample", "class", "decision", "label")
# Of a sample: its label stays, it gets the one in the file, or it is left out, for one of two reasons.
KEEP, RELABEL, NO_CLASS, DROP = "right", "relabel", "no class", "drop"
# Of a class: it joins the one in the file, or its second half becomes a class.
MERGE, SPLIT = "merge", "split"


@dataclass(frozen=True)
class Decisions:
    """Decisions on samples and classes."""

    samples: dict[str, tuple[str, str]] = field(default_factory=dict)  # Decision and label of a sample, by its name
    joined: dict[str, str] = field(default_factory=dict)  # A class and the one that it joins
    split: set[str] = field(default_factory=set)

    def says(self, sample: str, label: str) -> float:
        """1 for a label that was called right, 0 for a wrong one; NaN where that is open, as of a dropped sample."""
        decision, other = self.samples.get(sample, ("", ""))
        return {KEEP: 1.0, RELABEL: float(other == label), NO_CLASS: 0.0}.get(decision, math.nan)

    def joins(self, name: str) -> str:
        """The class that a class has become."""
        while name in self.joined:
            name = self.joined[name]
        return name


def clean_labels(
    findings: list[Finding], use: str, confidence: float = CONFIDENCE, decisions: Decisions | None = None
) -> dict[int, Finding]:
    """Decide what stays, by its row in `findings`, with the label that it has from then on."""
    if use not in USES:
        raise UnknownNameError("use of labels", use, USES)
    if not 0 <= confidence <= 1:
        raise UsageError(f"confidence={confidence}: expected a probability between 0 and 1")
    decided = Decisions() if decisions is None else decisions
    names = {one.label for one in findings}
    numbered = {name: (f"{name} ({number})" for number in itertools.count(2)) for name in decided.split}
    second = {name: next(one for one in names_of if one not in names) for name, names_of in numbered.items()}
    out = {}
    for row, one in enumerate(findings):
        label = _label(one, use, confidence, *decided.samples.get(one.sample, ("", "")))
        if label in decided.split:
            # Of a sample that comes into the class the half is not known.
            label = {1: label, 2: second[label]}.get(one.half if label == one.label else 0)
        if label is not None:
            out[row] = replace(one, label=decided.joins(label))
    return out


def _label(one: Finding, use: str, confidence: float, decision: str, label: str) -> str | None:
    """The label that a sample has from now on; None where it goes."""
    if decision:
        return {KEEP: one.label, RELABEL: label}.get(decision)
    if one.verdict in (RIGHT, NOT_SURE):
        return one.label
    sure = one.verdict == WRONG and one.proposed != one.label and one.proposed_probability >= confidence
    return one.proposed if use == CORRECT and sure else None


def read_decisions(path: Path, names: Iterable[str], labels: Iterable[str]) -> Decisions:
    """Read what was downloaded from ``audit.html``, about samples with these names and labels."""
    samples, classes = _as_shown(names), _as_shown(labels)
    out = Decisions()
    columns, rows = read_csv(path, ".csv file")
    if not set(COLUMNS) <= set(columns):
        raise UsageError(f"{path}: expected the columns {', '.join(COLUMNS)}, as audit.html downloads them")
    for line, row in rows:
        _take(f"{path}, line {line}", row, samples, classes, out)
    return out


Shown = dict[str, list[str]]  # The names that a browser shows as one


def _take(line: str, row: dict[str, str | None], samples: Shown, classes: Shown, out: Decisions) -> None:
    """Take a line of the file into the decisions."""
    sample, name, decision, label = (row[column] or "" for column in COLUMNS)
    of_class = bool(name)
    allowed = (MERGE, SPLIT) if of_class else (KEEP, RELABEL, NO_CLASS, DROP)
    if decision not in allowed:
        raise UnknownNameError(f"{line}: decision", decision, allowed)
    meant = _meant(line, "class" if of_class else "sample", name or sample, classes if of_class else samples)
    target = _meant(line, "class", label, classes) if decision in (MERGE, RELABEL) else ""
    if decision == SPLIT:
        out.split.add(meant)
    elif decision == MERGE:
        first, last = out.joins(meant), out.joins(target)
        if first != last:
            out.joined[first] = last
    # A copy that is left out is left out whatever else is decided of it.
    elif out.samples.get(meant, ("", ""))[0] != DROP:
        out.samples[meant] = decision, target


def _as_shown(names: Iterable[str]) -> Shown:
    known: Shown = {}
    for name in dict.fromkeys(names):
        known.setdefault(in_browser(name), []).append(name)
    return known


def _meant(line: str, what: str, name: str, known: Shown) -> str:
    """The one name that is meant by what a browser wrote."""
    meant = known.get(in_browser(name), [])
    if not meant:
        raise UsageError(f"{line}: {what} {name!r} is not in this audit")
    if len(meant) > 1:
        raise UsageError(f"{line}: {what} {name!r} may be any of {few(meant)}: rename these files")
    return meant[0]
