"""(j) From 10³ to 10⁷ classes, beside pytorch-metric-learning as far as it gets."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from ...shapes import Shape
from ..peers import of_peer
from ..sheet import Sheet
from ..steps import LARGE, STEPS, Inputs, flops
from ..timing import measure

CLASSES = tuple(10**k for k in range(3, 8))
PEER = "pytorch-metric-learning, proxy-anchor"


def run(sheet: Sheet) -> None:
    for classes in CLASSES:
        shape, told = replace(LARGE, C=classes), f"C={classes:.0e}".replace("e+0", "e")
        for name in ("proxy-anchor", "proxy-nca"):
            step = partial(ours, sheet, name)
            sheet.row(name, step, shape, step_down=False, dtype="bfloat16", variant=told)
        # What does not fit is the answer here.
        sheet.row(PEER, partial(of_peer, sheet, PEER, "amp"), shape, step_down=False, dtype="amp", variant=told)


def ours(sheet: Sheet, name: str, shape: Shape) -> Mapping[str, Any]:
    found = measure(STEPS[name](Inputs(shape, "bfloat16", sheet.device)), sheet.device)
    return {**found, **sheet.floor(flops(shape), "bfloat16")}
