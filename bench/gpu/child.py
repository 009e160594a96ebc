"""One section in this process: ``python -m bench.gpu.child LETTER OUT RUN SECONDS [--dry-run]``, started by the run."""

import importlib
import sys
from pathlib import Path

from .plan import SECTIONS
from .sheet import Sheet


def main(letter: str, out: str, run: str, seconds: str, *flags: str) -> None:
    """Run it to its end."""
    (section,) = (section for section in SECTIONS if section.letter == letter)
    sheet = Sheet(letter, Path(out), run, float(seconds), "--dry-run" in flags)
    importlib.import_module(f"{__package__}.sections.{section.module}").run(sheet)


if __name__ == "__main__":
    main(*sys.argv[1:])
