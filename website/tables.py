"""Tables in Markdown, and the studies that they show."""

import json
from collections.abc import Iterable
from functools import cache
from typing import Any

from website.repository import ROOT


@cache
def stored(study: str) -> dict[str, Any]:
    """A study of ``experiments/results``; its README says what a file holds."""
    content: dict[str, Any] = json.loads((ROOT / "experiments" / "results" / f"{study}.json").read_text())
    return content


def table(titles: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Lay out a table in Markdown."""
    titles = list(titles)
    return "\n".join(f"| {' | '.join(row)} |" for row in (titles, ["---"] * len(titles), *rows))


def mean(cell: Any) -> float:
    """The mean of a cell, which may have a standard error."""
    return float(cell[0] if isinstance(cell, list) else cell)


def score(cell: Any) -> str:
    """Three decimals, and the standard error where there is one."""
    if cell is None:
        return "–"
    return f"{cell[0]:.3f} ± {cell[1]:.3f}" if isinstance(cell, list) else f"{cell:.3f}"
