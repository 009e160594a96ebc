"""Applying an audit to the training samples: wrong labels are dropped or corrected."""

import hashlib
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from robustdml.arrays import Ints, Labels
from robustdml.audit_report.findings import Finding, clean_labels, read_findings
from robustdml.config import CORRECT, TrainingConfig
from robustdml.data import Split
from robustdml.errors import UsageError, counted, expanded, few
from robustdml.networks.preparation import Prepared


def use_audit(config: TrainingConfig, prepared: Prepared) -> tuple[Prepared, dict[str, Any]]:
    """Apply the findings of an audit to the training samples; also return counts and a digest of the changes."""
    path, train = expanded(config.labels), prepared.data.train
    findings = read_findings(path)
    rows, fixed = _clean(_of_training(path, findings, train), config, train)
    if len(rows) == 0:
        raise UsageError(f"labels {path}: no sample is left to train on")
    summary = {
        "use": config.labels_use,
        "judged": len(train),
        "dropped": len(train) - len(rows),
        "corrected": int((fixed != train.labels[rows]).sum()),
        "digest": hashlib.sha256(rows.tobytes() + fixed.tobytes()).hexdigest()[:16],
    }
    cleaned = _cleaned_test(findings, config, prepared.data.test)
    summary["test_dropped"] = len(prepared.data.test) - len(cleaned)
    prepared = replace(prepared, data=replace(prepared.data, test=cleaned))
    return _taken(prepared, rows, fixed), summary


def _cleaned_test(findings: list[Finding], config: TrainingConfig, test: Split) -> Split:
    """Apply an audit to the test samples as well, if it has judged all of them under their labels."""
    by_sample = {(one.sample, one.label): one for one in findings}
    keys = zip(test.names(), test.labels_by_name(), strict=True)
    judged = [by_sample[key] for key in keys if key in by_sample]
    # Without names their numbers would be taken for those of training samples.
    if test.sample_names is None or len(judged) < len(test):
        return test
    rows, labels = _clean(judged, config, test)
    return test.take(rows, labels, test.class_names)


def _clean(findings: list[Finding], config: TrainingConfig, split: Split) -> tuple[Ints, Ints]:
    """Rows that stay, and their labels, (n,); a proposal may be of a class that the split lacks."""
    number = {name: label for label, name in enumerate(split.class_names)}
    clean = clean_labels(findings, config.labels_use, config.labels_confidence)
    kept = [(row, number[one.label]) for row, one in clean.items() if one.label in number]
    rows, labels = np.array(kept, dtype=np.int64).reshape(-1, 2).T
    return rows, labels


def describe(summary: dict[str, Any]) -> str:
    """Say in words what `use_audit` did."""
    under_others = f", and {summary['corrected']:,} are under another label" if summary["use"] == CORRECT else ""
    tested = f"; {summary['test_dropped']:,} test samples were dropped as well" if summary["test_dropped"] else ""
    return f"Of {summary['judged']:,} samples {summary['dropped']:,} were dropped after an audit{under_others}{tested}."


def _of_training(path: Path, findings: list[Finding], train: Split) -> list[Finding]:
    """Findings of the training samples, in their order; the file may have more."""
    by_sample = {one.sample: one for one in findings}
    if twice := [name for name, times in Counter(one.sample for one in findings).items() if times > 1]:
        raise UsageError(f"labels {path}: {counted(len(twice), 'sample')} given twice: {few(twice)}")
    names = train.names()
    missing = [name for name in names if name not in by_sample]
    if missing:
        what = "none" if len(missing) == len(names) else f"{len(names) - len(missing):,}"
        raise UsageError(
            f"labels {path}: has {what} of the {len(names):,} training samples, which are to be audited as they are "
            f"trained on; not in it: {few(missing)}"
        )
    other = [
        f"{name} ({by_sample[name].label!r} then, {label!r} now)"
        for name, label in zip(names, train.labels_by_name(), strict=True)
        if by_sample[name].label != label
    ]
    if other:
        raise UsageError(
            f"labels {path}: {counted(len(other), 'sample')} under another label than was audited: {few(other)}; "
            "audit these labels"
        )
    return [by_sample[name] for name in names]


def _taken(prepared: Prepared, rows: Ints, labels: Labels) -> Prepared:
    """Data and features of some rows (n,) of the training samples, under labels (n,)."""
    whole, features = prepared.data.train, prepared.frozen_features
    train = replace(whole, labels=labels)
    if len(rows) < len(whole):
        train, features = whole.take(rows, labels, whole.class_names), lambda: prepared.frozen_features()[rows]
    train = replace(train, true_labels=whole.reference_labels[rows])
    return replace(prepared, data=replace(prepared.data, train=train), frozen_features=features)
