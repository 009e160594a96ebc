"""(g) The same inputs by other libraries: time, and memory beyond inputs and gradients."""

from functools import partial

from ...shapes import Shape
from ..peers import PEERS, of_peer
from ..sheet import Sheet
from ..steps import BATCH, LARGE, LOSSES, SMALL

OURS, PML = "robustdml", "pytorch-metric-learning"
OVER_CLASSES = (
    "cross_entropy(linear)",
    "linear_cross_entropy",
    "linear_cross_entropy, chunked",
    "liger-kernel",
    "liger-kernel, sums in float32",
    "cut-cross-entropy",
    "cut-cross-entropy, all gradients",
)
# Who, at which shape, in which type, and whether torch.compile is tried as well.
ROWS: tuple[tuple[str, Shape, str, bool], ...] = (
    (f"{OURS}, proxy-anchor", LARGE, "bfloat16", False),
    (f"{OURS}, proxy-anchor", LARGE, "amp", False),
    (f"{PML}, proxy-anchor", LARGE, "amp", False),
    ("dense PyTorch, proxy-anchor", LARGE, "amp", True),
    (f"{OURS}, proxy-nca", LARGE, "bfloat16", False),
    (f"{PML}, proxy-nca", LARGE, "amp", False),
    *((name, LARGE, "bfloat16", name.startswith("cross")) for name in OVER_CLASSES),
    (f"{OURS}, proxy-nca", SMALL, "bfloat16", False),
    (f"{OURS}, proxy-anchor", SMALL, "bfloat16", False),
    *((name, SMALL, "bfloat16", name.startswith("cross")) for name in OVER_CLASSES),
    (f"{OURS}, multi-similarity", BATCH, "bfloat16", False),
    (f"{PML}, multi-similarity", BATCH, "bfloat16", False),
    (f"{OURS}, otsu", LOSSES, "float32", False),
)


def run(sheet: Sheet) -> None:
    for name, shape, dtype, compiled in ROWS:
        # In a dry run both shapes are the same small one: the variant tells the rows apart.
        size = str(shape)
        sheet.row(name, partial(of_peer, sheet, name, dtype), shape, dtype=dtype, variant=size)
        if compiled:
            whole = partial(of_peer, sheet, name, dtype, compiled=True)
            sheet.row(name, whole, shape, dtype=dtype, variant=f"{size}, compiled")


assert {name for name, *_ in ROWS} <= set(PEERS)
