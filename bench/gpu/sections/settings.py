"""(f) Chunk size, backend, tile and graph: every variant of the present row of the table of cards."""

from ..sheet import Sheet
from ..variants import measure_groups


def run(sheet: Sheet) -> None:
    measure_groups(sheet)
