"""What an audit asks about classes: may two be one, may one be two, and are samples of the test part in training."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Choice:
    """An answer, what `robustdml apply` does then, and its lines of ``decisions.csv``."""

    text: str
    effect: str
    lines: list[tuple[str, str, str, str]]  # By `decisions.COLUMNS`


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
