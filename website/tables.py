"""The tables of a Markdown file, and the quantities in their cells."""

import re
from collections.abc import Iterator
from pathlib import Path

SECONDS = {"s": 1.0, "ms": 1e-3, "µs": 1e-6}
Row = dict[str, str]


def sections(path: Path) -> dict[str, list[Row]]:
    """Read all tables.

    Parameters
    ----------
    path : Path
        The file.

    Returns
    -------
    dict
        By the headings above it, joined by " / ", the rows of what stands there: cells by the title of their column,
        the second column of a title with " (2)" behind it.
    """
    found: dict[str, list[Row]] = {}
    headings: list[str] = []
    titles: list[str] | None = None
    for line in path.read_text().splitlines():
        heading = re.match(r"(#+) (.*)", line)
        if heading:
            headings = [*headings[: len(heading[1]) - 1], heading[2]]
        if not line.startswith("|"):
            titles = None
            continue
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if titles is None:
            titles = [
                f"{cell} ({cells[:i].count(cell) + 1})" if cell in cells[:i] else cell for i, cell in enumerate(cells)
            ]
        elif not set(line) <= set("|-: "):
            found.setdefault(" / ".join(headings), []).append(dict(zip(titles, cells, strict=True)))
    return found


def seconds(cell: str) -> float:
    """Read a time, such as `1.44 s`.

    Parameters
    ----------
    cell : str
        Number and unit.

    Returns
    -------
    float
        In seconds.
    """
    number, unit = cell.split()
    return float(number) * SECONDS[unit]


def megabytes(cell: str) -> float:
    """Read an amount of memory, such as `1,061 MB`.

    Parameters
    ----------
    cell : str
        Number and unit.

    Returns
    -------
    float
        In megabytes.
    """
    number, unit = cell.split()
    if unit != "MB":
        raise ValueError(f"{cell}: expected MB")
    return float(number.replace(",", ""))


def mean(cell: str) -> float:
    """Read a mean, with its standard error or without.

    Parameters
    ----------
    cell : str
        Such as `0.969 ± 0.001`.

    Returns
    -------
    float
        The mean.
    """
    return float(cell.split("±")[0])


def interval(cell: str) -> Iterator[float]:
    """Read the ends of an interval, such as `[1.31, 2.17]`."""
    return map(float, cell.strip("[]").split(","))
