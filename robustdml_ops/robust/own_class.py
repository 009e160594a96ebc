"""A filter that compares a sample with its own class alone: its cost does not depend on the number of classes."""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, pad

from robustdml_ops.engine.labels import check_label_range, check_labels
from robustdml_ops.engine.shards import is_sharded
from robustdml_ops.engine.validation import (
    check_finite_embeddings,
    check_matrix,
    check_same_device,
    check_sizes,
    check_tensor,
)

# Bins of the cosines in [-1, 1]; their densities are smoothed by a normal distribution of this deviation, in bins.
BINS, DEVIATION, REACH = 100, 1.5, 4
_ROWS = 1024  # samples whose cosines with the batch are in memory at a time
LEAST = 1e-6  # P_clean is no smaller


class OwnClassResult(NamedTuple):
    """The verdict on a batch."""

    keep: Tensor  # (B,) bool
    log_p_clean: Tensor  # (B,)
    wrong_share: Tensor  # (), of the last batches


class OwnClassFilter(nn.Module):
    """Filter that keeps samples which are nearer to their own class than chance brings; no noise rate is needed.

        s_i = max over j ≠ i with y_j = y_i of cos(x_i, x_j)
        s⁰_i = max over j ≠ h with y_j = y_h of cos(x_i, x_j),   h the sample half a batch away, y_h ≠ y_i
        π = F(m)/F⁰(m), at most 1, where m is the median of s⁰;    P_clean(s) = 1 − π f⁰(s)/f(s), made monotone

    F, F⁰ and f, f⁰ are the distributions and smoothed densities of s and s⁰ over the last batches: a wrong label at
    random is one more class by chance, and of the samples below the median of chance hardly any has a right label. A
    sample is kept where P_clean > ½. Batches need several samples of a class: P × K, or all samples sorted by label.
    Given ``classes``, such as proxies, s_i = max_h cos(x_i, c_{y_i h}) instead, and s⁰_i with those of y_h.

    A step takes O(B²·D), or O(B·D) with ``classes``, and no sweep over the classes. Nothing waits for a GPU. Take it
    when the network has learnt something: before, no label fits better than chance, and nothing is kept.

    It cannot see labels that are swapped between similar classes: there another class by chance is no model of a wrong
    one, and almost all samples are kept. :class:`~robustdml_ops.robust.PRISM` compares with all classes.

    Source: the mixture is that of Efron, "Size, power and false discovery rates", Annals of Statistics 2007, with the
    share of Storey, "A direct approach to false discovery rates", JRSS B 2002; the null by other samples' classes is an
    extension of this package.

    Parameters
    ----------
    window : int
        Batches over which the distributions are averaged, with weights (1 − 1/window)^age.

    Examples
    --------
    >>> import torch
    >>> from robustdml_ops.robust import OwnClassFilter
    >>> means = torch.randn(200, 32, generator=torch.Generator().manual_seed(0))
    >>> labels = torch.arange(200).repeat_interleave(3)
    >>> embeddings = means[labels] + 0.3 * torch.randn(600, 32)
    >>> embeddings[::6] = torch.randn(100, 32)  # a sample in six does not belong to its class
    >>> result = OwnClassFilter()(embeddings, labels)
    >>> result.keep[::6].sum().item() < 5, result.keep.sum().item() > 490, round(result.wrong_share.item(), 1)
    (True, True, 0.2)
    """

    own: Tensor
    other: Tensor

    def __init__(self, window: int = 100) -> None:
        super().__init__()
        check_sizes(window=window)
        self.window = window
        for name in ("own", "other"):
            self.register_buffer(name, torch.zeros(BINS))

    @torch.no_grad()
    def forward(self, embeddings: Tensor, labels: Tensor, classes: Tensor | None = None) -> OwnClassResult:
        """Judge a batch; each call moves the distributions.

        Parameters
        ----------
        embeddings, labels : Tensor
            (B, D), floating point, any scale; (B,) integers in 0 … C − 1.
        classes : Tensor, optional
            (C, D), or (C, H, D) of which the nearest centre counts: proxies, such as ``loss.proxies`` or ``loss.W.T``,
            that have learnt or begun as embeddings. None: samples of the batch are compared with each other.

        Returns
        -------
        OwnClassResult
            ``keep`` (B,) bool; ``log_p_clean`` (B,), log(1 − π) of a sample that is alone in its class; and
            ``wrong_share`` (), the estimated π.

        Raises
        ------
        ValueError, TypeError, IndexError
            Shapes, types or devices that do not fit; on the CPU NaN or inf, or a label out of range; classes divided
            among processes. The state is kept.

        Examples
        --------
        >>> import torch
        >>> from robustdml_ops.losses import ArcFaceLoss
        >>> from robustdml_ops.robust import OwnClassFilter
        >>> loss_function = ArcFaceLoss(num_classes=10, embedding_size=4)
        >>> X, labels = torch.randn(6, 4), torch.arange(6)
        >>> OwnClassFilter()(X, labels, loss_function.W.T).log_p_clean.shape
        torch.Size([6])
        """
        labels = self._checked(embeddings, labels, classes)
        with torch.autocast(embeddings.device.type, enabled=False):
            X = nn.functional.normalize(embeddings.detach().float(), dim=1)
            away = torch.arange(len(X), device=X.device).roll(len(X) // 2)
            if classes is None:
                places = torch.arange(len(X), device=X.device)
                own, chance = _nearest_of(X, labels, (labels, places), (labels[away], away))
            else:
                own, chance = (_nearest_centre(X, classes.detach()[of].float()) for of in (labels, labels[away]))
            alone = own.isinf()
            for held, values in ((self.own, own), (self.other, chance.masked_fill(labels == labels[away], -torch.inf))):
                held.mul_(1 - 1 / self.window).index_add_(0, _bin(values), values.isfinite().to(held.dtype))
            p_clean, wrong = self._p_clean()
            p = torch.where(alone, 1 - wrong, p_clean[_bin(own)])
        return OwnClassResult(p > 0.5, p.clamp(min=LEAST).log(), wrong)

    def _p_clean(self) -> tuple[Tensor, Tensor]:
        """P_clean of each bin, (BINS,), and π, ()."""
        f, chance = (held / held.sum().clamp(min=1e-12) for held in (self.own, self.other))
        below = chance.cumsum(0)
        up_to_median = below - chance < 0.5  # the bin of the median is the last of them
        known = below[-1] > 0
        share = ((f * up_to_median).sum() / (chance * up_to_median).sum().clamp(min=1e-12)).clamp(max=1)
        share = torch.where(known, share, 0.0)
        ratio = _smoothed(chance) / _smoothed(f).clamp(min=1e-12)
        p = (1 - share * ratio).clamp(0, 1).masked_fill(up_to_median & known, 0)
        return torch.cummax(p, 0).values, share

    def _checked(self, embeddings: Tensor, labels: Tensor, classes: Tensor | None) -> Tensor:
        check_matrix("embeddings", embeddings)
        check_same_device(embeddings=embeddings, classes=classes, state=self.own)
        labels = check_labels(labels, embeddings)
        check_finite_embeddings(embeddings)
        if classes is None:
            return labels
        check_tensor("classes", classes)
        if is_sharded(classes):
            raise TypeError(
                "classes are divided among processes, and this filter needs those of its batch: leave classes out, and "
                "give batches with several samples of a class"
            )
        D = embeddings.shape[1]
        if classes.dim() not in (2, 3) or classes.shape[-1] != D:
            turned = ": give its transpose, .T" if classes.dim() == 2 and classes.shape[0] == D else ""
            raise ValueError(f"classes must have the shape (C, {D}) or (C, H, {D}), got {tuple(classes.shape)}{turned}")
        check_label_range(labels, len(classes))
        return labels


def _nearest_of(X: Tensor, labels: Tensor, *asked: tuple[Tensor, Tensor]) -> list[Tensor]:
    """For classes and places (B,): a sample's largest cosine with its class but for that place; −∞ if none is left."""
    found = [X.new_empty(len(X)) for _ in asked]
    for first in range(0, len(X), _ROWS):
        rows = slice(first, first + _ROWS)
        cosines = X[rows] @ X.T
        for nearest, (classes, without) in zip(found, asked, strict=True):
            of_class = cosines.masked_fill(classes[rows, None] != labels, -torch.inf)
            nearest[rows] = of_class.scatter_(1, without[rows, None], -torch.inf).amax(1)
    return found


def _nearest_centre(X: Tensor, rows: Tensor) -> Tensor:
    """Cosine of each sample with its row, or with the nearest of several, (B,)."""
    return cosine_similarity(X[:, None], rows[:, None] if rows.dim() == 2 else rows, dim=2).amax(1)


def _bin(cosines: Tensor) -> Tensor:
    return ((cosines.clamp(-1, 1) + 1) * (BINS / 2)).long().clamp(max=BINS - 1)


def _smoothed(density: Tensor) -> Tensor:
    reach = torch.arange(-REACH, REACH + 1, device=density.device)
    weights = torch.exp(-0.5 * (reach / DEVIATION) ** 2)
    return (pad(density, (REACH, REACH)).unfold(0, 2 * REACH + 1, 1) * (weights / weights.sum())).sum(1)
