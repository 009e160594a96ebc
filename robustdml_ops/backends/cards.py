"""Measured settings of each kind of GPU: order of backends, size of chunks, tiles of Triton's kernels; docs/gpu.md."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

TABLE = Path(__file__).with_name("cards.json")
DEFAULT = "default"


@dataclass(frozen=True)
class Card:
    """A row of the table: one field for each key."""

    backends: tuple[str, ...]  # fastest first
    chunk_least_mb: int  # a chunk takes 1 / chunk_share of the card's memory, at least and at most so many megabytes
    chunk_most_mb: int
    chunk_share: int
    saved_share: int  # what forward saves for backward takes at most 1 / saved_share of the card's memory
    fused_columns: int | None  # embedding sizes up to this one take the fused forward; None: all that it serves
    fused_steps: bool  # whether planned steps make the first product and its exponentials in one kernel
    tiles: Mapping[str, Mapping[str, int]]  # by kernel


def read(table: Path = TABLE) -> dict[str, Card]:
    """All rows of a table, each made whole by the default."""
    rows: dict[str, dict[str, Any]] = json.loads(table.read_text())
    default, cards = rows[DEFAULT], {}
    for name, row in rows.items():
        changed, known = row.get("tiles", {}), default["tiles"]
        unknown = {(kernel, key) for kernel, tile in changed.items() for key in tile if key not in known[kernel]}
        if unknown:
            raise ValueError(f"cards.json: no tile of the default row has {sorted(unknown)}")
        whole = {**default, **row, "tiles": {kernel: {**known[kernel], **changed.get(kernel, {})} for kernel in known}}
        cards[name] = Card(**{**whole, "backends": tuple(whole["backends"])})
    return cards


CARDS = read()


def card(device: torch.device) -> Card:
    """The row that serves ``device``."""
    return CARDS.get(architecture(device), CARDS[DEFAULT])


@cache
def architecture(device: torch.device) -> str:
    """``sm_90`` of an H100; the default where kernels are not run by NVIDIA's."""
    if device.type != "cuda" or torch.version.cuda is None:
        return DEFAULT
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm_{major}{minor}"
