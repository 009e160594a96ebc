"""How far the centres of a class lie from each other: SoftTriple's regulariser, class by class."""

import torch
from torch import Tensor

from robustdml_ops.backends.tracing import has_no_values, without_autocast
from robustdml_ops.engine.rows.lengths import all_within_reach, unit_rows


def center_spread(centers: Tensor, num_classes: int) -> Tensor:
    """Σ_k Σ_{h<h'} √(2 − 2 cos(c_kh, c_kh')) / (C·H·(H−1)), (); 0 for H = 1. Differentiable.

    The divisor counts each pair twice, as the authors' does. Two centres nearer than the type resolves, √(8ε), have
    distance 0 and do not draw each other any more: the root has no derivative there.
    """
    H = centers.shape[1]
    with without_autocast(centers.device):
        W = centers if centers.dtype == torch.float64 else centers.float()
        # From the products of the raw centres: unit ones would be copies of the largest parameter there is. But for
        # centres whose products overflow or lose their digits.
        products = W @ W.mT
        squared = products.diagonal(dim1=1, dim2=2)
        if W.device.type != "cpu" or has_no_values(W) or not all_within_reach(squared, 2):
            W = unit_rows(W.flatten(0, 1)).view(W.shape)
            products = W @ W.mT
            squared = products.diagonal(dim1=1, dim2=2)
        empty = squared == 0
        inverse_norm = torch.where(empty, 0.0, squared.masked_fill(empty, 1).rsqrt())
        upper = torch.ones(H, H, dtype=torch.bool, device=W.device).triu(1)
        apart = 2 - 2 * products * inverse_norm[:, :, None] * inverse_norm[:, None, :]
        counted = upper & (apart > 8 * torch.finfo(W.dtype).eps)
        return torch.where(counted, apart.masked_fill(~counted, 1).sqrt(), 0.0).sum() / (
            num_classes * max(1, H * (H - 1))
        )
