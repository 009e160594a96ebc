"""Cosine similarities, materialised on purpose."""

import torch
from torch import Tensor

from robustdml_ops.engine.eager.rows import TINY_NORM
from robustdml_ops.ops.validation import check_matrix, check_same_device


def similarity(embeddings: Tensor, proxies: Tensor) -> Tensor:
    """Cosine of every embedding with every proxy, (B, C): logits, retrieval, plots. Differentiable.

    The losses of this package never form this matrix; it is for those who want it.

    Parameters
    ----------
    embeddings, proxies : Tensor
        (B, D) and (C, D), floating point, on one device, any scale. A zero row has cosine 0 with everything and zero
        gradient.

    Returns
    -------
    Tensor
        (B, C), in the promoted type of the inputs, or the autocast type where autocast is on.

    Raises
    ------
    ValueError, TypeError
        Shapes, types or devices that do not fit.

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
    dtype = torch.promote_types(embeddings.dtype, proxies.dtype)
    return unit_rows(embeddings.to(dtype)) @ unit_rows(proxies.to(dtype)).t()


def unit_rows(rows: Tensor) -> Tensor:
    """Rows scaled to length 1; zero rows stay zero, and so does their gradient."""
    norm: Tensor = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    return rows / norm.masked_fill(norm < TINY_NORM, torch.inf)
