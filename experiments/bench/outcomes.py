"""Outcomes of measurements as lines of a file, where a command that is given again goes on."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any


def resumed(
    path: Path, keys: Iterable[dict[str, Any]], measure: Callable[..., Iterable[dict[str, Any]]]
) -> list[dict[str, Any]]:
    """Outcomes of all keys: those in the file, and those of ``measure(**key)``, which are added to it."""
    done = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    outcomes = []
    for key in keys:
        found = [one for one in done if key.items() <= one.items()]
        if not found:
            found = [key | one for one in measure(**key)]
            with path.open("a") as file:
                file.writelines(json.dumps(one) + "\n" for one in found)
        outcomes += found
    return outcomes
