"""Questions: copies, two classes that may be one, and one that may be two."""

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from robustdml.arrays import Floats, Ints, Labels
from robustdml.audit.classes import ClassDoubts
from robustdml.audit_report.findings import COPY, MERGE, SPLIT, Finding
from robustdml.data.dataset import Samples

# Questions of a kind in the page, and pictures on each of their sides.
MOST_QUESTIONS, PICTURES = 500, 6
# Copies of one image that are shown.
MOST_COPIES = 20
BETWEEN_CLASSES, BETWEEN_PARTS = "Copies under different labels", "Images in both train and test"
IN_A_CLASS = "Copies in one class"

Sides: TypeAlias = dict[str, list[int]]


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


def ask(samples: Samples, findings: list[Finding], quality: Floats, doubts: ClassDoubts, copies: Ints) -> list[Section]:
    """Ask about copies and about the classes in doubt; the samples shown are those of best quality."""
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
    about = "Without a decision apply keeps all."
    kinds = copies_by_kind(samples, copies)
    if not samples.parts:
        del kinds[BETWEEN_PARTS]
    asked = [Section(kind, about, [_is_copy(findings, one) for one in found], True) for kind, found in kinds.items()]
    return [*asked, *sections]


def copies_by_kind(samples: Samples, copies: Ints) -> dict[str, list[Sides]]:
    """Groups of copies by kind, each with its rows by class or part; a group of several kinds is of the first one."""
    labels, parts = samples.labels_by_name(), samples.parts
    found: dict[str, list[Sides]] = {BETWEEN_CLASSES: [], BETWEEN_PARTS: [], IN_A_CLASS: []}
    order = np.argsort(copies, kind="stable")
    for rows in np.split(order, np.flatnonzero(np.diff(copies[order])) + 1):
        if copies[rows[0]] < 0:
            continue
        members = rows[:MOST_COPIES].tolist()
        if len({labels[row] for row in members}) > 1:
            kind, key = BETWEEN_CLASSES, labels
        elif parts and len({parts[row] for row in members}) > 1:
            kind, key = BETWEEN_PARTS, list(parts)
        else:
            kind, key = IN_A_CLASS, [""] * len(labels)
        sides: Sides = {}
        for row in members:
            sides.setdefault(key[row], []).append(row)
        found[kind].append(sides)
    return {kind: groups[:MOST_QUESTIONS] for kind, groups in found.items()}


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
    evidence = (
        f"Neighbours are of the other class at least {mixing:.0%} as often as of their own, in relation to the sizes."
    )
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


def _is_copy(findings: list[Finding], sides: Sides) -> Question:
    rows = [row for members in sides.values() for row in members]
    names = ", ".join(findings[row].sample for row in rows)
    kept = list(sides.items()) if len(sides) > 1 else [("the first", rows[:1])]
    choices = [
        Choice(
            f"keep {'' if len(sides) == 1 else 'in '}{side}",
            f"apply leaves out {len(rows) - len(members)} of {len(rows)} copies",
            [(findings[row].sample, "", COPY, "") for row in rows if row not in members],
        )
        for side, members in kept
    ]
    choices.append(Choice("keep all", "apply keeps all", []))
    return Question(
        f"copy {findings[rows[0]].sample}", [(side or "copies", of) for side, of in sides.items()], names, choices
    )
