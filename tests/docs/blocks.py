"""The blocks of code of README, CONTRIBUTING and docs/, and the commands that stand in their lines."""

import re
import shlex
from dataclasses import dataclass

from tests.subprocesses import ROOT

PAGES = ["README.md", "CONTRIBUTING.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^( *)```(\S*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
REDIRECTION = re.compile(r"\s\d?>(?:&\d|>?\s*\S+)|\|\s*tee \S+")
INLINE = re.compile(r"(?<!`)`((?:robustdml|python -m) [^`]+)`(?!`)")


@dataclass(frozen=True)
class Block:
    """A block, and where it begins."""

    page: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def first(self) -> str:
        """Its first line, by which lists name it."""
        return self.text.strip().splitlines()[0] if self.text.strip() else ""


def read_blocks() -> list[Block]:
    """All fenced blocks, in their order."""
    found = []
    for page in PAGES:
        text = (ROOT / page).read_text()
        for match in FENCE.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            indent = len(match[1])
            code = "\n".join(each[indent:] for each in match[3].splitlines()) + "\n"
            found.append(Block(page, line, match[2], code))
    return found


def inline_commands() -> list[tuple[str, str]]:
    """Page and text of each command that stands within a line and is whole."""
    return [
        (page, " ".join(command.split()))
        for page in PAGES
        for command in INLINE.findall(FENCE.sub("", (ROOT / page).read_text()))
        if "…" not in command
    ]


def commands(text: str) -> list[list[str]]:
    """Words of each command of a shell block, without comments, settings of the environment and where output goes."""
    found = []
    for line in text.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(REDIRECTION.sub("", line), posix=True, punctuation_chars=True)
        lexer.wordchars += "@%+=:,[]{}$^!"
        words: list[str] = []
        for word in [*lexer, ";"]:
            if not set(word) <= set("();<>|&"):
                words.append(word)
                continue
            found.append(_program(words))
            words = []
    return [words for words in found if words]


def _program(words: list[str]) -> list[str]:
    """From the program on."""
    while words and re.fullmatch(r"\w+=.*", words[0]):
        words = words[1:]
    return words
