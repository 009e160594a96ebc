"""Packages that a bare machine lacks: which, and how they come out of wheels that were carried along."""

import subprocess
import sys
from pathlib import Path
from typing import IO

from .machine import version

REQUIREMENTS = Path(__file__).with_name("requirements.txt")


def requirements() -> list[str]:
    """``name==version`` of each."""
    return [line for line in REQUIREMENTS.read_text().splitlines() if line and not line.startswith("#")]


def unpack(wheels: Path, site: Path, log: IO[str]) -> None:
    """Put what is not installed and has a wheel into ``site``; what has none is told by section (a)."""
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--no-compile"]
    for requirement in requirements():
        if version(requirement.partition("==")[0]) is None:
            one = [*command, "--find-links", str(wheels), "--target", str(site), requirement]
            subprocess.run(one, stdout=log, stderr=subprocess.STDOUT)
