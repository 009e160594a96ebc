"""Backends of similarities: what eager does for all, lanes in the native module, one launch in Triton."""

import torch
from torch import Tensor

from robustdml_ops.backends import native_module as module
from robustdml_ops.backends.dispatch import compute_dtype
from robustdml_ops.backends.triton_device import Launch, block_of, current, grid_of, launch, rows_are_vectors
from robustdml_ops.engine.rows.backends import NativeRows, RowsBackend, TritonRows

_LOW_WORD = 0xFFFFFFFF


class SimilarityBackend(RowsBackend):
    """Matrix of cosines, and nearest rows of a gallery: on every device, without a compiler."""

    def fused(self, X: Tensor, P: Tensor, S: Tensor, input_precision: str) -> bool:
        """S ← all cosines of X (B, D) with P (C, D) at once; False, and nothing done, where chunks are faster."""
        return False

    def search(
        self, X: Tensor, U: Tensor, first: int, excluded: Tensor | None, values: Tensor, indices: Tensor
    ) -> bool:
        """As :meth:`keep_nearest` of X·Uᵀ, products of unit rows; False, and nothing done, where tiles are faster."""
        return False

    def keep_nearest(self, S: Tensor, first: int, excluded: Tensor | None, values: Tensor, indices: Tensor) -> None:
        """Merge S (n, c), similarities with the gallery rows from ``first`` on, into the nearest so far, in place."""
        # ``values`` (n, k) descend, equal ones by ``indices`` (n, k); ``excluded`` (n,): a row each query leaves out.
        if excluded is not None:
            place = excluded[:, None] - first
            inside = (place >= 0) & (place < S.shape[1])
            place = place.clamp(0, S.shape[1] - 1)
            S.scatter_(1, place, S.gather(1, place).masked_fill_(inside, -torch.inf))
        columns = torch.arange(first, first + S.shape[1], device=S.device).expand(len(S), -1)
        merged, sources = torch.cat([values, S], 1), torch.cat([indices, columns], 1)
        order = _first_of_equal(merged, values.shape[1])
        torch.gather(merged, 1, order, out=values)
        torch.gather(sources, 1, order, out=indices)


def _first_of_equal(values: Tensor, k: int) -> Tensor:
    """Places (n, k) of the k largest of each row, in descending order; of equal ones the first come first."""
    if values.dtype != torch.float32:
        return values.sort(dim=1, descending=True, stable=True).indices[:, :k]
    # torch.topk takes equal values in any order. As integers a value and its place are one number, and none are equal.
    bits = (values + 0.0).view(torch.int32)  # −0 becomes 0
    ascending = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits).long()
    places = _LOW_WORD - torch.arange(values.shape[1], device=values.device)
    keys = torch.topk((ascending << 32) | places, k, dim=1).values
    return _LOW_WORD - (keys & _LOW_WORD)


class NativeSimilarity(NativeRows, SimilarityBackend):
    """On the CPU by lanes, see ``csrc/similarity``; on a GPU, and without a BLAS for lanes, as eager does it."""

    def fused(self, X: Tensor, P: Tensor, S: Tensor, input_precision: str) -> bool:
        compute = compute_dtype(X, P)
        if S.dtype != compute or not module.lanes_serve(P, compute, compute):
            return False
        U = X.new_empty(X.shape, dtype=compute)
        self.normalize_rows(X, U, U.new_empty(len(U)))
        suffix = module.SUFFIX[compute]
        sweep = getattr(module.library, f"Sweep_{suffix}")(**module.product_fields(U, P, len(P), normalize=True))
        getattr(module.library, f"similarity_sweep_{suffix}")(sweep, S=S.data_ptr())
        return True

    def search(
        self, X: Tensor, U: Tensor, first: int, excluded: Tensor | None, values: Tensor, indices: Tensor
    ) -> bool:
        if len(X) == 0 or not module.lanes_serve(X, X.dtype, values.dtype):
            return False
        suffix = module.SUFFIX[X.dtype]
        sweep = getattr(module.library, f"Sweep_{suffix}")(**module.product_fields(U, X, len(X), normalize=False))
        getattr(module.library, f"nearest_sweep_{suffix}")(
            sweep,
            first_column=first,
            excluded=module.address(excluded),
            k=values.shape[1],
            values=values.data_ptr(),
            indices=indices.data_ptr(),
        )
        return True


class TritonSimilarity(TritonRows, SimilarityBackend):
    """On CUDA devices; in Triton's interpreter also on the CPU."""

    def fused(self, X: Tensor, P: Tensor, S: Tensor, input_precision: str) -> bool:
        if torch.float64 in (X.dtype, P.dtype):
            return False
        import triton.language as tl

        from robustdml_ops.ops.similarity.kernels import similarity as kernel

        (B, D), C = X.shape, len(P)
        operand = X.dtype if X.dtype == P.dtype else torch.float32
        vectors = all(map(rows_are_vectors, (X, P, S)))
        parameters = similarity_launch(D, operand, input_precision, vectors)
        programs = grid_of(B, parameters["BLOCK_B"])[0] * grid_of(C, parameters["BLOCK_C"])[0]
        with current(S):
            OPERAND = getattr(tl, str(operand).removeprefix("torch."))
            kernel[(programs,)](X, P, S, B, C, *X.stride(), *P.stride(), D, OPERAND, **parameters)
        return True


def similarity_launch(D: int, operand: torch.dtype, input_precision: str, vectors: bool) -> Launch:
    """Tile of the product: 128 × 128 over eight warps; small for IEEE float32 and unaligned rows."""
    exact = operand == torch.float32 and input_precision == "ieee"
    block, num_stages = (64, 2) if exact or not vectors else (128, 3)
    BLOCK_D = 16 if exact else block_of(D, 32) if vectors else 32
    blocks = {"BLOCK_B": block, "BLOCK_C": block, "BLOCK_D": BLOCK_D, "GROUP": 8}
    return launch(**blocks, num_warps=8, num_stages=num_stages, input_precision=input_precision)


BACKENDS: dict[str, SimilarityBackend] = {
    "native": NativeSimilarity(),
    "triton": TritonSimilarity(),
    "eager": SimilarityBackend(),
}
