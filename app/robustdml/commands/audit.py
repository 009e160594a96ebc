"""``robustdml audit``: which labels of a data set are wrong."""

import argparse
import hashlib
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from robustdml.arrays import Array, Doubles, Ints, Singles, blocks
from robustdml.audit import LabelAuditor
from robustdml.audit.auditor import FEWEST_SAMPLES
from robustdml.audit.classes import doubt_classes
from robustdml.audit_report.copies import COPIES, find_copies, trained_on, write_copies
from robustdml.audit_report.findings import (
    Decisions,
    Finding,
    cannot_tell,
    estimated_share,
    findings_of,
    read_decisions,
    write_findings,
)
from robustdml.audit_report.learning import learn_embeddings
from robustdml.audit_report.outlook import outlook
from robustdml.audit_report.page import render_page
from robustdml.audit_report.questions import Section, ask
from robustdml.audit_report.samples import outside_line, read_samples
from robustdml.cache import LOCK, NAMES, sole_use, write_text
from robustdml.command_line import add_json_argument, add_size_limit, path, print_json, say_left_out
from robustdml.commands.reading import add_reading_arguments, columns_of
from robustdml.config import TrainingConfig
from robustdml.data.contents import seen
from robustdml.data.dataset import Samples
from robustdml.data.folders import with_images
from robustdml.data.joined import FEATURES_TEXT, with_features
from robustdml.data.load import expected_data
from robustdml.errors import UsageError, counted, few, say
from robustdml.networks.backbones.choice import check_installed, default_image_size
from robustdml.networks.preparation import reading_for, resolve_device
from robustdml.plain_files import read_json, write_npz
from robustdml.progress import OnProgress, progress_bar, show_table

LABELS, PAGE, FEATURES, STATE = "labels.csv", "audit.html", "features.npz", "audit.json"
# Width of the share's interval from which on a person is asked to check some labels.
WIDE = 0.1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("data", metavar="DATA", help=expected_data())
    parser.add_argument(
        "--out",
        type=path,
        required=True,
        help=f"folder for {LABELS}, {PAGE}, {FEATURES} and the models; the same audit, interrupted, goes on there",
    )
    add_size_limit(parser)
    parser.add_argument("--runs", type=int, default=1, help="independently seeded runs that judge together")
    parser.add_argument("--as-they-are", action="store_true", help="judge features as given, without learning first")
    parser.add_argument(
        "--decisions",
        type=path,
        action="extend",
        nargs="+",
        default=[],
        metavar="FILE",
        help="decisions.csv of audit.html: what was called right or wrong there improves the probabilities; of several "
        "files the last wins",
    )
    parser.add_argument("--epochs", type=int, default=TrainingConfig().epochs, help="of a run")
    parser.add_argument("--seed", type=int, default=0, help="of the first run")
    parser.add_argument("--backbone", default="", help="as in robustdml train")
    parser.add_argument("--backbone-weights", default="", metavar="FILE", help="as in robustdml train")
    parser.add_argument("--finetune", action="store_true", help="train the backbone as well")
    parser.add_argument("--image-size", type=int, help="side in pixels that images are brought to")
    add_reading_arguments(parser)
    parser.add_argument("--features", default="", metavar="FILE", help=FEATURES_TEXT)
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, …")
    add_json_argument(parser)


def way_on(arguments: argparse.Namespace) -> str:
    return f"the same command goes on with what is in {arguments.out}"


def run(arguments: argparse.Namespace) -> int:
    out: Path = arguments.out
    if arguments.runs < 1:
        raise UsageError(f"--runs {arguments.runs}: expected at least 1")
    if arguments.image_size is not None and arguments.image_size < 1:
        raise UsageError(f"--image-size {arguments.image_size}: expected at least 1")
    settings = ("epochs", "seed", "backbone", "backbone_weights", "finetune")
    config = TrainingConfig(**{name: getattr(arguments, name) for name in settings})
    with progress_bar("audit") as on_progress, sole_use(out / LOCK, out):
        on_progress("reading data", 0, 0)
        samples = read_samples(arguments.data, columns_of(arguments), on_progress)
        _check_classes(samples)
        if arguments.features:
            samples = with_features(samples, arguments.features, True)
            _check_classes(samples)
        if (outside := outside_line(samples)) is not None:
            say(f"robustdml audit: {outside}", sys.stderr)
        _take_up(out, samples, config, arguments)
        if samples.files:
            check_installed(config.backbone, config.backbone_weights)
            size = arguments.image_size or default_image_size(config.backbone)
            reading = reading_for(config, size, resolve_device(arguments.device), on_progress)
            samples = with_images(samples, reading, True, on_progress)
            _check_classes(samples)
        # A file that holds no decisions is refused before anything is trained.
        decisions = read_decisions(arguments.decisions, samples.names(), samples.labels_by_name())
        checked = _checked(samples, decisions)
        copies = find_copies(samples, on_progress)
        write_copies(out / COPIES, samples, copies)
        features, untouched, margins = _features(samples, copies, config, arguments, on_progress)
        on_progress("judging", 0, 0)
        # Where the features before training tell nothing the learnt ones judge, which have seen the labels.
        learnt = untouched is features and not arguments.as_they_are
        auditor = LabelAuditor(features_learnt=learnt)
        auditor.fit(untouched, samples.labels, checked, None if learnt else margins)
        doubts = doubt_classes(features, samples.labels, len(samples.class_names), untouched)
        findings = findings_of(samples, auditor, doubts.halves)
        write_findings(out / LABELS, findings)
        write_npz(
            out / FEATURES,
            features=features,
            labels=samples.labels,
            class_names=np.array(samples.class_names),
            paths=np.array(samples.names()),
        )
        sections = ask(samples, findings, auditor.label_quality_, doubts, copies)
        seen_by = features, untouched
        write_text(out / PAGE, render_page(samples, findings, auditor, *seen_by, sections, decisions, on_progress))
    say_left_out("audit", samples.left_out, samples.notes)
    if arguments.json:
        print_json(_as_json(out, samples, findings, auditor, sections))
        return 0
    show_table(_summary(samples, auditor, sections, checked))
    for line in outlook(findings):
        print(line)
    say(f"{out / PAGE}: look there, then try robustdml apply {out / LABELS} --to CLEAN")
    _, low, high = auditor.wrong_share_
    judged = len(auditor.small_classes_) < len(auditor.classes_)
    if judged and high - low > WIDE and np.isnan(checked).all():
        print("The share is uncertain: decide on some twenty suspects there, and give the file to --decisions.")
    return 0


def _check_classes(samples: Samples) -> None:
    twice = [name for name, count in Counter(samples.names()).items() if count > 1]
    if twice:
        raise UsageError(f"{samples.source}: {counted(len(twice), 'sample')} given twice, keep one: {few(twice)}")
    if len(samples.class_names) < 2:
        found = f"one class, {samples.class_names[0]!r}{samples.in_brackets()}"
        raise UsageError(f"{samples.source}: {found}; labels are judged beside others")
    if np.bincount(samples.labels).max() < 2:
        raise UsageError(f"{samples.source}: no class has 2 samples; labels are judged beside others of their class")


def _features(
    samples: Samples, copies: Ints, config: TrainingConfig, arguments: argparse.Namespace, on_progress: OnProgress
) -> tuple[Singles, Array, Singles | None]:
    if not arguments.as_they_are:
        given = samples, trained_on(copies, samples.labels), config, arguments.runs, arguments.out, arguments.device
        return learn_embeddings(*given, on_progress)
    if samples.is_images:
        raise UsageError("--as-they-are is for features; of images they have to be made first")
    features = np.asarray(samples.inputs, dtype=np.float32)
    return features, features, None


def _checked(samples: Samples, decisions: Decisions) -> Doubles:
    """Decisions of a person on each label, (N,): 1 for right, 0 for wrong, NaN without a decision."""
    pairs = zip(samples.names(), samples.labels_by_name(), strict=True)
    return np.array([decisions.says(name, label) for name, label in pairs])


def _as_json(
    out: Path, samples: Samples, findings: list[Finding], auditor: LabelAuditor, sections: list[Section]
) -> dict[str, Any]:
    """The findings as JSON values."""
    share, low, high = auditor.wrong_share_.tolist()
    return {
        "samples": len(samples),
        "classes": len(samples.class_names),
        "left_out": list(samples.left_out),
        "verdicts": dict(Counter(auditor.verdicts_.tolist())),
        "wrong_share": None if cannot_tell(auditor) else {"estimate": share, "low": low, "high": high},
        "questions": {section.title: len(section.questions) for section in sections},
        "advice": outlook(findings),
        "labels": str(out / LABELS),
        "page": str(out / PAGE),
    }


def digest_of(samples: Samples) -> str:
    """Digest of names, labels, and features or the files' times."""
    digest = hashlib.sha256()
    for name, label in zip(samples.names(), samples.labels_by_name(), strict=True):
        # Images that were changed, or put right, in between would not go with what was made of the old ones.
        when = seen(name) if samples.files else ""
        digest.update(f"{name}\0{label}\0{when}\0".encode("utf-8", NAMES))
    if not samples.is_images:
        for rows in blocks(len(samples), 4096):
            digest.update(np.ascontiguousarray(samples.inputs[rows]).data)
    return digest.hexdigest()


def _take_up(out: Path, samples: Samples, config: TrainingConfig, arguments: argparse.Namespace) -> None:
    """Refuse a folder with an audit of other samples or settings, and note those of this one."""
    state = {
        "source": samples.source,
        "samples": digest_of(samples),
        "settings": config.as_dict(),
        "as_they_are": arguments.as_they_are,
        "image_size": arguments.image_size,
    }
    file = out / STATE
    text = json.dumps(state, indent=2) + "\n"
    if file.exists():
        then, now = read_json(file, "state of an audit"), json.loads(text)
        other = [key for key in now if then.get(key) != now[key]]
        if other:
            raise UsageError(f"{out} holds an audit with other {' and '.join(other)}: give another folder")
        return
    # What begins with a dot is a lock, or what a process that was killed did not finish.
    if out.exists() and any(not entry.name.startswith(".") for entry in out.iterdir()):
        raise UsageError(f"--out {out}: is not empty, and holds no audit; give another folder")
    write_text(file, text)


def _summary(samples: Samples, auditor: LabelAuditor, sections: list[Section], checked: Doubles) -> Table:
    table = Table(title="What the labels are", show_header=False)
    verdicts, counts = np.unique(auditor.verdicts_, return_counts=True)
    for verdict, count in sorted(zip(verdicts.tolist(), counts.tolist(), strict=True), key=lambda one: -one[1]):
        table.add_row(verdict, f"{count:,}")
    small = int(np.isin(samples.labels, auditor.small_classes_).sum())
    if small:
        table.add_row(f"in classes of fewer than {FEWEST_SAMPLES}, not judged", f"{small:,}")
    for section in sections:
        if section.questions:
            table.add_row(section.title[0].lower() + section.title[1:], section.count)
    if number := int((checked >= 0).sum()):
        table.add_row("checked by you, and learnt from", f"{number:,}, of them {int((checked == 0).sum()):,} wrong")
    table.add_row("estimated share of wrong labels", estimated_share(auditor))
    return table
