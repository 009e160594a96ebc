"""The findings of an audit, and their file ``labels.csv``."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from robustdml.arrays import Ints
from robustdml.audit import VERDICTS, LabelAuditor
from robustdml.audit_report.samples import AuditSamples
from robustdml.data.folders import PARTS
from robustdml.errors import UsageError
from robustdml.plain_files import read_csv, write_csv

COLUMNS = (
    *("sample", "label", "probability", "proposed", "proposed_probability", "verdict", "duplicate_group"),
    *("part", "half"),
)


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


def findings_of(samples: AuditSamples, auditor: LabelAuditor, halves: Ints) -> list[Finding]:
    """Gather what the auditor holds."""
    classes = samples.class_names
    columns = (
        samples.names,
        [classes[label] for label in samples.labels],
        auditor.label_quality_.tolist(),
        [classes[label] for label in auditor.proposed_labels_],
        auditor.proposal_probability_.tolist(),
        auditor.verdicts_.tolist(),
        auditor.duplicate_groups_.tolist(),
        samples.parts or [""] * len(halves),
        halves.tolist(),
    )
    return [Finding(*values) for values in zip(*columns, strict=True)]


def write_findings(path: Path, findings: list[Finding]) -> None:
    """Write ``labels.csv``."""
    rows: list[Sequence[object]] = [COLUMNS]
    for one in findings:
        group = "" if one.duplicate_group < 0 else one.duplicate_group
        right, proposed = f"{one.probability:.4f}", f"{one.proposed_probability:.4f}"
        judged = (one.sample, one.label, right, one.proposed, proposed, one.verdict, group)
        rows.append((*judged, one.part, one.half or ""))
    write_csv(path, rows)


def read_findings(path: Path) -> list[Finding]:
    """Read ``labels.csv`` back; a person may have changed it."""
    columns, rows = read_csv(path, "labels.csv")
    missing = [column for column in COLUMNS if column not in columns]
    if missing:
        raise UsageError(f"{path}: no column {missing[0]!r}; expected a labels.csv of this version's robustdml audit")
    return [_finding(path, line, row) for line, row in rows]


def _finding(path: Path, line: int, row: dict[str, str]) -> Finding:
    if row["verdict"] not in VERDICTS:
        raise UsageError(f"{path}, line {line}: verdict {row['verdict']!r}; expected one of {', '.join(VERDICTS)}")
    if row["part"] not in ("", *PARTS):
        raise UsageError(f"{path}, line {line}: part {row['part']!r}; expected {' or '.join(PARTS)}, or nothing")
    try:
        right, proposed = (float(row[key]) for key in ("probability", "proposed_probability"))
        group, half = int(row["duplicate_group"] or -1), int(row["half"] or 0)
    except (TypeError, ValueError) as error:
        raise UsageError(f"{path}, line {line}: {error}") from error
    judged = (row["sample"], row["label"], right, row["proposed"], proposed, row["verdict"], group)
    return Finding(*judged, row["part"], half)
