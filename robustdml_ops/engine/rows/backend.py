"""Unit rows and their Jacobian in plain PyTorch."""

import torch
from torch import Tensor

from robustdml_ops.engine.matrices import by_columns
from robustdml_ops.engine.rows.lengths import all_within_reach, inverse_lengths, out_of_reach, unit_rows


class RowsBackend:
    """Base class of every backend that serves a sweep; itself on every device, without a compiler."""

    # Matrices of the size of S that its epilogues make on the way, beside S.
    temporaries = 8
    # Whether its epilogues round dL/dS to the operand type, where they are given room for it.
    rounds = False

    def normalize_rows(self, P: Tensor, U: Tensor, inverse_norm: Tensor) -> bool:
        """U (n, D) = P / |P| by rows and inverse_norm (n,) = 1 / |P|; zero rows give zeros, NaN or inf NaN."""
        # True if a row may be so short that its gradient overflows; False on a GPU.
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
        """G ← (G − (G·U) U) · inverse_norm by rows, in place: the Jacobian of the normalisation."""
        unit = U.to(G.dtype)
        G.sub_((G * unit).sum(1, keepdim=True) * unit).mul_(inverse_norm[:, None])

    def reads_columns(self, P: Tensor) -> bool:
        """Whether U and G, too, have the elements of a column side by side where P has; else those of a row."""
        return by_columns(P)

    def as_they_are(self, P: Tensor, dtype: torch.dtype) -> Tensor | None:
        """P in type ``dtype`` for products that precede :meth:`inverse_norms` and :meth:`finish`; None: they need U."""
        return None

    def inverse_norms(self, P: Tensor, inverse_norm: Tensor) -> bool:
        """inverse_norm (n,) = 1 / |P| by rows; False where products of P as it is overflow or lose digits. CPU only."""
        inverse_norm.copy_(inverse_lengths(P))
        return all_within_reach(inverse_norm) or not out_of_reach(inverse_norm).any()

    def scale(self, G: Tensor, factor: Tensor) -> None:
        """G ← G · factor, in place, for an upstream gradient () that is 1 most often."""
        G.mul_(factor)

    def finish(self, G: Tensor, V: Tensor, inverse_norm: Tensor, unit: bool) -> None:
        """G ← dL/dP, in place, from dS·X; V: the unit rows, or P as multiplied, where G contains the factor 1 / |P|."""
        self.normalize_rows_backward(G, V, inverse_norm)
