"""Adaptive Proxy-Anchor, Phan et al.: the margin is learnt."""

import torch
from torch import Tensor, nn

from robustdml_ops.anchor.counting import count_labels
from robustdml_ops.label_sets import LabelSets
from robustdml_ops.losses.base import AnchorFamilyLoss
from robustdml_ops.ops import AnchorBiases
from robustdml_ops.validation import check_labels, require

NEGATIVE_MARGINS = ("sample", "proxy")


class AdaptiveProxyAnchorLoss(AnchorFamilyLoss):
    """Proxy-Anchor whose margin is a parameter, one for all classes or one for each.

        L = 1/|P⁺| Σ_{p∈P⁺} log(1 + Σ_{x∈X_p⁺} e^{−α(s(x,p)−m_x)}) + 1/|P| Σ_p log(1 + Σ_{x∈X_p⁻} e^{α(s(x,p)+m_x)})
            + λ / mean(m)

    Parameters
    ----------
    num_classes, embedding_size, alpha, reduction, backend
        As in :class:`~robustdml_ops.losses.ProxyAnchorLoss`. ``reduction="none"`` spreads λ/mean(m) over all proxies.
    margin : float
        m₀ > 0, where the margins start. ``.margins`` is a parameter of shape (1,), or (C,) if ``per_class``.
    per_class : bool
        A margin for each class. The paper recommends one for all (its Table 2), the default.
    regularization : float
        λ ≥ 0. λ/mean(m) grows as the margins shrink: it keeps them up, whatever "constrain" suggests.
    negative_margin : {"sample", "proxy"}
        Whose margin stands in the negative term: the sample's class (the paper's Eq. 2), or the proxy's (the authors'
        code). The same if there is one margin.

    Notes
    -----
    Source: Phan et al., "Adaptive Proxy Anchor Loss for Deep Metric Learning", Eqs. 2–4. Precision, speed and memory
    are those of :class:`~robustdml_ops.losses.ProxyAnchorLoss`.

    Examples
    --------
    >>> import torch
    >>> from robustdml_ops.losses import AdaptiveProxyAnchorLoss
    >>> loss_function = AdaptiveProxyAnchorLoss(num_classes=10, embedding_size=4)
    >>> loss_function(torch.randn(8, 4), torch.arange(8)).backward()
    >>> loss_function.margins.grad.shape
    torch.Size([1])
    """

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        alpha: float = 32,
        margin: float = 0.1,
        per_class: bool = False,
        regularization: float = 1.0,
        negative_margin: str = "sample",
        *,
        reduction: str = "mean",
        backend: str | None = None,
    ) -> None:
        super().__init__(num_classes, embedding_size, alpha, reduction, backend)
        if not margin > 0:
            raise ValueError(f"margin must be positive, got {margin}: λ/mean(m) has a pole at 0")
        if regularization < 0:
            raise ValueError(f"regularization must not be negative, got {regularization}")
        if negative_margin not in NEGATIVE_MARGINS:
            raise ValueError(f"negative_margin={negative_margin!r}: expected one of {', '.join(NEGATIVE_MARGINS)}")
        self.regularization = regularization
        self.negative_margin = negative_margin
        self.margins = nn.Parameter(torch.full((num_classes if per_class else 1,), float(margin)))

    def forward(self, embeddings: Tensor, labels: Tensor, sample_weights: Tensor | None = None) -> Tensor:
        """Loss of a batch.

        Parameters, result and errors are those of :meth:`ProxyAnchorLoss.forward`, and a ValueError when mean(m) ≤ 0
        (on a GPU a device-side assertion). An empty batch gives λ/mean(m).
        """
        self._check(embeddings)
        labels = check_labels(labels, embeddings)
        log_weights, present = self._log_weights(sample_weights, embeddings)
        margins = self.margins.to(log_weights.dtype)
        mean = margins.mean()
        require(
            mean > 0,
            lambda: (
                f"mean(margins) = {float(mean.detach()):.4g}, and λ/mean(m) has a pole at 0: lower the rate of "
                ".margins or raise regularization"
            ),
        )
        scaled = self.alpha * margins
        of_sample = scaled[labels] if len(scaled) > 1 else scaled.expand(len(labels))
        if self.negative_margin == "sample" or len(scaled) == 1:
            biases = AnchorBiases(of_sample + log_weights, of_sample + log_weights)
        else:
            biases = AnchorBiases(of_sample + log_weights, log_weights, scaled)
        anchors = torch.full((), self.num_classes, device=embeddings.device)
        sets = LabelSets.of(labels)
        loss = self._reduce(embeddings, sets, biases, count_labels(sets, present), anchors)
        regularizer = self.regularization / mean
        return loss + (regularizer if self.reduction == "mean" else regularizer / self.num_classes)
