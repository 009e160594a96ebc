"""Cosine similarities: the matrix itself, and the nearest of it without the matrix."""

from typing import NamedTuple

import torch
from torch import Tensor

from robustdml_ops.backends.dispatch import apply_function, compute_dtype, op_in_graphs, operand_dtype, without_autocast
from robustdml_ops.engine.similarity_chunks import product
from robustdml_ops.engine.validation import (
    check_finite_candidates,
    check_finite_embeddings,
    check_matrix,
    check_same_device,
)
from robustdml_ops.ops.similarity.autograd import Similarity, chosen, unit

# Similarities at a time: queries by rows of the gallery.
_QUERIES = {"cpu": 1024, "cuda": 8192}
_GALLERY = {"cpu": 2048, "cuda": 16384}


def similarity(
    embeddings: Tensor,
    proxies: Tensor,
    *,
    dtype: torch.dtype | None = None,
    backend: str | None = None,
) -> Tensor:
    """Cosine of every embedding with every proxy, (B, C): logits, retrieval, plots. Differentiable, to any order.

    Memory is that of the result. The losses of this package never form this matrix. For the largest entries of each row
    use :func:`nearest`.

    Parameters
    ----------
    embeddings, proxies : Tensor
        (B, D) and (C, D), floating point, on one device, any scale. A zero row has cosine 0 with everything and zero
        gradient.
    dtype : torch.dtype, optional
        Of the result. None: the promoted type of the inputs, or the autocast type where autocast is on.
    backend : str, optional
        ``"native"``, ``"triton"``, ``"eager"``: that one or an error. None: the fastest that serves the device.

    Returns
    -------
    Tensor
        (B, C). Products and lengths are in float32 at least (float64 if either input is), and rounded once, at the
        end; on a GPU inputs that are both of one half precision enter the product as they are,
        float32 ones as PyTorch's setting says.

    Raises
    ------
    ValueError, TypeError
        Shapes, types or devices that do not fit; on the CPU, in backward, a row so short that its gradient overflows.

    Examples
    --------
    >>> import torch
    >>> from robustdml_ops.ops import similarity
    >>> similarity(torch.tensor([[3.0, 0.0]]), torch.tensor([[1.0, 0.0], [0.0, 2.0], [0.0, 0.0]]))
    tensor([[1., 0., 0.]])
    """
    check_matrix("embeddings", embeddings)
    check_matrix("proxies", proxies, columns=embeddings.shape[1])
    check_same_device(embeddings=embeddings, proxies=proxies)
    S: Tensor = apply_function(
        Similarity, embeddings, proxies, _result_type(embeddings, proxies, dtype), backend or "auto"
    )
    return S


def _result_type(embeddings: Tensor, proxies: Tensor, dtype: torch.dtype | None) -> torch.dtype:
    if dtype is not None:
        if not dtype.is_floating_point:
            raise ValueError(f"dtype must be a floating-point type, got {dtype}")
        return dtype
    if not embeddings.is_meta and torch.is_autocast_enabled(embeddings.device.type):
        return torch.get_autocast_dtype(embeddings.device.type)
    # The promoted type; torch.promote_types would stand in an exported graph.
    return embeddings.dtype if embeddings.dtype == proxies.dtype else compute_dtype(embeddings, proxies)


class Nearest(NamedTuple):
    """Cosines of the nearest rows and their indices, (N, k) each."""

    values: Tensor
    indices: Tensor


@torch.no_grad()
def nearest(
    queries: Tensor, gallery: Tensor, k: int, *, exclude_self: bool = False, backend: str | None = None
) -> Nearest:
    """The k rows of a gallery that each query is most similar to, by the cosine. Not differentiable.

    Memory is that of unit copies of queries and gallery, whatever N·M is.

    Parameters
    ----------
    queries, gallery : Tensor
        (N, D) and (M, D), floating point, any scale, on one device. A zero row has cosine 0 with everything.
    k : int
        From 1 to M, or to M − 1 with ``exclude_self``.
    exclude_self : bool
        Leave row i of the gallery out for query i: for a set that queries itself. Then N ≤ M.
    backend : str, optional
        ``"native"``, ``"triton"``, ``"eager"``: that one or an error. None: the fastest that serves the device.

    Returns
    -------
    Nearest
        values: (N, k), descending, in float64 if either input is, else float32. indices: (N, k) int64, rows of the
        gallery; of equal cosines the lower index comes first.

    Raises
    ------
    ValueError, TypeError
        Shapes, types or devices that do not fit, a k that the gallery can't give; on the CPU NaN or inf (on a GPU the
        result for such rows is undefined).

    Examples
    --------
    >>> import torch
    >>> from robustdml_ops.ops import nearest
    >>> X = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]])
    >>> nearest(X, X, 1, exclude_self=True)
    Nearest(values=tensor([[0.8000],
            [0.8000],
            [0.6000]]), indices=tensor([[1],
            [0],
            [1]]))
    """
    check_matrix("queries", queries)
    check_matrix("gallery", gallery, columns=queries.shape[1])
    check_same_device(queries=queries, gallery=gallery)
    if exclude_self and len(queries) > len(gallery):
        raise ValueError(
            f"exclude_self=True takes query i for row i of the gallery, and there are {len(queries)} queries for "
            f"{len(gallery)} rows: give the set itself as gallery"
        )
    largest = len(gallery) - exclude_self
    if isinstance(k, bool) or not isinstance(k, int) or not 1 <= k <= largest:
        raise ValueError(f"k must be an integer from 1 to the {largest} rows that the gallery has to give, got {k}")
    return Nearest(*_nearest(queries, gallery, k, exclude_self, backend or "auto"))


def _no_nearest(queries: Tensor, gallery: Tensor, k: int, exclude_self: bool, backend: str) -> Nearest:
    shape = (queries.shape[0], k)
    return Nearest(
        queries.new_empty(shape, dtype=compute_dtype(queries, gallery)), queries.new_empty(shape, dtype=torch.int64)
    )


@op_in_graphs("nearest", _no_nearest)
def _nearest(queries: Tensor, gallery: Tensor, k: int, exclude_self: bool, backend: str) -> tuple[Tensor, Tensor]:
    check_finite_embeddings(queries, "queries")
    device, compute = queries.device, compute_dtype(queries, gallery)
    chosen_backend = chosen(queries, gallery, backend)
    values = torch.full((len(queries), k), -torch.inf, dtype=compute, device=device)
    indices = torch.full((len(queries), k), -1, device=device)
    own = torch.arange(len(queries), device=device) if exclude_self else None
    height, width = _QUERIES.get(device.type, 1024), _GALLERY.get(device.type, 2048)
    with without_autocast(device):
        X, *_ = unit(queries, operand_dtype(compute, queries, gallery), compute, chosen_backend)
        S = X.new_empty(height * width, dtype=compute)
        for first in range(0, len(gallery), width):
            U, inverse_norm, _ = unit(gallery[first : first + width], X.dtype, compute, chosen_backend)
            check_finite_candidates(inverse_norm, "gallery[{}]", first)
            if chosen_backend.search(X, U, first, own, values, indices):
                continue
            for start in range(0, len(X), height):
                some = slice(start, min(len(X), start + height))
                tile = S[: (some.stop - start) * len(U)].view(some.stop - start, len(U))
                product(X[some], U.t(), tile)
                excluded = None if own is None else own[some]
                chosen_backend.keep_nearest(tile, first, excluded, values[some], indices[some])
    return values, indices
