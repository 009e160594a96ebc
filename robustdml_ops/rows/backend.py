"""What a backend provides for rows, and the length below which a row is zero."""

from torch import Tensor

# Norms below this are zero vectors: cosine 0 with everything and no gradient, instead of a gradient of 1e12.
TINY_NORM = 1e-12


class RowsBackend:
    """Base class of every backend that serves a sweep."""

    def normalize_rows(self, P: Tensor, U: Tensor, inverse_norm: Tensor) -> None:
        """U = P / |P| by rows and inverse_norm = 1 / |P|; zero rows give zeros, rows with NaN or inf NaN.

        P (n, D) is of any floating type; U (n, D), the operand type, and inverse_norm (n,), the compute type, are out.
        """
        raise NotImplementedError

    def normalize_rows_backward(self, G: Tensor, U: Tensor, inverse_norm: Tensor) -> None:
        """G ← (G − (G·U) U) · inverse_norm by rows, in place: the Jacobian of the normalisation."""
        raise NotImplementedError

    def operand(self, P: Tensor, U: Tensor, inverse_norm: Tensor) -> Tensor:
        """What stands for the proxies P in the products: by default ``U``, filled with unit rows, so they give cosines.

        Optional: a backend may return P itself and take the norms in its step between the products, while P is warm.
        """
        self.normalize_rows(P, U, inverse_norm)
        return U

    def finish(self, G: Tensor, V: Tensor, inverse_norm: Tensor) -> None:
        """G ← dL/dP, in place, where G = dL/dSᵀ·X and V came from :meth:`operand`. Optional, as that."""
        self.normalize_rows_backward(G, V, inverse_norm)
