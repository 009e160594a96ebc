"""Cosine similarities: the matrix itself, and the nearest of it without the matrix."""

import torch
from torch import Tensor

from robustdml_ops.engine.autograd_functions import apply_function
from robustdml_ops.engine.precision import compute_dtype
from robustdml_ops.engine.validation import check_matrix, check_same_device
from robustdml_ops.ops.similarity.autograd import Similarity, chosen
from robustdml_ops.ops.similarity.nearest import Nearest, nearest
from robustdml_ops.ops.similarity.sweep import similarity_sweep

__all__ = ["Nearest", "nearest", "similarity"]


def similarity(
    embeddings: Tensor,
    proxies: Tensor,
    *,
    dtype: torch.dtype | None = None,
    out: Tensor | None = None,
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
    out : Tensor, optional
        (B, C) of type ``dtype``, to write into; not differentiable.
    backend : str, optional
        ``"native"``, ``"triton"``, ``"eager"``: that one or an error. None: the fastest that serves the device.

    Returns
    -------
    Tensor
        (B, C); ``out`` where that is given. Products and lengths are in float32 at least (float64 if either input is),
        and rounded once, at the end; on a GPU inputs that are both of one half precision enter the product as they are,
        float32 ones as PyTorch's setting or ``robustdml_ops.engine.precision.set_float32_products`` says.

    Raises
    ------
    ValueError, TypeError
        Shapes, types or devices that do not fit; an ``out`` with inputs that require a gradient; on the CPU, in
        backward, a row so short that its gradient overflows.

    Examples
    --------
    >>> import torch
    >>> from robustdml_ops.ops import similarity
    >>> similarity(torch.tensor([[3.0, 0.0]]), torch.tensor([[1.0, 0.0], [0.0, 2.0], [0.0, 0.0]]))
    tensor([[1., 0., 0.]])
    """
    check_matrix("embeddings", embeddings)
    check_matrix("proxies", proxies, columns=embeddings.shape[1])
    check_same_device(embeddings=embeddings, proxies=proxies, out=out)
    dtype = _result_type(embeddings, proxies, dtype, out)
    if out is None:
        S: Tensor = apply_function(Similarity, embeddings, proxies, dtype, backend or "auto")
        return S
    expected = (len(embeddings), len(proxies))
    if out.shape != expected or out.dtype != dtype:
        raise ValueError(f"out must have shape {expected} and type {dtype}, got {tuple(out.shape)} of {out.dtype}")
    if torch.is_grad_enabled() and (embeddings.requires_grad or proxies.requires_grad):
        raise ValueError(
            "out is given and embeddings or proxies require a gradient: leave out away, or call under torch.no_grad()"
        )
    with torch.no_grad():
        similarity_sweep(embeddings, proxies, out, chosen(embeddings, proxies, backend or "auto"))
    return out


def _result_type(embeddings: Tensor, proxies: Tensor, dtype: torch.dtype | None, out: Tensor | None) -> torch.dtype:
    dtype = out.dtype if dtype is None and out is not None else dtype
    if dtype is not None:
        if not dtype.is_floating_point:
            raise ValueError(f"dtype must be a floating-point type, got {dtype}")
        return dtype
    if not embeddings.is_meta and torch.is_autocast_enabled(embeddings.device.type):
        return torch.get_autocast_dtype(embeddings.device.type)
    # The promoted type; torch.promote_types would stand in an exported graph.
    return embeddings.dtype if embeddings.dtype == proxies.dtype else compute_dtype(embeddings, proxies)
