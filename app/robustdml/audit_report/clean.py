"""What to do about labels that an audit doubts: drop them, or put them right."""

import csv
from dataclasses import dataclass
from pathlib import Path

from robustdml.audit.auditor import NO_CLASS, NOT_SURE, RIGHT, WRONG
from robustdml.audit_report.findings import Finding
from robustdml.cache import NAMES
from robustdml.config import CONFIDENCE, CORRECT, USES
from robustdml.data.images import few
from robustdml.errors import UnknownNameError, UsageError
from robustdml.reports.html import in_browser

ACCEPT, REFUSE = "accept", "refuse"


@dataclass(frozen=True)
class Kept:
    """A sample that stays."""

    sample: str  # As in `Finding`
    row: int  # Its place in the file of findings
    label: str  # Which it has from then on


def clean_labels(
    findings: list[Finding], use: str, confidence: float = CONFIDENCE, decisions: dict[str, str] | None = None
) -> list[Kept]:
    """Decide what stays, under which label."""
    if use not in USES:
        raise UnknownNameError("use of labels", use, USES)
    if not 0 <= confidence <= 1:
        raise UsageError(f"confidence={confidence}: expected a probability between 0 and 1")
    decided = decisions or {}
    kept = []
    for row, one in enumerate(findings):
        label = _label(one, use, confidence, decided.get(one.sample, ""))
        if label is not None:
            kept.append(Kept(one.sample, row, label))
    return kept


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
