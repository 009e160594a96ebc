"""Questions about classes: two that may be one, one that may be two, and copies of test samples in training."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from robustdml.arrays import Floats, Ints, Labels, Mask, blocks
from robustdml.audit.classes import ClassDoubts
from robustdml.audit_report.findings import DROP, MERGE, SPLIT, Finding
from robustdml.data.dataset import Samples
from robustdml.data.image_files import Inputs
from robustdml.networks.models import unit_length
from robustdml_ops.ops import nearest

# Questions of a kind in the page, and pictures on each of their sides.
MOST_QUESTIONS, PICTURES = 500, 6
# Correlation of grey images of this side from which on one is a copy of the other. Of Glyphs' images the closest two
# have 0.985, an image and its JPEG file of quality 50 have 0.991.
SIDE, ALIKE = 16, 0.99
# Training images that a test image may be a copy of.
MOST_COPIES = 5


@dataclass(frozen=True)
class Choice:
    """An answer, what `robustdml apply` does then, and its lines of ``decisions.csv``."""

    text: str
    effect: str
    lines: list[tuple[str, str, str, str]]  # By `findings.DECISION_COLUMNS`


@dataclass(frozen=True)
class Question:
    """A question with its evidence."""

    name: str
    sides: list[tuple[str, list[int]]]  # Titles, and rows that are shown under them
    evidence: str
    choices: list[Choice]


@dataclass(frozen=True)
class Section:
    """Questions of a kind."""

    title: str
    about: str
    questions: list[Question]
    all: bool = False  # Whether all may be answered at once

    @property
    def count(self) -> str:
        """How many there are, as a text."""
        return f"{len(self.questions):,}{' or more' if len(self.questions) == MOST_QUESTIONS else ''}"


def best_first(labels: Labels, quality: Floats) -> list[Ints]:
    """Samples of each class, those of best quality first."""
    return np.split(np.lexsort((-quality, labels)), np.cumsum(np.bincount(labels))[:-1])


def ask(samples: Samples, findings: list[Finding], quality: Floats, doubts: ClassDoubts) -> list[Section]:
    """Ask about the classes in doubt, and about copies in both parts; the samples shown are those of best quality."""
    of_class = best_first(samples.labels, quality)
    one = [_may_be_one(samples, of_class, *pair) for pair in doubts.one[:MOST_QUESTIONS]]
    two = [_may_be_two(samples.class_names[k], of_class[k], doubts.halves, mixing) for k, mixing in doubts.two]
    sections = [
        Section(
            "Two classes that may be one",
            "Samples of one are among the nearest neighbours of the other. Without a decision apply keeps both.",
            one,
        ),
        Section(
            "Classes that may be two",
            "Cut in two, their halves keep to themselves. Without a decision apply keeps them whole.",
            two[:MOST_QUESTIONS],
        ),
    ]
    if not samples.parts:
        return sections
    copies = find_copies(samples.inputs, np.array(samples.parts) == "test")
    questions = [_is_copy(findings, *pair) for pair in list(copies.items())[:MOST_QUESTIONS]]
    about = "A test on copies of what was learnt says too much. Without a decision apply keeps both."
    return [*sections, Section("Images in both train and test", about, questions, True)]


def _may_be_one(samples: Samples, of_class: list[Ints], i: int, j: int, mixing: float) -> Question:
    names, rows = [samples.class_names[k] for k in (i, j)], [of_class[k] for k in (i, j)]
    choices = [
        Choice(
            f"merge into “{names[here]}”",
            f"apply puts “{names[1 - here]}” in “{names[here]}” ({len(rows[1 - here]):,} samples)",
            [("", names[1 - here], MERGE, names[here])],
        )
        for here in (0, 1)
    ]
    kept = Choice("two classes", f"apply keeps “{names[0]}” and “{names[1]}” apart", [])
    evidence = f"Neighbours are of the other class {mixing:.0%} as often as of their own, in relation to the sizes."
    sides = [(name, one[:PICTURES].tolist()) for name, one in zip(names, rows, strict=True)]
    return Question(f"one {names[0]}\0{names[1]}", sides, evidence, [*choices, kept])


def _may_be_two(name: str, rows: Ints, halves: Ints, mixing: float) -> Question:
    evidence = f"A sample has neighbours in the other half {mixing:.1%} as often as halves drawn at random would have."
    choices = [
        Choice("split", f"apply puts the second half of “{name}” in a class of its own", [("", name, SPLIT, "")]),
        Choice("one class", f"apply keeps “{name}” whole", []),
    ]
    sides = [
        (f"{name}, {which} half: {len(half):,} samples", half[:PICTURES].tolist())
        for which, half in (("first", rows[halves[rows] == 1]), ("second", rows[halves[rows] == 2]))
    ]
    return Question(f"two {name}", sides, evidence, choices)


def _is_copy(findings: list[Finding], row: int, train: list[int]) -> Question:
    sides = [("train", train), ("test", [row])]
    choices = [
        Choice(
            f"leave out of {part}",
            f"apply leaves {len(members)} out of {part}",
            [(findings[one].sample, "", DROP, "") for one in members],
        )
        for part, members in sides
    ]
    names = ", ".join(findings[one].sample for one in (*train, row))
    return Question(f"copy {findings[row].sample}", sides, names, [*choices, Choice("keep", "apply keeps all", [])])


def find_copies(images: Inputs, parts: Mask) -> dict[int, list[int]]:
    """Map test images (`parts` is true) to the training images that they are copies of; (N, channels, S, S)."""
    test, train = np.flatnonzero(parts), np.flatnonzero(~parts)
    found = nearest(_small(images, test), _small(images, train), min(MOST_COPIES, len(train)))
    alike = (found.values >= ALIKE).numpy()
    return {
        int(row): train[near[same]].tolist()
        for row, near, same in zip(test, found.indices.numpy(), alike, strict=True)
        if same.any()
    }


def _small(images: Inputs, rows: Ints) -> Tensor:
    """Small grey images of some rows without their mean, of length 1, (n, SIDE²)."""
    out = torch.empty(len(rows), SIDE * SIDE)
    for block in blocks(len(rows), 256):
        grey = torch.from_numpy(np.asarray(images[rows[block]])).float().mean(1)
        small = torch.nn.functional.adaptive_avg_pool2d(grey, SIDE).flatten(1)
        out[block] = unit_length(small - small.mean(1, keepdim=True))
    return out
