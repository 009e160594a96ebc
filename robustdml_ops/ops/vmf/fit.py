"""The von Mises–Fisher distribution that fits a class, from the sum and the number of its unit vectors."""

from typing import NamedTuple

import torch
from torch import Tensor

from robustdml_ops.backends.dispatch import choose, has_no_values, op_in_graphs
from robustdml_ops.engine.validation import (
    all_finite,
    check_choice,
    check_elements,
    check_matrix,
    check_same_device,
    check_tensor,
)
from robustdml_ops.ops.vmf.backends import BACKENDS
from robustdml_ops.ops.vmf.problem import BIAS_CORRECTIONS, ESTIMATORS, FitProblem, Fitted

_TINY_SUM = 1e-12  # a shorter sum of unit vectors is rounding error and has no direction


class VonMisesFisher(NamedTuple):
    """One distribution per class."""

    mean_direction: Tensor  # (C, D), unit rows; zero where the sum is
    kappa: Tensor  # (C,)


@torch.no_grad()
def fit_vmf(
    sums: Tensor,
    counts: Tensor,
    dim: int | None = None,
    estimator: str = "newton",
    bias_correction: str = "u",
    *,
    backend: str | None = None,
) -> VonMisesFisher:
    """Mean direction and concentration κ of every class. Not differentiable.

    Parameters
    ----------
    sums : Tensor
        (C, D) floating point: Σ of the class's unit vectors.
    counts : Tensor
        (C,), integers or floating point: how many there are, n.
    dim : int, optional
        Dimension of the sphere, from 2 to D; by default D. Less where the vectors lie in a subspace, as zero-padded
        ones do.
    estimator : {"newton", "banerjee", "prism"}
        ``"newton"``: maximum likelihood, A(κ) = R̄. ``"banerjee"``: R̄(D − R̄²)/(1 − R̄²). ``"prism"``: R̄(D − R̄)/(1 − R̄²).
    bias_correction : {"u", "none", "predictive"}
        ``"u"``: R̄² is replaced by its unbiased estimate of A², R_u² = max(0, (nR̄² − 1)/(n − 1)). ``"none"``: as it is.
        ``"predictive"``: R̄ is replaced by R_u²/R̄, the mean cosine of *new* samples with the estimated direction,
        which is off, too: κ is lower than the distribution's own, and the density that of what is still to come.
    backend : str, optional
        As in :func:`robustdml_ops.ops.log_bessel_i`.

    Returns
    -------
    VonMisesFisher
        ``mean_direction`` (C, D) and ``kappa`` (C,), float64 if ``sums`` is, else float32; never NaN for finite sums.
        κ = 0, the uniform distribution, where nothing can be told: n ≤ 1 or, corrected, nR̄² ≤ 1. Equal vectors
        would have κ = ∞: R̄ counts as 1 − ε/2 at most, ε that of the type, hence κ below 1.1 (D − 1)/ε.

    Raises
    ------
    ValueError
        Shapes, types, devices or names that do not fit; on the CPU also NaN, inf or a negative count.

    Notes
    -----
    Sources: Liu et al. (PRISM), Eqs. 12 and 13, with R̄ = ‖Σ‖/n (the paper's lacks 1/n, which makes κ negative);
    Banerjee et al. 2005; Sra 2012. The corrections are extensions of ours, as R̄ of few samples is too long,
    E R̄² = 1/n + (1 − 1/n)A²; see ``docs/numerics.md``. κ itself is computed in float64.

    Examples
    --------
    >>> import torch
    >>> from robustdml_ops.ops import fit_vmf
    >>> x = torch.nn.functional.normalize(torch.tensor([[3.0, 0.1], [3.0, -0.1], [3.0, 0.2]]))
    >>> fit_vmf(x.sum(0, keepdim=True), torch.tensor([3]))
    VonMisesFisher(mean_direction=tensor([[0.9998, 0.0222]]), kappa=tensor([386.7458]))
    """
    fitted = fit_classes(sums, counts, dim, estimator, bias_correction, backend=backend)
    return VonMisesFisher(mean_directions(sums, fitted), fitted.kappa)


def mean_directions(sums: Tensor, fitted: Fitted) -> Tensor:
    """Unit rows of ``sums`` (C, D), all of which were fitted; zero where a sum is."""
    dtype, norm = fitted.kappa.dtype, fitted.norm
    return sums.to(dtype) * torch.where(norm < _TINY_SUM, 0, 1 / norm)[:, None].to(dtype)


@torch.no_grad()
def fit_classes(
    sums: Tensor,
    counts: Tensor,
    dim: int | None = None,
    estimator: str = "newton",
    bias_correction: str = "u",
    classes: Tensor | None = None,
    *,
    backend: str | None = None,
) -> Fitted:
    """κ, log-density at μ and length of the sum of the rows ``classes`` (n,) int64, or of all; checks the arguments."""
    check_matrix("sums", sums)
    C, D = sums.shape
    check_tensor("counts", counts)
    if counts.shape != (C,) or counts.is_complex() or counts.dtype == torch.bool:
        raise ValueError(
            f"counts must be {C} numbers, one for each row of sums, got {tuple(counts.shape)} of {counts.dtype}"
        )
    check_same_device(sums=sums, counts=counts)
    dim = D if dim is None else dim
    if not 2 <= dim <= D:
        raise ValueError(f"dim must be between 2 and the {D} columns of sums, got {dim}")
    check_choice(ESTIMATORS, estimator=estimator)
    check_choice(BIAS_CORRECTIONS, bias_correction=bias_correction)
    sums = (sums if sums.dtype == torch.float64 else sums.float()).contiguous()
    counts = (counts if counts.dtype == torch.int64 else counts.double()).contiguous()
    fitted = Fitted(*fit(sums, counts, classes, dim, estimator, bias_correction, backend or "auto"))
    norm = fitted.norm  # NaN or inf where a sum has such
    if norm.device.type == "cpu" and not has_no_values(norm) and not all_finite(norm):
        place = (~norm.isfinite()).nonzero()[0]
        raise ValueError(f"sums[{int(place if classes is None else classes[place])}] has NaN or inf")
    if classes is None:
        check_elements("counts", counts, lambda counts: counts >= 0, ": it must be at least 0, and not NaN")
    return fitted


@op_in_graphs("vmf_fit", lambda sums, _, classes, *__: Fitted.empty(sums, len(sums if classes is None else classes)))
def fit(
    sums: Tensor,
    counts: Tensor,
    classes: Tensor | None,
    dim: int,
    estimator: str,
    bias_correction: str,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """The distribution of every class, as :class:`Fitted`. Not differentiable."""
    problem = FitProblem(sums, counts, classes, dim, estimator, bias_correction)
    return choose(BACKENDS, backend, sums.device, sums.dtype).fit(problem)
