"""Row-wise Adagrad as FBGEMM publishes it: ``EXACT_ROWWISE_ADAGRAD``, weight decay in the L2 form.

For row i with gradient G_i over D elements, g_i = G_i + λ P_i:

    a_i ← a_i + (1/D) Σ_d g_id²,    P_id ← P_id − η / (√a_i + ε) · g_id

With ``radians``, an extension, a_i adds up |h_i|² of the gradient h_i = |P_i| g_i of the row of length 1, P_i/|P_i|,
whose step −η / (√a_i + ε) · h_i is multiplied by |P_i|.
"""

import torch
from torch import Tensor


def row_wise_adagrad(
    P: Tensor, total: Tensor, G: Tensor, *, lr: float, eps: float, weight_decay: float = 0.0, radians: bool = False
) -> tuple[Tensor, Tensor]:
    """P (C, D) and the sums a (C,) after one step with the gradient G (C, D).

    FBGEMM writes the step as ``correction * P − multiplier * G`` with multiplier = η / (√a + ε) and correction =
    1 − multiplier · λ, which is the same.

    Source: pytorch/FBGEMM, ``fbgemm_gpu/codegen/genscript/optimizers.py``, ``rowwise_adagrad``.

    Examples
    --------
    >>> P, total = row_wise_adagrad(torch.zeros(1, 2), torch.zeros(1), torch.tensor([[3.0, 4.0]]), lr=1.0, eps=0.0)
    >>> P, total  # the mean of 9 and 16; a step of g over its root
    (tensor([[-0.8485, -1.1314]]), tensor([12.5000]))
    """
    P, total = P.clone(), total.clone()
    for i in range(len(P)):
        g = G[i] + weight_decay * P[i]
        if radians:
            length = P[i].norm()
            h = length * g
            total[i] += h.norm() ** 2
            P[i] = length * (P[i] / length - lr / (torch.sqrt(total[i]) + eps) * h)
            continue
        total[i] += (g * g).sum() / P.shape[1]
        multiplier = lr / (torch.sqrt(total[i]) + eps)
        correction = 1.0 - multiplier * weight_decay
        P[i] = correction * P[i] - multiplier * G[i]
    return P, total
