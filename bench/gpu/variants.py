"""What sections (f) and (h) try. A new variant is one line of VARIANTS: it changes fields of a row of cards.json."""

import contextlib
import dataclasses
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch

from robustdml_ops.backends import cards
from robustdml_ops.backends.choice import UNAVAILABLE

from ..shapes import Shape
from .sheet import Absent, Sheet
from .steps import BATCH, LARGE, SMALL, STEPS, Inputs, flops
from .timing import graphed, measure

PRESENT = "present"


@dataclass(frozen=True)
class Variant:
    """A row of the table of cards that says something else."""

    group: str
    name: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    graph: bool = False  # the step as one CUDA graph: for reading, as no row of the table can ask for it


def tile(kernel: str, name: str, **numbers: int) -> Variant:
    """Of one kernel, in the group of its name."""
    return Variant(f"tile of {kernel}", name, {"tiles": {kernel: numbers}})


# Which steps tell the variants of a group apart, and the section that measures them.
GROUPS: dict[str, tuple[str, tuple[tuple[str, Shape], ...]]] = {
    "backends": ("f", (("proxy-anchor", LARGE), ("proxy-nca", LARGE), ("proxy-nca", SMALL),
                       ("multi-similarity", BATCH))),
    "chunk": ("f", (("proxy-anchor", LARGE), ("proxy-nca", LARGE), ("proxy-nca", SMALL))),
    "graph": ("f", (("proxy-anchor", SMALL), ("proxy-nca", SMALL), ("proxy-anchor", LARGE))),
    "tile of anchor_lse": ("f", (("proxy-anchor", LARGE), ("proxy-anchor", SMALL))),
    "tile of class_lse": ("f", (("proxy-nca", LARGE), ("proxy-nca", SMALL))),
    "tile of pairs": ("f", (("multi-similarity", BATCH),)),
    "tile of rows": ("f", (("proxy-anchor", LARGE), ("proxy-anchor", SMALL))),
    "forward": ("h", tuple((step, Shape(1024, 10**5, D)) for step in ("anchor forward", "class forward")
                           for D in (64, 128, 256, 512))),
    "tile of fused_anchor_lse": ("h", (("anchor forward", SMALL), ("anchor forward", Shape(1024, 10**5, 512)))),
    "tile of fused_class_lse": ("h", (("class forward", SMALL), ("class forward", Shape(1024, 10**5, 512)))),
}  # fmt: skip

VARIANTS = (
    Variant("backends", "native", {"backends": ("native", "triton", "eager")}),
    Variant("backends", "eager", {"backends": ("eager", "triton", "native")}),
    Variant("chunk", "64 MB", {"chunk_least_mb": 64, "chunk_most_mb": 64}),
    Variant("chunk", "256 MB", {"chunk_most_mb": 256}),
    Variant("chunk", "512 MB", {"chunk_most_mb": 512}),
    Variant("chunk", "2 GB", {"chunk_most_mb": 2048, "chunk_share": 32}),
    Variant("chunk", "4 GB", {"chunk_most_mb": 4096, "chunk_share": 16}),
    Variant("graph", "graph", graph=True),
    Variant("graph", "graph, native", {"backends": ("native", "triton", "eager")}, graph=True),
    Variant("graph", "graph, chunks of 256 MB", {"chunk_most_mb": 256}, graph=True),
    tile("anchor_lse", "1024 elements", elements=1024),
    tile("anchor_lse", "4096 elements", elements=4096),
    tile("anchor_lse", "wide", candidates=512),
    tile("anchor_lse", "8 warps", num_warps=8),
    tile("class_lse", "512 elements", elements=512),
    tile("class_lse", "2048 elements", elements=2048),
    tile("class_lse", "8 warps", num_warps=8),
    tile("pairs", "2048 elements", elements=2048),
    tile("pairs", "8 warps", elements=2048, num_warps=8),
    tile("rows", "4096 elements", elements=4096),
    tile("rows", "8 warps", elements=4096, num_warps=8),
    Variant("forward", "sweep", {"fused_columns": 0}),
    Variant("forward", "fused up to 128", {"fused_columns": 128}),
    Variant("forward", "fused up to 256", {"fused_columns": 256}),
    tile("fused_anchor_lse", "64 × 128", anchors=64, candidates=128, long_anchors=64, long_candidates=128),
    tile("fused_anchor_lse", "128 × 64", anchors=128, candidates=64, long_anchors=128, long_candidates=128),
    tile("fused_anchor_lse", "64 × 64", anchors=64, candidates=64, long_anchors=64, long_candidates=64, num_warps=4),
    tile("fused_class_lse", "64 × 64", classes=64),
    tile("fused_class_lse", "64 × 64, 4 warps", classes=64, num_warps=4),
)


def of_group(group: str) -> list[Variant]:
    """The present row first."""
    return [Variant(group, PRESENT), *(variant for variant in VARIANTS if variant.group == group)]


def changed(card: cards.Card, changes: Mapping[str, Any]) -> cards.Card:
    """The card, with tiles changed key by key."""
    tiles = {kernel: {**numbers, **changes.get("tiles", {}).get(kernel, {})} for kernel, numbers in card.tiles.items()}
    return dataclasses.replace(card, **{**changes, "tiles": tiles})


@contextlib.contextmanager
def applied(changes: Mapping[str, Any], device: torch.device) -> Iterator[None]:
    """Let the card's row say so within; without a GPU its first backend is asked for by name."""
    row = changed(cards.card(device), changes)
    reason = UNAVAILABLE[row.backends[0]](device, torch.float32)
    if reason is not None:
        raise Absent(f"{row.backends[0]}: {reason}")
    environment = {} if device.type == "cuda" else {"ROBUSTDML_BACKEND": row.backends[0]}
    with mock.patch.dict(cards.CARDS, {cards.architecture(device): row}), mock.patch.dict(os.environ, environment):
        yield


def measure_groups(sheet: Sheet) -> None:
    """Every variant of the section's groups, at every step of its group."""
    for group, (letter, steps) in GROUPS.items():
        if letter == sheet.letter:
            for name, shape in steps:
                for variant in of_group(group):
                    _measure(sheet, variant, name, shape)


def _measure(sheet: Sheet, variant: Variant, name: str, shape: Shape) -> None:
    def facts(given: Shape) -> dict[str, Any]:
        if variant.graph and sheet.device.type != "cuda":
            raise Absent("no CUDA device: nothing to capture")
        with applied(variant.changes, sheet.device):
            step = STEPS[name](Inputs(given, "bfloat16", sheet.device))
            found = measure(graphed(step) if variant.graph else step, sheet.device)
        return {**found, **sheet.floor(flops(given, gradients=bool(step.leaves)), "bfloat16")}

    sheet.row(name, facts, shape, dtype="bfloat16", variant=f"{variant.group}: {variant.name}")
