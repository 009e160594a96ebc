"""What the losses of the Proxy-Anchor family share: proxies, biases and the two divisors."""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from robustdml_ops.engine.label_sets import LabelSets
from robustdml_ops.engine.precision import compute_dtype
from robustdml_ops.engine.proxy_update import ProxyUpdate, refuse_update
from robustdml_ops.engine.validation import (
    check_finite_numbers,
    check_matrix,
    check_positive,
    check_same_device,
    check_sample_weights,
    check_sizes,
)
from robustdml_ops.losses.families.metric_loss import Batch, MetricLoss, Parts, check_options, refuse_candidates
from robustdml_ops.losses.own_rows import own_rows
from robustdml_ops.losses.peer.miner_indices import miner_weights
from robustdml_ops.losses.peer.package import PeerWeights, WeightedLossOptions
from robustdml_ops.losses.sampling.drawn_classes import Drawn
from robustdml_ops.losses.sampling.negatives import negatives_of, share_of
from robustdml_ops.ops import AnchorBiases, AnchorLSE, anchor_loss, anchor_lse, similarity
from robustdml_ops.ops.anchor.counting import count_labels
from robustdml_ops.ops.anchor.problem import ConfidenceSets


class AnchorFamilyLoss(PeerWeights, MetricLoss):
    """One proxy per class, (C, D), and the sums over the batch that each of them is the anchor of."""

    known_options = WeightedLossOptions
    default_reducer = "DivisorReducer"

    def __init__(
        self, num_classes: int, embedding_size: int, margin: float, alpha: float, **options: Unpack[WeightedLossOptions]
    ) -> None:
        check_sizes(num_classes=num_classes, embedding_size=embedding_size)
        check_finite_numbers(margin=margin)
        check_positive(alpha=alpha)
        check_options(type(self), options)
        negatives = negatives_of(options)
        super().__init__(**options)
        self.negatives = negatives
        self.negative_share = share_of(negatives)
        if negatives is not None:
            self._refuse_dense("negative_share")
        self.num_classes = num_classes
        self.embedding_size = embedding_size
        self.margin = margin
        self.alpha = alpha
        self.proxies = nn.Parameter(torch.empty(num_classes, embedding_size))
        self.weight_init_func(self.proxies)
        self.add_to_recordable_attributes(list_of_names=["num_classes", "alpha", "margin"], is_stat=False)

    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor | None = None,
        indices_tuple: tuple[Tensor, ...] | None = None,
        ref_emb: Tensor | None = None,
        ref_labels: Tensor | None = None,
        *,
        sample_weights: Tensor | None = None,
    ) -> Tensor:
        """Loss of a batch.

        Parameters
        ----------
        embeddings : Tensor
            (B, D), floating point, any scale.
        labels : Tensor
            (B,) integers in 0 … C − 1, or truth values or whole floating-point numbers.
        indices_tuple : tuple of Tensor, optional
            A miner's pairs or triplets. A sample's exponentials are multiplied by e^(w − 1), where w is how often the
            miner chose it, divided by the count of the most frequent one, as in pytorch-metric-learning.
        ref_emb, ref_labels : None
            There for the sake of the interface: the proxies are what the samples are compared with.
        sample_weights : Tensor, optional
            (B,), ≥ 0: multiply the exponentials in both sums; differentiable where positive. A sample of weight 0 is
            absent: the loss is that of the batch without it.

        Returns
        -------
        Tensor
            () or (C,), see ``reduction``. An empty batch gives 0, connected to the graph.

        Raises
        ------
        ValueError, TypeError
            Shapes, types or devices that do not fit; on the CPU NaN or inf (on a GPU, where a check would stall the
            stream, the loss is NaN).
        IndexError
            On the CPU, a label out of range (on a GPU a device-side assertion).
        """
        return super().forward(embeddings, labels, indices_tuple, ref_emb, ref_labels, sample_weights=sample_weights)

    def class_dimensions(self) -> dict[str, int]:
        """Parameters that have something for each class, and which of their dimensions counts the classes."""
        return {"proxies": 0}

    def get_default_weight_init_func(self) -> Any:
        """As in the authors' code: the scale does not matter to the cosine, but to the optimiser's first steps."""
        return kaiming_normal

    def get_logits(self, embeddings: Tensor) -> Tensor:
        """Cosines of ``embeddings`` (B, D) with all proxies, (B, C), materialised."""
        if self._dense_reason() is None:
            return similarity(embeddings, self.proxies)
        logits: Tensor = self.distance(embeddings, self.proxies)
        return logits

    def extra_repr(self) -> str:
        """Return the settings, for ``repr``."""
        return f"num_classes={self.num_classes}, embedding_size={self.embedding_size}, alpha={self.alpha}"

    def _sub_loss_names(self) -> list[str]:
        return ["pos_loss", "neg_loss"]

    def _class_parameter(self) -> nn.Parameter:
        return self.proxies

    def _class_matrix(self) -> Tensor:
        return self._rows_here(self.proxies)

    def _check(self, batch: Batch) -> Tensor:
        """The embeddings of a checked batch."""
        refuse_candidates(self, batch)
        check_matrix("embeddings", batch.embeddings, columns=self.embedding_size)
        check_same_device(embeddings=batch.embeddings, proxies=self.proxies)
        return batch.embeddings

    def _own_rows(self, batch: Batch) -> dict[str, Tensor | None]:
        self._check(batch)
        return own_rows(batch, self.proxies, self.num_classes)

    def _label_sets(self, labels: Tensor, present: Tensor | None, drawn: Drawn | None) -> tuple[LabelSets, Tensor]:
        """X_p⁺ of the classes here that take part, and |P⁺| of all."""
        here = self.shards.labels(labels) if drawn is None else drawn.labels
        if self.shards.divided:
            return LabelSets.of(here, elsewhere=True), count_labels(LabelSets.of(labels), present)
        sets = LabelSets.of(here)
        return sets, count_labels(sets, present)

    def _log_weights(self, batch: Batch, bias: float = 0.0) -> tuple[Tensor, Tensor | None]:
        """Bias + log u (B,), compute type, and which samples are present (None: all). A weight of 0 has no gradient.

        A miner's weight w counts as e^(w − 1) in the sums: the peer adds w − 1 to the exponents.
        """
        embeddings = batch.embeddings
        logs = embeddings.new_full((len(embeddings),), bias, dtype=compute_dtype(embeddings, self.proxies))
        if batch.indices_tuple is not None:
            logs = logs + (miner_weights(batch.indices_tuple, len(logs), logs, shards=self.shards) - 1)
        if batch.sample_weights is None:
            return logs, None
        weights = check_sample_weights(batch.sample_weights, logs)
        present = weights > 0
        return (logs + weights.masked_fill(~present, 1).log()).masked_fill(~present, -torch.inf), present

    def _terms(self, batch: Batch) -> "AnchorTerms":
        """What the sums of a checked batch are made of."""
        raise NotImplementedError

    def _draw(self, labels: Tensor) -> Drawn | None:
        """Classes that take part; None: all."""
        if self.negatives is None or not self.training:
            return None
        return self.negatives.draw(labels, self.num_classes, self.shards.range())

    def _taking_part(self, drawn: Drawn | None, update: ProxyUpdate | None = None) -> tuple[Tensor, ProxyUpdate | None]:
        """Their proxies, and the step on them."""
        proxies = self._class_matrix()
        if drawn is None or self.negatives is None:
            return proxies, update
        return self.negatives.taking_part(proxies, drawn, update)

    def _loss(self, batch: Batch) -> Tensor:
        return self._reduce(batch.embeddings, self._terms(batch))

    def _reduce(self, embeddings: Tensor, terms: "AnchorTerms") -> Tensor:
        """Σ_p positive_p/|P⁺| + negative_p/|P⁻|, or the vector of its terms. An empty set's sum is 0."""
        counts = terms.positive_count, terms.negative_count
        scales = [_reciprocal(count, terms.biases.positive) for count in counts]
        if self.reduction == "none":
            self._refuse_update()
            lse = self._lse(embeddings, terms)
            return lse.positive * scales[0] + lse.negative * scales[1]
        if terms.drawn is not None:
            scales[1] = scales[1] * terms.drawn.weights(scales[1].dtype)
        proxies, update = self._taking_part(terms.drawn, self._update())
        loss = anchor_loss(
            embeddings,
            proxies,
            terms.sets,
            terms.biases,
            *scales,
            alpha=self.alpha,
            backend=self.backend,
            update=update,
        )
        return self.shards.total(loss)

    def _lse(self, embeddings: Tensor, terms: "AnchorTerms") -> AnchorLSE:
        """Of all proxies here, (C,) each. One that was drawn has the terms of all that it stands for, the others 0."""
        drawn = terms.drawn
        proxies, _ = self._taking_part(drawn)
        lse = anchor_lse(embeddings, proxies, terms.sets, terms.biases, alpha=self.alpha, backend=self.backend)
        if drawn is None:
            return lse
        zeros = lse.positive.new_zeros(len(self._class_matrix()))
        each = (lse.positive, lse.negative * drawn.weights(zeros.dtype))
        return AnchorLSE(*(zeros.index_copy(0, drawn.classes, values) for values in each))

    def _refuse_update(self) -> None:
        """Of sums that come one for each proxy the upstream gradients are not known beforehand."""
        what = "a loss of the Proxy-Anchor family with reduction='none', or with a reducer of its own,"
        refuse_update(
            self._update(), what, "take reduction='mean', or train the proxies with an optimiser of torch.optim"
        )

    def _parts(self, batch: Batch) -> Parts:
        self._refuse_update()
        terms = self._terms(batch)
        lse = self._lse(batch.embeddings, terms)
        places = torch.arange(self.num_classes, device=lse.positive.device)
        parts: Parts = {}
        for name, losses, divisor in (
            ("pos_loss", lse.positive, terms.positive_count),
            ("neg_loss", lse.negative, terms.negative_count),
        ):
            parts[name] = {"losses": losses, "indices": places, "reduction_type": "element", "divisor": divisor}
        self.add_weight_regularization_to_loss_dict(parts, self.proxies)
        return parts


class AnchorTerms(NamedTuple):
    """What the sums of a batch are made of, and how many proxies have each of them."""

    sets: LabelSets | ConfidenceSets
    biases: AnchorBiases
    positive_count: Tensor | int  # () |P⁺|
    negative_count: Tensor | int  # () |P⁻|
    drawn: Drawn | None = None  # whose places the sets name; None: all classes take part


def _reciprocal(count: Tensor | int, like: Tensor) -> Tensor:
    """1/count, () in the type of ``like``; 1 for a count of 0."""
    if isinstance(count, Tensor):
        return count.clamp(min=1).to(like.dtype).reciprocal()
    return like.new_full((), 1 / max(1, count))


def kaiming_normal(proxies: Tensor) -> None:
    """Fill ``proxies`` (C, D), in place."""
    nn.init.kaiming_normal_(proxies, mode="fan_out")
