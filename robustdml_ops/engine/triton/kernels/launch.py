"""Launch parameters: a shipped table, no tuning at run time, so that every rank and every run sums in the same order.

Sizes are chosen from what the compiler reports for sm_80, 90 and 100: no spills, shared memory within the limits. They
are not tuned on a device.
"""

from typing import TypeAlias

import torch

Launch: TypeAlias = dict[str, int | bool | str]


def rows(D: int) -> Launch:
    """Normalisation of rows: 2048 elements a program, 16 a thread, whole rows up to D = 1024."""
    BLOCK_D = _block(D, 1024)
    return _launch(BLOCK_R=2048 // BLOCK_D, BLOCK_D=BLOCK_D, num_warps=4, num_stages=1)


def anchor_lse(B: int, compute: torch.dtype, labels: bool, anchors_contiguous: bool) -> Launch:
    """Tile of the epilogue: 16 elements of S a thread, half as many with confidences, a quarter in float64: registers.

    The second pass over the rows of a program finds them in L1. Few rows a program fill the GPU with chunks of a few
    thousand anchors. Confidences stored as (B, C) are contiguous over the anchors: 16 anchors make whole 32-byte
    sectors of them.
    """
    BLOCK_B = _block(B, 64 if anchors_contiguous else 256)
    elements = 512 if compute == torch.float64 else 2048 if labels else 1024
    return _launch(BLOCK_C=elements // BLOCK_B, BLOCK_B=BLOCK_B, num_warps=4, num_stages=1)


def fused_anchor_lse(B: int, D: int, operand: torch.dtype, labels: bool, input_precision: str, hopper: bool) -> Launch:
    """Tile of the fused forward.

    Up to D = 128 a tile holds whole rows of proxies: they are read and normalised once and meet the whole batch. Longer
    rows come in steps of 32 columns, again for every tile of candidates. With labels and half-precision operands Hopper
    has room for the exponentials beside 64 accumulators a thread: square tiles for whole rows, wide ones where rows are
    read again. Elsewhere, and with confidences or TF32 operands, registers allow half or a quarter of that.
    IEEE float32 runs on the ordinary cores, where small tiles keep the operands in registers.
    """
    if operand == torch.float32 and input_precision == "ieee":
        return _launch(BLOCK_C=64, BLOCK_B=64, BLOCK_D=16, num_warps=4, num_stages=2, input_precision=input_precision)
    anchors, candidates = 64, 64
    if labels and operand.itemsize == 2:
        anchors, candidates = ((128, 128) if D <= 128 else (64, 256)) if hopper else (64, 128)
    return _launch(
        BLOCK_C=anchors,
        BLOCK_B=_block(B, candidates),
        BLOCK_D=_block(D, 128) if D <= 128 else 32,
        num_warps=8,
        num_stages=3 if operand.itemsize == 2 else 2,
        input_precision=input_precision,
    )


def class_lse(B: int, compute: torch.dtype) -> Launch:
    """Tile of both epilogues: 8 elements of S a thread, as many shifts and sums beside them; 4 in float64.

    Wider than 64 samples, pooling by softmax spills on sm_100.
    """
    BLOCK_B = _block(B, 64)
    elements = 512 if compute == torch.float64 else 1024
    return _launch(BLOCK_C=elements // BLOCK_B, BLOCK_B=BLOCK_B, num_warps=4, num_stages=1)


def add_partials(parts: int) -> Launch:
    """Narrow tiles: a batch of 256 makes 16 programs, and each of them has every part at hand at once."""
    return _launch(BLOCK_P=_block(parts, 128), BLOCK_B=16, num_warps=4, num_stages=1)


def fused_class_lse(B: int, D: int, operand: torch.dtype, pooled: bool, input_precision: str) -> Launch:
    """Tile of the fused forward.

    A shift and a sum stay in registers for every place of the tile, beside the accumulator and what pooling holds. Up
    to D = 128 the embeddings of a program stay, too, and only proxies stream past them. Without pooling and with
    half-precision operands there is room for 128 classes.
    """
    if operand == torch.float32 and input_precision == "ieee":
        return _launch(BLOCK_C=64, BLOCK_B=32, BLOCK_D=16, num_warps=4, num_stages=2, input_precision=input_precision)
    return _launch(
        BLOCK_C=64 if pooled or operand == torch.float32 else 128,
        BLOCK_B=_block(B, 64),
        BLOCK_D=_block(D, 128) if D <= 128 else 32,
        num_warps=8,
        num_stages=2,
        input_precision=input_precision,
    )


def pairs(m: int, compute: torch.dtype) -> Launch:
    """Tile of the epilogues on pairs: 8 elements of S a thread beside four accumulators of as many, half in float64.

    Short rows share a program. A long one has a program of its own: chunks of few rows are then spread over the GPU.
    """
    elements = 512 if compute == torch.float64 else 1024
    BLOCK_M = _block(m, elements)
    return _launch(BLOCK_R=elements // BLOCK_M, BLOCK_M=BLOCK_M, num_warps=4, num_stages=1)


def otsu(n: int) -> Launch:
    """A row a program, 8 values a thread: their 64-bit sums fill the registers."""
    BLOCK = 1 << max(4, (n - 1).bit_length())
    return _launch(BLOCK=BLOCK, num_warps=max(1, BLOCK // 256), num_stages=1)


def _block(size: int, largest: int) -> int:
    """Return the power of two that holds ``size``, from 16 (the shortest side of a matrix product) to ``largest``."""
    return min(largest, max(16, 1 << (size - 1).bit_length()))


def _launch(**parameters: int | bool | str) -> Launch:
    # Fused multiply-adds are asked for by name: their default differs between Triton's releases, and with it the bits.
    return {**parameters, "enable_fp_fusion": True}
