"""Unit rows, their Jacobian, and log-sum-exps beside a 1 by rows, in plain PyTorch."""

import torch
from torch import Tensor

from robustdml_ops.engine.rows.backend import RowsBackend, by_columns
from robustdml_ops.engine.rows.lengths import all_within_reach, inverse_lengths, out_of_reach, unit_rows


class EagerRows(RowsBackend):
    """On every device, without a compiler."""

    temporaries = 8

    def reads_columns(self, P: Tensor) -> bool:
        return by_columns(P)

    def normalize_rows(self, P: Tensor, U: Tensor, inverse_norm: Tensor) -> bool:
        rows = P.to(inverse_norm.dtype)
        inverse_norm.copy_(inverse_lengths(rows))
        U.copy_(rows * inverse_norm[:, None])
        if P.device.type != "cpu" or all_within_reach(inverse_norm):
            return False
        # 1 / |p| alone may be a number of few digits, or none.
        far = out_of_reach(inverse_norm)
        U[far] = unit_rows(rows[far]).to(U.dtype)
        return True

    def normalize_rows_backward(self, G: Tensor, U: Tensor, inverse_norm: Tensor) -> None:
        unit = U.to(G.dtype)
        G.sub_((G * unit).sum(1, keepdim=True) * unit).mul_(inverse_norm[:, None])


def log_one_plus_sum(exponent: Tensor, lse: Tensor) -> Tensor:
    """Lse ← log(1 + Σ exp(exponent)) by rows; returns the weights exp(exponent) / (1 + Σ), in the place of exponent."""
    shift = exponent.amax(1, keepdim=True).clamp_(min=0)
    weight = exponent.sub_(shift).exp_()
    total = weight.sum(1, keepdim=True)
    one = shift.neg().exp_()
    # log1p where nothing was shifted: a sum far below 1 must not be rounded away.
    value = torch.where(shift == 0, total.log1p(), shift + (one + total).log())
    lse.copy_(value[:, 0])
    return weight.div_(one + total)
