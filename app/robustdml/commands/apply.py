"""``robustdml apply``: a data set without the wrong labels that an audit has found."""

import argparse
import itertools
import os
import re
import shutil
import sys
from collections import Counter
from functools import cache
from pathlib import Path

import numpy as np

from robustdml.audit_report.findings import Finding, clean_labels, read_decisions, read_findings
from robustdml.audit_report.outlook import MUCH, expected_right, left_out
from robustdml.audit_report.samples import read_samples
from robustdml.cache import sole_use
from robustdml.command_line import add_json_argument, path, print_json
from robustdml.commands.audit import STATE, digest_of
from robustdml.config import CONFIDENCE, DROP, USES
from robustdml.data.features import TEST, read_part, sample_names
from robustdml.data.files import is_image, is_image_inside
from robustdml.errors import OBEYED, UsageError, counted, few, say
from robustdml.plain_files import read_json, read_npz, write_npz
from robustdml.tables import write_csv

# Bytes of a name, on nearly all disks.
LONGEST_NAME = 255


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("labels", type=path, metavar="LABELS", help="labels.csv of robustdml audit")
    parser.add_argument(
        "--to",
        type=path,
        required=True,
        metavar="CLEAN",
        help="a new folder of class folders, a .csv list, or of audited features a .npz file",
    )
    parser.add_argument("--use", default=DROP, metavar="|".join(USES), help="what is done with wrong labels")
    parser.add_argument("--confidence", type=float, default=CONFIDENCE, help="of proposals that correct")
    parser.add_argument(
        "--decisions",
        type=path,
        action="extend",
        nargs="+",
        default=[],
        metavar="FILE",
        help="decisions.csv, as audit.html downloads it",
    )
    parser.add_argument("--yes", action="store_true", help=f"leave out more than {MUCH:.0%}% of the samples")
    add_json_argument(parser)
    parser.add_argument("--copy", action="store_true", help="copy images into the folder rather than link them")


def run(arguments: argparse.Namespace) -> int:
    to: Path = arguments.to
    if to.exists():
        raise UsageError(f"--to {to}: is there already; give a new name")
    findings = read_findings(arguments.labels)
    names = [one.sample for one in findings], [one.label for one in findings]
    decisions = read_decisions(arguments.decisions, *names)
    kept = clean_labels(findings, arguments.use, arguments.confidence, decisions)
    if not kept:
        raise UsageError(f"{arguments.labels}: no sample is left")
    gone = left_out(findings, kept)
    undecided = [one for one in gone if one.sample not in decisions.samples]
    losing = f"{len(gone):,} leave, of which about {expected_right(undecided):,.0f} have a right label"
    if len(undecided) > MUCH * len(findings) and not arguments.yes:
        raise UsageError(
            f"{losing}: more than {MUCH:.0%} of {len(findings):,} samples would go without a decision; look at them "
            "in audit.html, or give --yes"
        )
    if to.suffix.lower() == ".csv":
        width = 2 + any(one.part for one in findings)
        rows = [("path", "label", "part"), *((one.sample, one.label, one.part) for one in kept.values())]
        write_csv(to, [row[:width] for row in rows])
    elif to.suffix.lower() == ".npz":
        _write_features(to, list(kept.values()), arguments.labels)
    else:
        _write_folder(to, kept, arguments.copy)
    changed = sum(one.label != findings[row].label for row, one in kept.items())
    decided = Counter(decision for decision, _ in decisions.samples.values())
    decided |= Counter({"classes merged": len(decisions.joined), "classes split": len(decisions.split)})
    if arguments.json:
        counts = {"samples": len(findings), "kept": len(kept), "relabelled": changed, "left out": len(gone)}
        told = {"left out, expected right": expected_right(undecided), "decisions": dict(+decided), "to": str(to)}
        print_json(counts | told)
        return 0
    say(f"{to}: {len(kept):,} of {counted(len(findings), 'sample')}, {changed:,} of them under another label")
    if gone:
        print(losing)
    if decided:
        print(f"by decision: {', '.join(f'{count:,} {what}' for what, count in sorted(decided.items()) if count)}")
    return 0


def _write_features(to: Path, kept: list[Finding], findings: Path) -> None:
    state = findings.parent / STATE
    if not state.exists():
        raise UsageError(f"{state} is missing, which names the file of features; apply labels.csv where it was written")
    audited = read_json(state, "state of an audit")
    source = Path(str(audited.get("source", "")))
    if source.suffix.lower() != ".npz" or not source.exists():
        raise UsageError(f"--to {to}: {source} is no .npz file of features; give a folder or a .csv list")
    if digest_of(read_samples(str(source))) != audited.get("samples"):
        raise UsageError(f"{source} has changed since the audit; audit it again, into another folder")
    arrays = read_npz(source, ("features", "labels"), ("paths", "class_names", "test_features", "test_labels"))
    places = [str(name) for name in sample_names(source, arrays, len(arrays["labels"]))]
    number = {name: place for place, name in enumerate(places)}
    missing = [one.sample for one in kept if one.sample not in number]
    if missing:
        raise UsageError(f"{findings}: {source} has no {few(missing)}")
    rows, given = np.array([number[one.sample] for one in kept]), [one.label for one in kept]
    clean = {"features": arrays["features"][rows], "paths": np.array(places)[rows]}
    if {"test_features", "test_labels"} <= arrays.keys():
        test, _ = read_part(source, arrays, TEST)
        given += test.labels_by_name()
        clean["test_features"] = arrays["test_features"]
    # Both parts number the same names.
    clean["class_names"], labels = np.unique(given, return_inverse=True)
    clean["labels"] = labels[: len(rows)]
    if "test_features" in clean:
        clean["test_labels"] = labels[len(rows) :]
    write_npz(to, **clean)


def _write_folder(to: Path, kept: dict[int, Finding], copy: bool) -> None:
    """Lay out a folder of class folders beside `to`, and give it its name when it is whole."""
    missing = [one.sample for one in kept.values() if not Path(one.sample).is_file()]
    if missing:
        raise UsageError(
            f"{counted(len(missing), 'sample')} without a file: {few(missing)}; bring back what was moved, or mend the "
            "paths in the findings; of features give --to a .npz file, or a .csv list"
        )
    # Whoever made the list chose what is copied out of other folders: images, and nothing else.
    others = [one.sample for one in kept.values() if not is_image(one.sample)]
    if others:
        raise UsageError(f"no images by their names: {few(others)}; give --to a .csv list")
    # A name says little: a link, or a file of another kind, may have that of an image.
    others = [one.sample for one in kept.values() if copy and not is_image_inside(one.sample)]
    if others:
        raise UsageError(f"no images by their content: {few(others)}; leave them out of the findings, or drop --copy")
    for label in {one.label for one in kept.values()}:
        if not label or label != os.path.basename(label) or label.startswith(".") or re.search(OBEYED, label):
            raise UsageError(f"class {label!r} cannot be the name of a folder; give --to a .csv list")
    if copy and (outside := _links_out([Path(one.sample) for one in kept.values()])):
        link, what = outside[0], counted(len(outside), "image")
        say(
            f"robustdml apply: copies {what} that links lead to elsewhere, the first is {link} to {link.resolve()}",
            sys.stderr,
        )
    unfinished = to.with_name(f".{to.name}.unfinished")
    with sole_use(unfinished.with_suffix(".lock"), to):
        if unfinished.is_dir() and not unfinished.is_symlink():  # A pipe would keep it waiting.
            shutil.rmtree(unfinished, ignore_errors=True)
        if os.path.lexists(unfinished):
            raise UsageError(
                f"{unfinished}: is in the way, and no folder that can be deleted; look at it, and delete it"
            )
        unfinished.mkdir()
        try:
            taken: set[tuple[str, str, str]] = set()
            for row, one in kept.items():
                folder = unfinished / one.part / one.label
                folder.mkdir(parents=True, exist_ok=True)
                source, target = Path(one.sample), folder / _free_name(row, one, taken)
                try:
                    if copy:
                        shutil.copy2(source, target)
                    else:
                        target.symlink_to(source.absolute())
                except OSError as error:
                    # Of a copy Python names the source alone.
                    raise OSError(error.errno, f"{error.strerror}, for {source}", str(target)) from error
            os.replace(unfinished, to)
        except BaseException:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise


def _links_out(files: list[Path]) -> list[Path]:
    """Files that are links out of the folder that all of them lie in: what they lead to may not be meant to be copied.

    Of an audit of a linked folder, as `apply` makes them, that is all, and as it should be.
    """
    real = cache(os.path.realpath)
    folder = os.path.commonpath([real(file.parent) for file in files])
    return [file for file in files if file.is_symlink() and not Path(real(file)).is_relative_to(folder)]


def _free_name(row: int, one: Finding, taken: set[tuple[str, str, str]]) -> str:
    """The file's own name, or with the sample's number where the class has that already."""
    source = Path(one.sample)
    endings = itertools.chain(("",), (f"-{row}",), (f"-{row}-{again}" for again in itertools.count(1)))
    for ending in endings:
        room = LONGEST_NAME - len(os.fsencode(ending + source.suffix))
        stem = os.fsdecode(os.fsencode(source.stem)[:room]) if ending else source.stem
        name = f"{stem}{ending}{source.suffix}"
        # Some disks take names for the same that differ in case alone.
        if (one.part, one.label, name.casefold()) not in taken:
            break
    taken.add((one.part, one.label, name.casefold()))
    return name
