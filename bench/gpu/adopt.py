"""The winners of sections (f) and (h), written into the table of cards."""

import json
import math
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from robustdml_ops.backends.cards import DEFAULT, TABLE
from robustdml_ops.bench.suite import markdown, seconds

from . import rows
from .variants import GROUPS, PRESENT, VARIANTS, Variant

# A winner is faster than the present row by so much on (geometric) average, and on no step slower by so much: less is
# chance, and may turn round in the next run.
GAIN, LOSS = 0.02, 0.05


class NothingToAdopt(ValueError):  # noqa: N818
    """The results hold no measurements of a card; the message says why."""


def adopt(results: Sequence[dict[str, Any]], table: Path = TABLE) -> str:
    """Write the row of the architecture that was measured.

    Parameters
    ----------
    results : sequence of dict
        Rows of one run.
    table : Path
        ``cards.json``.

    Returns
    -------
    str
        What was tried in each group, and what won.

    Raises
    ------
    NothingToAdopt
        If they are of a dry run, of several architectures, or hold no variant beside the present row.
    """
    times = medians(results)
    if not times:
        raise NothingToAdopt("no variant was measured on a card: run sections f and h there, not a dry run")
    architectures = {row["machine"]["capability"] for row in results if not row["dry_run"]}
    if len(architectures) != 1 or None in architectures:
        raise NothingToAdopt(f"results of compute capabilities {sorted(map(str, architectures))}: one is wanted")
    name = "sm_" + str(*architectures).replace(".", "")
    cards = json.loads(table.read_text())
    row = cards.get(name, {})
    lines = []
    for group in GROUPS:
        scores = {variant: score(times[group, variant], times[group, PRESENT]) for variant in tried(group, times)}
        winner = best(scores)
        for variant, (mean, worst) in scores.items():
            verdict = "adopted" if variant == winner else ""
            lines.append((group, variant, f"{mean:.3f}", f"{worst:.3f}", verdict))
        if winner is not None:
            row = merged(row, variant_of(group, winner).changes)
    cards[name] = differing(row, cards[DEFAULT])
    if not cards[name]:
        del cards[name]
    table.write_text(json.dumps(cards, indent=2) + "\n")
    present = sum(sum(times[group, PRESENT].values()) for group in GROUPS)
    header = ("group", "variant", "time ÷ present", "at worst", f"row {name}")
    return f"{markdown(header, lines)}\n\n{seconds(present)} of steps by the present row; {table} written"


def medians(results: Sequence[dict[str, Any]]) -> dict[tuple[str, str], dict[str, float]]:
    """Of each variant of a group the step's time at every step that was measured as asked for."""
    found: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    letters = {letter for letter, _ in GROUPS.values()}
    for row in results:
        usable = row["status"] == rows.OK and not row["dry_run"] and "given" not in row
        if row["section"] in letters and usable:
            group, _, variant = row["variant"].partition(": ")
            found[group, variant][f"{row['name']} {row['shape']}"] = row["step_s"]
    return found


def tried(group: str, times: dict[tuple[str, str], dict[str, float]]) -> list[str]:
    """Variants that can be adopted and were measured at every step at which the present row was."""
    candidates = [variant for variant in VARIANTS if variant.group == group and not variant.graph]
    wanted = set(times[group, PRESENT])
    return [variant.name for variant in candidates if wanted and set(times[group, variant.name]) >= wanted]


def score(variant: dict[str, float], present: dict[str, float]) -> tuple[float, float]:
    """Geometric mean and largest of its times over those of the present row."""
    ratios = [variant[step] / present[step] for step in present]
    return math.exp(sum(map(math.log, ratios)) / len(ratios)), max(ratios)


def best(scores: dict[str, tuple[float, float]]) -> str | None:
    """The fastest that is clearly faster than the present row; None: that one stays."""
    eligible = {name: mean for name, (mean, worst) in scores.items() if mean <= 1 - GAIN and worst <= 1 + LOSS}
    return min(eligible, key=eligible.__getitem__, default=None)


def variant_of(group: str, name: str) -> Variant:
    (found,) = (variant for variant in VARIANTS if (variant.group, variant.name) == (group, name))
    return found


def merged(row: dict[str, Any], changes: Any) -> dict[str, Any]:
    """The row with the changes in it, tiles key by key."""
    tiles = {kernel: dict(tile) for kernel, tile in row.get("tiles", {}).items()}
    for kernel, numbers in changes.get("tiles", {}).items():
        tiles[kernel] = {**tiles.get(kernel, {}), **numbers}
    plain = {key: list(value) if isinstance(value, tuple) else value for key, value in changes.items()}
    return {**row, **plain, "tiles": tiles}


def differing(row: dict[str, Any], default: dict[str, Any]) -> dict[str, Any]:
    """What of the row the default does not say."""
    plain = {key: value for key, value in row.items() if key != "tiles" and value != default[key]}
    tiles = {
        kernel: kept
        for kernel, tile in row.get("tiles", {}).items()
        if (kept := {key: value for key, value in tile.items() if value != default["tiles"][kernel][key]})
    }
    return {**plain, **({"tiles": tiles} if tiles else {})}
