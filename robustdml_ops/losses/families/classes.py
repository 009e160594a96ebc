"""What the losses over classes share: a sample's log-sum-exp of all logits, less the logit of its own class."""

from typing import Any, ClassVar

import torch
from torch import Tensor
from typing_extensions import Unpack

from robustdml_ops.engine.precision import compute_dtype
from robustdml_ops.engine.validation import check_matrix, check_same_device, check_sample_weights, check_sizes
from robustdml_ops.losses.families.metric_loss import Batch, MetricLoss, Parts, check_options, refuse_candidates
from robustdml_ops.losses.labels import class_labels
from robustdml_ops.losses.own_rows import own_rows
from robustdml_ops.losses.peer.miner_indices import miner_weights
from robustdml_ops.losses.peer.package import ClassLossOptions, PeerWeights
from robustdml_ops.losses.reduction import reduce_samples
from robustdml_ops.losses.sampling.negatives import negatives_of, share_of
from robustdml_ops.ops import ClassLSE, class_lse


class ClassFamilyLoss(PeerWeights, MetricLoss):
    """One loss per sample, ℓ_i = log Σ_k exp(logit_ik) − logit_iy; a subclass has the proxies and the logits."""

    known_options = ClassLossOptions
    weighs_losses = True
    miner_weighs_anchors: ClassVar[bool] = False  # a miner's weights count a sample as an anchor only

    def __init__(self, num_classes: int, embedding_size: int, **options: Unpack[ClassLossOptions]) -> None:
        check_sizes(num_classes=num_classes, embedding_size=embedding_size)
        check_options(type(self), options)
        negatives = negatives_of(options)
        self.negative_correction = options.pop("negative_correction", True)
        super().__init__(**options)
        self.num_classes = num_classes
        self.embedding_size = embedding_size
        self.negatives = negatives
        self.negative_share = share_of(negatives)
        if negatives is not None:
            self._refuse_dense("negative_share")

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
            A miner's pairs or triplets. Each sample's loss is multiplied by how often the miner chose it, divided by
            the count of the most frequent one; the mean divides by B, as in pytorch-metric-learning.
        ref_emb, ref_labels : None
            There for the sake of the interface: the proxies are what the samples are compared with.
        sample_weights : Tensor, optional
            (B,), ≥ 0: multiply the samples' losses; differentiable. The mean divides by the number of weights that are
            not 0, so a mask of zeros and ones gives the loss of the batch without the samples it drops.

        Returns
        -------
        Tensor
            () or (B,), see ``reduction``. Without samples, or with none kept, the mean is 0, connected to the graph.

        Raises
        ------
        ValueError, TypeError
            Shapes, types or devices that do not fit; on the CPU NaN or inf (on a GPU, where a check would stall the
            stream, the loss is NaN).
        IndexError
            On the CPU, a label out of range (on a GPU a device-side assertion).
        """
        loss = super().forward(embeddings, labels, indices_tuple, ref_emb, ref_labels, sample_weights=sample_weights)
        update = self._update()
        if update is not None and loss.dim() == 0 and loss.requires_grad:
            # Before the sweep: a loss scaler's factor would be taken for one of the gradient.
            loss.register_hook(update.check_factor)  # type: ignore[no-untyped-call]
        return loss

    def class_dimensions(self) -> dict[str, int]:
        """Parameters that have something for each class, and which of their dimensions counts the classes."""
        return {"proxies": 0}

    def extra_repr(self) -> str:
        """Return the settings, for ``repr``."""
        return f"num_classes={self.num_classes}, embedding_size={self.embedding_size}"

    def _class_matrix(self) -> Tensor:
        raise NotImplementedError

    def _proxies(self) -> Tensor:
        """(C, D), or (C, H, D) with H centres a class: those that are here."""
        return self._class_matrix()

    def _logits(self) -> dict[str, Any]:
        """How logits are made of the similarities: settings of :func:`~robustdml_ops.ops.class_lse`."""
        raise NotImplementedError

    def _of_sums(self, sums: ClassLSE) -> Tensor:
        """ℓ (B,)."""
        return sums.lse - sums.target

    def _check(self, batch: Batch) -> None:
        refuse_candidates(self, batch)
        check_matrix("embeddings", batch.embeddings, columns=self.embedding_size)
        check_same_device(embeddings=batch.embeddings, **self._parameters)

    def _own_rows(self, batch: Batch) -> dict[str, Tensor | None]:
        self._check(batch)
        return own_rows(batch, next(self.parameters()), self.num_classes)

    def _losses(self, batch: Batch) -> Tensor:
        """ℓ (B,), times a miner's weights."""
        self._check(batch)
        losses = self._of_sums(self._sums(batch.embeddings, class_labels(batch.labels, batch.embeddings)))
        if batch.indices_tuple is None:
            return losses
        listed, anchors_only = batch.indices_tuple, self.miner_weighs_anchors
        return losses * miner_weights(listed, len(losses), losses, anchors_only, self.shards)

    def _sums(self, embeddings: Tensor, labels: Tensor) -> ClassLSE:
        """Over the classes that take part. One that stands for others counts as they would: log of how many is added.

        Without this correction the sums are of those drawn alone.
        """
        proxies, update, bias, shards = self._proxies(), self._update(), None, self.shards
        here = shards.labels(labels)
        if self.negatives is not None and self.training:
            drawn = self.negatives.draw(labels, self.num_classes, shards.range())
            (proxies, update), here = self.negatives.taking_part(proxies, drawn, update), drawn.labels
            if self.negative_correction:
                bias = drawn.weights(compute_dtype(embeddings, proxies)).log()
        sums = class_lse(
            embeddings,
            proxies,
            here,
            bias=bias,
            elsewhere=shards.divided,
            backend=self.backend,
            update=update,
            **self._logits(),
        )
        return ClassLSE(*shards.log_sum_exp(*sums, labels))

    def _loss(self, batch: Batch) -> Tensor:
        return reduce_samples(self._losses(batch), batch.sample_weights, self.reduction)

    def _own_loss(self, batch: Batch) -> Tensor:
        loss = self._loss(batch)
        return loss if self.reduction == "mean" else self.shards.own(loss)

    def _parts(self, batch: Batch) -> Parts:
        losses = self._losses(batch)
        if batch.sample_weights is not None:
            losses = losses * check_sample_weights(batch.sample_weights, losses)
        places = torch.arange(len(losses), device=losses.device)
        parts: Parts = {"loss": {"losses": losses, "indices": places, "reduction_type": "element"}}
        self.add_weight_regularization_to_loss_dict(parts, self._class_matrix())
        return parts
