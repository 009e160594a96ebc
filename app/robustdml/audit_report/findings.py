"""The findings of an audit, their file ``labels.csv``, and what is done about doubted labels."""

import csv
import hashlib
import io
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from robustdml.audit import VERDICTS, LabelAuditor
from robustdml.audit.auditor import NO_CLASS, NOT_SURE, RIGHT, WRONG
from robustdml.cache import NAMES, write_text
from robustdml.config import CONFIDENCE, CORRECT, USES
from robustdml.data.images import few
from robustdml.errors import UnknownNameError, UsageError
from robustdml.reports.html import in_browser

COLUMNS = ("sample", "label", "probability", "proposed", "proposed_probability", "verdict", "duplicate_group")


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


def findings_of(
    names: list[str], labels: NDArray[np.int64], auditor: LabelAuditor, classes: tuple[str, ...]
) -> list[Finding]:
    """Gather what the auditor holds."""
    columns = (
        names,
        [classes[label] for label in labels],
        auditor.label_quality_.tolist(),
        [classes[label] for label in auditor.proposed_labels_],
        auditor.proposal_probability_.tolist(),
        auditor.verdicts_.tolist(),
        auditor.duplicate_groups_.tolist(),
    )
    return [Finding(*values) for values in zip(*columns, strict=True)]


def write_findings(path: Path, findings: list[Finding]) -> None:
    """Write ``labels.csv``."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for one in findings:
        group = "" if one.duplicate_group < 0 else one.duplicate_group
        right, proposed = f"{one.probability:.4f}", f"{one.proposed_probability:.4f}"
        writer.writerow((one.sample, one.label, right, one.proposed, proposed, one.verdict, group))
    write_text(path, out.getvalue())
    write_text(_checksum_of(path), f"{_digest(path)}  {path.name}\n")


def _checksum_of(path: Path) -> Path:
    """The file beside another that `sha256sum -c` reads."""
    return path.with_name(f"{path.name}.sha256")


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def read_findings(path: Path) -> list[Finding]:
    """Read ``labels.csv`` back, and say so if it was changed; a person may have."""
    beside = _checksum_of(path)
    if path.is_file() and beside.is_file() and beside.read_text(errors="replace").split()[:1] != [_digest(path)]:
        print(f"{path}: was changed since the audit (it does not match {beside.name}); used as it is", file=sys.stderr)
    try:
        with path.open(encoding="utf-8-sig", errors=NAMES, newline="") as file:
            reader = csv.DictReader(file)
            missing = [column for column in COLUMNS if column not in (reader.fieldnames or ())]
            if missing:
                raise UsageError(f"{path}: no column {missing[0]!r}; expected a labels.csv of robustdml audit")
            return [_finding(path, reader.line_num, row) for row in reader]
    except (OSError, csv.Error) as error:
        raise UsageError(f"{path}: not a readable labels.csv ({error})") from error


def _finding(path: Path, line: int, row: dict[str, str]) -> Finding:
    if row["verdict"] not in VERDICTS:
        raise UsageError(f"{path}, line {line}: verdict {row['verdict']!r}; expected one of {', '.join(VERDICTS)}")
    try:
        right, proposed = (float(row[key]) for key in ("probability", "proposed_probability"))
        group = int(row["duplicate_group"] or -1)
    except (TypeError, ValueError) as error:
        raise UsageError(f"{path}, line {line}: {error}") from error
    return Finding(row["sample"], row["label"], right, row["proposed"], proposed, row["verdict"], group)


ACCEPT, REFUSE = "accept", "refuse"


def clean_labels(
    findings: list[Finding], use: str, confidence: float = CONFIDENCE, decisions: dict[str, str] | None = None
) -> dict[int, Finding]:
    """Decide what stays, by its row in `findings`, with the label that it has from then on."""
    if use not in USES:
        raise UnknownNameError("use of labels", use, USES)
    if not 0 <= confidence <= 1:
        raise UsageError(f"confidence={confidence}: expected a probability between 0 and 1")
    decided = decisions or {}
    labels = [_label(one, use, confidence, decided.get(one.sample, "")) for one in findings]
    return {row: replace(findings[row], label=label) for row, label in enumerate(labels) if label is not None}


def read_decisions(path: Path, findings: list[Finding]) -> dict[str, str]:
    """Read what was downloaded from ``audit.html``."""
    known: dict[str, list[str]] = {}
    for one in findings:
        known.setdefault(in_browser(one.sample), []).append(one.sample)
    out = {}
    try:
        with path.open(encoding="utf-8-sig", errors=NAMES, newline="") as file:
            reader = csv.DictReader(file)
            if not {"sample", "decision"} <= set(reader.fieldnames or ()):
                raise UsageError(f"{path}: expected the columns sample and decision, as audit.html downloads them")
            for row in reader:
                line = f"{path}, line {reader.line_num}"
                if row["decision"] not in (ACCEPT, REFUSE):
                    raise UnknownNameError(f"{line}: decision", row["decision"], (ACCEPT, REFUSE))
                meant = known.get(in_browser(row["sample"] or ""), [])
                if not meant:
                    raise UsageError(f"{line}: {row['sample']!r} is not in this audit")
                if len(set(meant)) > 1:
                    raise UsageError(f"{line}: {row['sample']!r} may be any of {few(meant)}: rename these files")
                out[meant[0]] = row["decision"]
    except (OSError, csv.Error) as error:
        raise UsageError(f"{path}: not a readable .csv file ({error})") from error
    return out


def _label(one: Finding, use: str, confidence: float, decision: str) -> str | None:
    """The label that a sample has from now on; None where it goes."""
    if decision == REFUSE:
        return one.label
    if decision == ACCEPT:
        return None if one.verdict == NO_CLASS else one.proposed
    if one.verdict in (RIGHT, NOT_SURE):
        return one.label
    sure = one.verdict == WRONG and one.proposed != one.label and one.proposed_probability >= confidence
    return one.proposed if use == CORRECT and sure else None
