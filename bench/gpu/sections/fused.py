"""(h) One fused kernel against the sweep that writes its similarities, by embedding size and tile."""

from ..sheet import Sheet
from ..variants import measure_groups


def run(sheet: Sheet) -> None:
    measure_groups(sheet)
