"""Cosines in Triton, in one launch."""

import torch
from torch import Tensor

from robustdml_ops.backends.triton_device import Launch, block_of, current, grid_of, launch, rows_are_vectors
from robustdml_ops.engine.rows.triton import TritonRows
from robustdml_ops.ops.similarity.eager import SimilarityBackend


class TritonSimilarity(TritonRows, SimilarityBackend):
    """On CUDA devices; in Triton's interpreter also on the CPU."""

    def fused(self, X: Tensor, P: Tensor, S: Tensor, input_precision: str) -> bool:
        if torch.float64 in (X.dtype, P.dtype) or S.stride(1) != 1:
            return False
        import triton.language as tl

        from robustdml_ops.ops.similarity.kernels import similarity as kernel

        (B, D), C = X.shape, len(P)
        operand = _operand(X.dtype, P.dtype)
        vectors = all(map(rows_are_vectors, (X, P, S)))
        parameters = similarity_launch(D, operand, input_precision, vectors)
        programs = grid_of(B, parameters["BLOCK_B"])[0] * grid_of(C, parameters["BLOCK_C"])[0]
        with current(S):
            kernel[(programs,)](
                X=X,
                P=P,
                S=S,
                B=B,
                C=C,
                X_row_stride=X.stride(0),
                X_column_stride=X.stride(1),
                P_row_stride=P.stride(0),
                P_column_stride=P.stride(1),
                S_stride=S.stride(0),
                D=D,
                OPERAND=getattr(tl, str(operand).removeprefix("torch.")),
                **parameters,
            )
        return True


def _operand(x: torch.dtype, p: torch.dtype) -> torch.dtype:
    """Half precision where both are of the same one, else float32."""
    return x if x == p else torch.float32


def similarity_launch(D: int, operand: torch.dtype, input_precision: str, vectors: bool) -> Launch:
    """Tile of the product: 128 × 128 over eight warps; small for IEEE float32, threefold TF32 and unaligned rows."""
    if operand == torch.float32 and input_precision in ("ieee", "tf32x3"):
        return launch(
            BLOCK_B=64, BLOCK_C=64, BLOCK_D=16, GROUP=8, num_warps=8, num_stages=2, input_precision=input_precision
        )
    if not vectors:
        return launch(
            BLOCK_B=64, BLOCK_C=64, BLOCK_D=32, GROUP=8, num_warps=8, num_stages=2, input_precision=input_precision
        )
    return launch(
        BLOCK_B=128,
        BLOCK_C=128,
        BLOCK_D=block_of(D, 32),
        GROUP=8,
        num_warps=8,
        num_stages=3,
        input_precision=input_precision,
    )
