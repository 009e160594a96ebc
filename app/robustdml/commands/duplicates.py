"""``robustdml duplicates``: images of a folder that are copies of others, and their removal by decisions."""

import argparse
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from robustdml.arrays import Ints
from robustdml.audit_report.copies import MOST_COMPARED, find_copies
from robustdml.cache import check_writable
from robustdml.command_line import add_json_argument, add_size_limit, path, print_json, say_left_out
from robustdml.commands.reading import add_cache_argument
from robustdml.data.dataset import Samples
from robustdml.data.files import PassedOver, image_files
from robustdml.data.folders import with_images
from robustdml.data.image_files import DEFAULT_IMAGE_SIZE, ImageFiles
from robustdml.data.readings import Reading
from robustdml.errors import UsageError, counted, few, say
from robustdml.progress import progress_bar
from robustdml.tables import read_table, write_csv

KEEP, REMOVE = "keep", "remove"
HEAD = ("group", "decision", "image", "bytes")


@dataclass(frozen=True)
class Copy:
    """An image that is a copy of others of its group."""

    group: int
    decision: str
    file: Path
    size: int  # Bytes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=path, metavar="FOLDER", help="a folder of images, at any depth")
    parser.add_argument(
        "--out",
        type=path,
        default=Path("duplicates.csv"),
        metavar="FILE",
        help=f"table of the copies, with a decision each, to look at and to change: {KEEP} or {REMOVE}",
    )
    parser.add_argument("--remove", type=path, metavar="TABLE", help="delete the images that a table says to remove")
    add_size_limit(parser)
    add_cache_argument(parser)
    add_json_argument(parser)


def run(arguments: argparse.Namespace) -> int:
    folder: Path = arguments.folder
    if not folder.is_dir():
        raise UsageError(f"{folder}: no such folder")
    check_writable(arguments.out.parent)
    with progress_bar("duplicates") as on_progress:
        passed = PassedOver()
        files = image_files(folder.absolute(), passed)
        if not files:
            raise UsageError(f"{folder}: no images")
        labels = np.zeros(len(files), np.int64)
        samples = Samples(ImageFiles(files), labels, ("",), source=str(folder), notes=tuple(passed.notes()))
        samples = with_images(samples, Reading(DEFAULT_IMAGE_SIZE), True, on_progress)
        groups = find_copies(samples, on_progress)
    notes = list(samples.notes)
    if len(samples) > MOST_COMPARED:
        notes.append(f"of more than {MOST_COMPARED:,} images only copies of the same bytes are found")
    say_left_out("duplicates", samples.left_out, notes)
    copies = _proposed(samples, groups)
    if arguments.remove is not None:
        return _remove(arguments, copies)
    write_csv(arguments.out, [HEAD, *((one.group, one.decision, one.file, one.size) for one in copies)])
    count, extra = len({one.group for one in copies}), [one for one in copies if one.decision == REMOVE]
    told = {"images": len(samples), "groups": count, "copies": len(extra), "bytes": sum(one.size for one in extra)}
    if arguments.json:
        print_json({**told, "table": str(arguments.out), "left_out": list(samples.left_out)})
        return 0
    say(
        f"{arguments.out}: {counted(len(extra), 'copy', 'copies')} beside {counted(count, 'image')}, of "
        f"{len(samples):,}; they take {told['bytes'] / 1e6:,.1f} MB"
    )
    if extra:
        say(f"Look at the decisions there; robustdml duplicates {folder} --remove {arguments.out} deletes by them")
    return 0


def _proposed(samples: Samples, groups: Ints) -> list[Copy]:
    """The copies group by group; of each the largest is kept, and no link before its file."""
    members: dict[int, list[Path]] = {}
    for file, group in zip(samples.files, groups.tolist(), strict=True):
        if group >= 0:
            members.setdefault(group, []).append(file)
    found = []
    for group, files in sorted(members.items()):
        best = max(files, key=lambda file: (not file.is_symlink(), file.stat().st_size))
        decided = ((KEEP if file == best else REMOVE, file) for file in files)
        found += [Copy(group, decision, file, file.stat().st_size) for decision, file in decided]
    return found


def _remove(arguments: argparse.Namespace, copies: list[Copy]) -> int:
    """Delete the files marked in the decisions, if they still are copies of an image that stays."""
    table = read_table(arguments.remove, "table of duplicates", HEAD)
    if missing := [name for name in HEAD[1:3] if name not in table.columns]:
        raise UsageError(
            f"{arguments.remove}: no column {missing[0]!r}; robustdml duplicates FOLDER writes such a table"
        )
    decisions = {row["image"]: row["decision"].strip().lower() for _, row in table.rows}
    if unknown := {one for one in decisions.values() if one not in (KEEP, REMOVE, "")}:
        raise UsageError(f"{arguments.remove}: decisions {few(sorted(unknown))}; expected {KEEP} or {REMOVE}")
    known = {str(one.file): one for one in copies}
    gone = [known[name] for name, decision in decisions.items() if decision == REMOVE and name in known]
    strange = [name for name, decision in decisions.items() if decision == REMOVE and name not in known]
    if strange:
        raise UsageError(f"{arguments.remove}: no copies in {arguments.folder} (any longer): {few(strange)}")
    stay = [one for one in copies if one not in gone]
    if alone := {one.group for one in gone} - {one.group for one in stay}:
        first = next(one.file for one in gone if one.group in alone)
        raise UsageError(
            f"{arguments.remove}: of {counted(len(alone), 'group')} no image would stay, as of {first}; keep one"
        )
    targets = {one.file.resolve(): one.file for one in stay if one.file.is_symlink()}
    linked = next((one.file for one in gone if not one.file.is_symlink() and one.file.resolve() in targets), None)
    if linked is not None:
        raise UsageError(f"{arguments.remove}: {linked} is what {targets[linked.resolve()]} links to; remove the link")
    for one in gone:
        one.file.unlink()
    size = sum(one.size for one in gone)
    if arguments.json:
        print_json({"removed": len(gone), "bytes": size, "stay": len(stay)})
    else:
        say(f"{arguments.folder}: {counted(len(gone), 'image')} removed, {size / 1e6:,.1f} MB")
    return 0
