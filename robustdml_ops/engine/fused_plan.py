"""Planned steps whose first product and exponentials are one kernel: where they serve, and its launch."""

import torch
from torch import Tensor

from robustdml_ops.backends import triton_device as device
from robustdml_ops.backends.cards import card
from robustdml_ops.backends.dispatch import passes_self_check
from robustdml_ops.backends.triton_launch import Launch
from robustdml_ops.engine.gpu_plan import Common, Place

# Sums without a shift of exponents up to here, times a batch or the number of classes, are within half of the range of
# float32 and of bfloat16, and so are their quotients.
LARGEST_EXPONENT = 44.0
OPERANDS: tuple[torch.dtype, ...] = (torch.bfloat16,)  # float32 would have half the tile
STEPS = dict.fromkeys(("triton", "eager"), "steps")  # backends of the self-check of these steps
ALIGNED = 16  # bytes, of rows and of their memory, that a tensor descriptor reads


def fused_serves(common: Common, P: Tensor, columns: bool) -> bool:
    """Whether the card's table asks for these steps, the kernel reads the matrices, and its self-check passes.

    ``columns``: whether it reads proxies by columns, too.
    """
    if not card(common.device).fused_steps or common.operand not in OPERANDS:
        return False
    (B, C, D), across = common.shape, reads_across(common, P)
    whole = all(length * common.operand.itemsize % ALIGNED == 0 for length in ((D, C) if across else (D,)))
    # Masks of a ragged end that is no multiple of 16 samples take more registers than there are.
    return whole and B % 16 == 0 and columns >= across and passes_self_check(STEPS, common.device, "fused")


def reads_across(common: Common, P: Tensor) -> bool:
    """Whether the kernel reads proxies as they are, of which a column's elements lie side by side."""
    return common.as_they_are and P.stride(1) != 1


def aligned(common: Common, P: Tensor) -> bool:
    """Whether the memory of the proxies begins where a tensor descriptor reads; unit rows have memory of their own."""
    return not common.as_they_are or P.data_ptr() % ALIGNED == 0


def parts_of(common: Common, P: Tensor) -> tuple[int, int]:
    """Parts of the classes of a chunk in sums of samples, and class blocks of a part: a program for each part."""
    B, tile = common.shape[0], device.tile_of("fused_terms", P)
    blocks = -(-common.rows // tile["columns"])
    most = max(1, tile["programs"] // -(-B // tile["rows"]))
    per_part = -(-blocks // most)
    return -(-blocks // per_part), per_part


def fused_launch(common: Common, P: Tensor, place: Place, by_class: bool, numbers: dict[str, float]) -> Launch:
    """Terms and sums of a chunk; ``numbers``: scale, and unit, or height and share, as the kernel has them."""
    from robustdml_ops.engine.fused_kernels import fused_terms as kernel

    (B, _, D), tile = common.shape, device.tile_of("fused_terms", P)
    rows, columns = tile["rows"], tile["columns"]
    BLOCK_C, BLOCK_B = (rows, columns) if by_class else (columns, rows)
    parts, per_part = (1, 1) if by_class else parts_of(common, P)
    items = -(-place.classes // BLOCK_C) if by_class else -(-B // BLOCK_B) * parts
    of_classes = ("bias", "factors", "scaled", "totals")
    tensors: tuple[str, ...] = ("V", "X", "inverse_norm", "labels", "sums", "E", *(of_classes if by_class else ()))
    across = reads_across(common, P)
    row_stride = D if not common.as_they_are else P.stride(1) if across else P.stride(0)
    fixed = {
        **dict.fromkeys(() if by_class else of_classes),
        **{"c": place.classes, "B": B, "D": D, "row_stride": row_stride},
        **{"first": place.first, "first_place": place.first_place, "parts": parts, "per_part": per_part},
        **{"unit": 0.0, "height": 0.0, "share": 0.0, **numbers},
        **{"BY_CLASS": by_class, "AS_THEY_ARE": common.as_they_are, "COLUMNS": across},
        **device.launch(BLOCK_C=BLOCK_C, BLOCK_B=BLOCK_B, BLOCK_D=device.block_of(D, tile["depth"])),
        **{"num_warps": tile["num_warps"], "num_stages": tile["num_stages"]},
    }
    return Launch(kernel, (min(items, tile["programs"]),), tensors, fixed)
