"""Images in class folders."""

import os
import unicodedata
from dataclasses import replace
from pathlib import Path

import numpy as np

from robustdml.data.contents import contents_of
from robustdml.data.dataset import RetrievalData, Samples, divide_classes, numbered
from robustdml.data.files import PassedOver, image_files, loose_images, visible_folders
from robustdml.data.image_files import ImageFiles, copies_between
from robustdml.data.images import check_left_out
from robustdml.data.joined import with_features
from robustdml.data.lists import ANY_COLUMNS, Columns, metadata_of, read_list
from robustdml.data.parts import PARTS, TEST, TRAIN, find_parts, without_wrapper
from robustdml.data.readings import Reading, read_images
from robustdml.errors import UsageError, counted, few
from robustdml.progress import OnProgress, silent


def load_images(
    path: Path,
    reading: Reading,
    test_fraction: float,
    split_seed: int,
    skip_broken: bool,
    columns: Columns,
    features: str,
    on_progress: OnProgress,
) -> RetrievalData:
    """Read a list, ``path/class/…/image``, or ``path/train/class/…`` and ``path/test/class/…`` where both exist."""
    listed = listed_parts(path, columns, on_progress).values()
    if features:
        parts = [with_features(part, features, skip_broken) for part in listed]
    else:
        parts = [with_images(part, reading, skip_broken, on_progress) for part in listed]
    left_out = tuple(one for part in parts for one in (*part.loose, *part.left_out))
    notes = tuple(one for part in parts for one in part.notes)
    if len(parts) == 1:
        whole, every = parts[0], np.arange(len(parts[0].class_names))
        name = str(path) + whole.in_brackets()
        divided = divide_classes(len(every), name, test_fraction, split_seed) if test_fraction else (every, every)
        in_order = np.argsort(whole.labels, kind="stable")
        parts = [whole.subset(in_order[np.isin(whole.labels[in_order], classes)]) for classes in divided]
    train, test = parts
    if test_fraction or len(listed) > 1:
        notes += tuple(copies_between(train.inputs, test.inputs))
    return RetrievalData(path.name, train, test, left_out=left_out, notes=notes)


def with_images(samples: Samples, reading: Reading, skip_broken: bool, on_progress: OnProgress) -> Samples:
    """Read images; those that cannot be read are left out, or refused where none is to be skipped."""
    check_left_out(len(samples), samples.left_out, (), skip_broken)
    images = ImageFiles(samples.files, reading.size, reading.channels, reading)
    images.contents = contents_of(samples.files, on_progress)
    broken = read_images(samples.files, images.contents, reading, on_progress)
    check_left_out(len(samples), samples.left_out, list(broken.values()), skip_broken)
    kept = replace(samples, inputs=images).subset(np.delete(np.arange(len(samples)), list(broken)))
    return replace(kept, left_out=(*samples.left_out, *broken.values()))


def listed_parts(
    path: Path, columns: Columns = ANY_COLUMNS, on_progress: OnProgress = silent, need_labels: bool = True
) -> dict[str, Samples]:
    """Read a list, a folder of class folders, or both `PARTS` where a folder holds them or a list names them."""
    if not path.is_dir():
        listed = read_list(path, columns, need_labels)
        named = {part: np.flatnonzero([one == part for one in listed.parts]) for part in PARTS if listed.parts}
        parts = {part: replace(listed.subset(rows), source=f"{path}, {part}") for part, rows in named.items()}
        first = {"left_out": listed.left_out, "notes": listed.notes}
        kept = {part: first if part != TEST else {"left_out": (), "notes": ()} for part in parts}
        return {part: replace(one, **kept[part]) for part, one in parts.items()} or {"": listed}
    if columns.pattern:
        return {"": _labelled_by_pattern(path, columns)}
    root = without_wrapper(path)
    if folders := find_parts(root, visible_folders(root)):
        parts = {part: folder_images(folder, columns, on_progress, need_labels) for part, folder in folders.items()}
        beside = {*visible_folders(root)} - {*folders.values()}
        loose = (*parts[TRAIN].loose, *(f"{one} (beside train and test)" for one in sorted(beside)))
        return {**parts, TRAIN: replace(parts[TRAIN], loose=loose)}
    return {"": folder_images(path, columns, on_progress, need_labels)}


def _labelled_by_pattern(folder: Path, columns: Columns) -> Samples:
    """List the images of a folder, at any depth, whose paths in it have a label."""
    passed = PassedOver()
    found = image_files(folder, passed)
    labels = [unicodedata.normalize("NFC", columns.label_in(os.path.relpath(file, folder))) for file in found]
    files = [file for file, label in zip(found, labels, strict=True) if label]
    if not files:
        first = f", such as {found[0].relative_to(folder)}" if found else ""
        raise UsageError(f"{folder}: none of {counted(len(found), 'image')} has a label by {columns.pattern!r}{first}")
    return Samples(
        ImageFiles(files),
        *numbered([label for label in labels if label]),
        [str(file.absolute()) for file in files],
        source=str(folder),
        loose=tuple(f"{file} (no label)" for file, label in zip(found, labels, strict=True) if not label),
        notes=tuple(passed.notes()),
    )


def folder_images(
    folder: Path, columns: Columns = ANY_COLUMNS, on_progress: OnProgress = silent, need_labels: bool = True
) -> Samples:
    """List the images of a folder of class folders, or of a folder around it."""
    root, passed = without_wrapper(folder), PassedOver()
    found = visible_folders(root)
    around = {root.resolve(), *root.resolve().parents}
    for entry in found:
        if entry.is_symlink() and entry.resolve() in around:
            raise UsageError(f"{entry}: a link to a folder that it lies in, so that all images would be of its class")
    classes: dict[str, list[Path]] = {}
    spelt: dict[str, set[str]] = {}
    for done, entry in enumerate(found):
        on_progress("listing images", done, len(found))
        # Some disks compose é of e and an accent: these are no two classes.
        name = unicodedata.normalize("NFC", entry.name)
        classes.setdefault(name, []).extend(image_files(entry, passed))
        spelt.setdefault(name, set()).add(entry.name)
    empty = [name for name, files in classes.items() if not files]
    classes = {name: files for name, files in classes.items() if files}
    loose = loose_images(root, passed)
    notes = [] if root == folder else [f"the class folders are those in {root}"]
    if twice := [name for name, spellings in spelt.items() if len(spellings) > 1]:
        notes.append(f"folders whose names look the same are one class: {few(twice)}")
    notes += passed.notes()
    notes += [f"{counted(len(empty), 'class', 'classes')} without images: {few(empty)}"] if empty else []
    if not classes:
        if metadata := metadata_of(root):
            return read_list(metadata, columns, need_labels)
        said = f"{len(loose):,} images, and no class folder" if loose else "no images"
        said += "".join(f"; {note}" for note in notes)
        raise UsageError(f"{folder}: {said}; expected files such as {folder}/some-class/image.jpg")
    labels = np.repeat(np.arange(len(classes), dtype=np.int64), [len(files) for files in classes.values()])
    files = [file for files in classes.values() for file in files]
    return Samples(
        ImageFiles(files),
        labels,
        tuple(classes),
        [str(file.absolute()) for file in files],
        source=str(folder),
        loose=tuple(f"{file} (in no class folder)" for file in loose),
        notes=tuple(notes),
    )
