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
# A class whose sum without the sample is shorter has no other sample.
ALONE = 1e-3
LEAST = 1e-6  # P_clean is no smaller


class OwnClassResult(NamedTuple):
    """The verdict on a batch."""

    keep: Tensor  # (B,) bool
    log_p_clean: Tensor  # (B,)
    wrong_share: Tensor  # (), of the last batches


class OwnClassFilter(nn.Module):
    """Filter that keeps samples which are nearer to their own class than chance brings; no noise rate is needed.

        s_i = cos(x_i, c_{y_i}),    s⁰_i = cos(x_i, c_{y_j}) for another sample j of the batch, y_j ≠ y_i
        π = F(m)/F⁰(m), at most 1, where m is the median of s⁰;    P_clean(s) = 1 − π f⁰(s)/f(s), made monotone

    F, F⁰ and f, f⁰ are the distributions and smoothed densities of s and s⁰ over the last batches: a wrong label at
    random is one more class by chance, and of the samples below the median of chance hardly any has a right label. A
    sample is kept where P_clean > ½. It takes O(B·D) and no sweep over the classes. Nothing waits for a GPU.

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
    >>> classes = torch.randn(500, 32, generator=torch.Generator().manual_seed(0))
    >>> labels = torch.arange(500)
    >>> embeddings = classes + 0.3
    >>> embeddings[:100] = embeddings[100:200]  # 100 samples have a wrong label
    >>> result = OwnClassFilter()(embeddings, labels, classes)
    >>> result.keep[:100].sum().item() < 10, result.keep[100:].all().item(), round(result.wrong_share.item(), 1)
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
    def forward(self, embeddings: Tensor, labels: Tensor, classes: Tensor, *, sums: bool = False) -> OwnClassResult:
        """Judge a batch; each call moves the distributions.

        Parameters
        ----------
        embeddings, labels : Tensor
            (B, D), floating point, any scale; (B,) integers in 0 … C − 1.
        classes : Tensor
            (C, D), or (C, H, D) of which the nearest centre counts: proxies, such as ``loss.proxies`` or ``loss.W.T``.
        sums : bool
            ``classes`` (C, D) are sums of the unit embeddings of a pass over the samples, those that are judged among
            them. Then s⁰_i = cos(x_i, c_{y_j} − x_j + x_i): x_i has taken the place of x_j, as a wrong label would. A
            sample alone in its class has P_clean = 1.

        Returns
        -------
        OwnClassResult
            ``keep`` (B,) bool, ``log_p_clean`` (B,) and ``wrong_share`` (), the estimated π.

        Raises
        ------
        ValueError, TypeError, IndexError
            Shapes, types or devices that do not fit; on the CPU NaN or inf, or a label out of range; classes divided
            among processes. The state is kept.

        Examples
        --------
        >>> import torch
        >>> from robustdml_ops.robust import OwnClassFilter
        >>> X = torch.nn.functional.normalize(torch.randn(6, 4), dim=1)
        >>> y = torch.tensor([0, 0, 1, 1, 2, 2])
        >>> sums = torch.zeros(3, 4).index_add_(0, y, X)
        >>> OwnClassFilter()(X, y, sums, sums=True).log_p_clean.shape
        torch.Size([6])
        """
        labels = self._checked(embeddings, labels, classes, sums)
        with torch.autocast(embeddings.device.type, enabled=False):
            X = nn.functional.normalize(embeddings.detach().float(), dim=1)
            away = torch.arange(len(X), device=X.device).roll(len(X) // 2)
            C, other = classes.detach()[labels].float(), classes.detach()[labels[away]].float()
            counted = torch.ones_like(labels, dtype=torch.bool)
            if sums:
                counted = torch.linalg.vector_norm(C - X, dim=1) > ALONE
                other = other - X[away] + X
            s, chance = (
                cosine_similarity(X[:, None], rows.reshape(len(X), -1, X.shape[1]), dim=2).amax(1)
                for rows in (C, other)
            )
            keep_old = 1 - 1 / self.window
            for held, values, known in (
                (self.own, s, counted),
                (self.other, chance, counted[away] & (labels != labels[away])),
            ):
                held.mul_(keep_old).index_add_(0, _bin(values), known.to(held.dtype))
            p_clean, wrong = self._p_clean()
            p = torch.where(counted, p_clean[_bin(s)], 1.0)
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

    def _checked(self, embeddings: Tensor, labels: Tensor, classes: Tensor, sums: bool) -> Tensor:
        check_matrix("embeddings", embeddings)
        check_tensor("classes", classes)
        if is_sharded(classes):
            raise TypeError(
                "classes are divided among processes, and this filter needs those of its batch: judge the samples "
                "before training, by sums of a pass over them, or take PRISM, which shard_classes divides"
            )
        wanted = 2 if sums else 3
        if not 2 <= classes.dim() <= wanted or classes.shape[-1] != embeddings.shape[1]:
            D = embeddings.shape[1]
            shapes = f"(C, {D})" + ("" if sums else f" or (C, H, {D})")
            turned = ": give its transpose, .T" if classes.dim() == 2 and classes.shape[0] == D else ""
            raise ValueError(f"classes must have the shape {shapes}, got {tuple(classes.shape)}{turned}")
        check_same_device(embeddings=embeddings, classes=classes, state=self.own)
        labels = check_labels(labels, embeddings)
        check_label_range(labels, len(classes))
        check_finite_embeddings(embeddings)
        return labels


def _nearest(X: Tensor, rows: Tensor) -> Tensor:
    """Cosine of each sample with its row, or with the nearest of several, (B,)."""
    return cosine_similarity(X[:, None], rows.reshape(len(X), -1, X.shape[1]), dim=2).amax(1)


def _bin(cosines: Tensor) -> Tensor:
    return ((cosines + 1) * (BINS / 2)).long().clamp(0, BINS - 1)


def _smoothed(density: Tensor) -> Tensor:
    reach = torch.arange(-REACH, REACH + 1, device=density.device)
    weights = torch.exp(-0.5 * (reach / DEVIATION) ** 2)
    return (pad(density, (REACH, REACH)).unfold(0, 2 * REACH + 1, 1) * (weights / weights.sum())).sum(1)
