"""The findings of an audit, ``labels.csv``, and the decisions of a person on them, ``decisions.csv``."""

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

import numpy as np

from robustdml.arrays import Floats, Ints
from robustdml.audit import VERDICTS, LabelAuditor
from robustdml.audit.auditor import FEWEST_SAMPLES, NOT_SURE, RIGHT, WRONG
from robustdml.config import CONFIDENCE, CORRECT, USES
from robustdml.data.dataset import Samples
from robustdml.data.parts import PARTS
from robustdml.errors import UnknownNameError, UsageError, few
from robustdml.reports.html import in_browser
from robustdml.tables import read_table, write_csv

# Width of the interval of the rate of wrong labels from which on it is not told.
UNKNOWN = 0.5


@dataclass(frozen=True)
class Finding:
    """Verdict, scores and proposal for one sample."""

    sample: str  # Its path, or its place in the file
    label: str  # As it was given
    probability: float  # That the label is right
    proposed: str  # The likeliest class, which may be the label
    proposed_probability: float  # Of that
    verdict: str  # One of `VERDICTS`
    duplicate_group: int  # −1 without duplicates
    part: str = ""  # ``train`` or ``test`` where the data has such parts
    half: int = 0  # Where the class of the label may be two, 1 or 2, else 0
    rank: int = 0  # 1 for the label that is likeliest to be wrong


COLUMNS = tuple(field.name for field in fields(Finding))


def findings_of(samples: Samples, auditor: LabelAuditor, halves: Ints) -> list[Finding]:
    """Collect the auditor's findings."""
    classes = samples.class_names
    columns = (
        samples.names(),
        samples.labels_by_name(),
        auditor.label_quality_.tolist(),
        [classes[label] for label in auditor.proposed_labels_],
        auditor.proposal_probability_.tolist(),
        auditor.verdicts_.tolist(),
        auditor.duplicate_groups_.tolist(),
        samples.parts or [""] * len(halves),
        halves.tolist(),
        ranks(auditor.label_quality_),
    )
    return [Finding(*values) for values in zip(*columns, strict=True)]


def ranks(quality: Floats) -> list[int]:
    """Places of the samples, the label that is least likely to be right first."""
    places = np.empty(len(quality), dtype=np.int64)
    places[np.argsort(quality, kind="stable")] = np.arange(1, len(quality) + 1)
    return [int(place) for place in places]


def cannot_tell(auditor: LabelAuditor) -> bool:
    """Whether the interval of the rate is too wide to report the rate."""
    _, low, high = auditor.wrong_share_
    return bool(high - low > UNKNOWN)


def estimated_share(auditor: LabelAuditor) -> str:
    """The rate of wrong labels with its interval, as a text; that nothing can be told where no class is judged."""
    if len(auditor.small_classes_) == len(auditor.classes_):
        return f"nothing can be told, as no class has {FEWEST_SAMPLES} samples"
    if cannot_tell(auditor):
        return "cannot tell, as the features do not tell the classes apart"
    share, low, high = auditor.wrong_share_
    return f"{share:.1%} ({low:.1%} to {high:.1%})"


def write_findings(path: Path, findings: list[Finding]) -> None:
    """Write ``labels.csv``."""
    rows: list[Sequence[object]] = [COLUMNS]
    for one in findings:
        # In full: rounded, the worst labels would lose their order.
        right, sure = repr(one.probability), repr(one.proposed_probability)
        group = "" if one.duplicate_group < 0 else one.duplicate_group
        scores = (right, one.proposed, sure, one.verdict, group, one.part, one.half or "", one.rank or "")
        rows.append((one.sample, one.label, *scores))
    write_csv(path, rows)


def read_findings(path: Path) -> list[Finding]:
    """Read ``labels.csv`` back; a person may have changed it."""
    columns, rows = read_table(path, "labels.csv", COLUMNS)
    missing = [column for column in COLUMNS if column not in columns]
    if missing:
        there = f"no column {missing[0]!r} among {few(columns) or 'none'}"
        raise UsageError(f"{path}: {there}; expected a labels.csv of this version's robustdml audit")
    return [_finding(path, line, row) for line, row in rows]


def _finding(path: Path, line: int, row: dict[str, str]) -> Finding:
    if row["verdict"] not in VERDICTS:
        raise UsageError(f"{path}, line {line}: verdict {row['verdict']!r}; expected one of {', '.join(VERDICTS)}")
    if row["part"] not in ("", *PARTS):
        raise UsageError(f"{path}, line {line}: part {row['part']!r}; expected {' or '.join(PARTS)}, or nothing")
    try:
        # Spreadsheets of some countries write a decimal comma.
        right, proposed = (float(row[key].replace(",", ".")) for key in ("probability", "proposed_probability"))
        group, half, rank = (
            int(row[key] or other) for key, other in (("duplicate_group", -1), ("half", 0), ("rank", 0))
        )
    except (TypeError, ValueError) as error:
        raise UsageError(f"{path}, line {line}: {error}") from error
    sample, label, verdict, part = (row[key] for key in ("sample", "label", "verdict", "part"))
    return Finding(sample, label, right, row["proposed"], proposed, verdict, group, part, half, rank)


DECISION_COLUMNS = ("sample", "class", "decision", "label")
# Of a sample: its label stays, it gets the one in the file, or it is left out: because its label is wrong (it belongs
# to no class, to one that nobody named, or is of no use), or because it is a copy, which says nothing of its label.
KEEP, RELABEL, NO_CLASS, WRONG_LABEL, DROP, COPY = "right", "relabel", "no class", "wrong", "drop", "copy"
SAMPLE_DECISIONS = (KEEP, RELABEL, NO_CLASS, WRONG_LABEL, DROP, COPY)
# Of a class: it joins the one in the file, or its second half becomes a class.
MERGE, SPLIT = "merge", "split"


@dataclass(frozen=True)
class Decisions:
    """Decisions on samples and classes."""

    samples: dict[str, tuple[str, str]] = field(default_factory=dict)  # Decision and label of a sample, by its name
    joined: dict[str, str] = field(default_factory=dict)  # A class and the one that it joins
    split: set[str] = field(default_factory=set)

    def says(self, sample: str, label: str) -> float:
        """1 for a label that was called right, 0 for a wrong one; NaN where that is open, as of a copy."""
        decision, other = self.samples.get(sample, ("", ""))
        wrong = dict.fromkeys((NO_CLASS, WRONG_LABEL, DROP), 0.0)
        return ({KEEP: 1.0, RELABEL: float(other == label)} | wrong).get(decision, math.nan)

    def joins(self, name: str) -> str:
        """The class that a class has become."""
        while name in self.joined:
            name = self.joined[name]
        return name


def clean_labels(
    findings: list[Finding], use: str, confidence: float = CONFIDENCE, decisions: Decisions | None = None
) -> dict[int, Finding]:
    """Choose the samples that stay, by their rows in `findings`, and their new labels."""
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


def read_decisions(paths: Sequence[Path], names: Iterable[str], labels: Iterable[str]) -> Decisions:
    """Read ``decisions.csv`` files for samples with these names and labels; where files differ the last one wins."""
    samples, classes = _as_shown(names), _as_shown(labels)
    out = Decisions()
    for path in paths:
        columns, rows = read_table(path, "decisions.csv")
        if not set(DECISION_COLUMNS) <= set(columns):
            expected = f"expected the columns {', '.join(DECISION_COLUMNS)}, as audit.html downloads them"
            raise UsageError(f"{path}: {expected}; found {few(columns) or 'none'}")
        for line, row in rows:
            _take(f"{path}, line {line}", row, samples, classes, out)
    return out


Shown = dict[str, list[str]]  # The names that a browser shows as one


def _take(line: str, row: dict[str, str], samples: Shown, classes: Shown, out: Decisions) -> None:
    """Take a line of the file into the decisions."""
    sample, name, decision, label = (row[column] for column in DECISION_COLUMNS)
    of_class = bool(name)
    allowed = (MERGE, SPLIT) if of_class else SAMPLE_DECISIONS
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
    elif out.samples.get(meant, ("", ""))[0] not in (DROP, COPY):
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
