"""The call of a loss, on one process and where other processes have samples or classes of their own."""

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from robustdml_ops.engine.validation import check_choice
from robustdml_ops.losses.families.shardable import ShardableLoss
from robustdml_ops.losses.inputs import LossInputs
from robustdml_ops.losses.joint_inputs import joint_inputs
from robustdml_ops.losses.options import LossOptions, check_options
from robustdml_ops.losses.peer.interface import PeerInterface, without_label
from robustdml_ops.losses.reduction import REDUCTIONS


class MetricLoss(ShardableLoss, PeerInterface):
    """A loss of embeddings and labels; each family has its sums."""

    known_options: ClassVar[type] = LossOptions  # names of its keyword arguments
    weighs_losses: ClassVar[bool] = False  # every process computes the losses of all samples, and weighs them

    def __init__(
        self, *, reduction: str = "mean", backend: str | None = None, ignore_index: int | None = None, **options: Any
    ) -> None:
        check_options(type(self), self.known_options.__annotations__, {"reduction": reduction, **options})
        check_choice(REDUCTIONS, reduction=reduction)
        super().__init__(**options)
        self.reduction = reduction
        self.backend = backend
        self.ignore_index = ignore_index

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
            (B,) integers in 0 … C − 1, truth values, or whole floating-point numbers. For losses on pairs any numbers,
            of which equal ones are of one class; not needed beside ``indices_tuple``.
        indices_tuple : tuple of Tensor, optional
            A miner's pairs (anchors, positives, anchors, negatives) or triplets (anchors, positives, negatives), places
            in the batch and among the candidates. For losses on pairs exactly these pairs count, whatever the labels
            are; memory and time go by their number. For losses with a class matrix w_i is how often the miner chose
            sample i, divided by the count of the most frequent one: softmax losses multiply the sample's loss by w_i,
            and the mean divides by B; Proxy-Anchor losses multiply its exponentials by e^(w_i − 1). Both as
            pytorch-metric-learning.
        ref_emb, ref_labels : Tensor, optional
            Of losses on pairs alone, (m, D) and (m,): rows of a memory bank or of another batch, see the class.
            Differentiable; rows that need no gradient cost none. The label ``ops.ABSENT`` marks a row that takes no
            part, such as an empty slot. Where ``ref_labels`` is the very tensor ``labels``, or is not given, row i is
            another view of sample i and not among the candidates of sample i. On shards: the DTensors of a bank that is
            divided, plain tensors with the same rows on all processes, or another view of own samples.
        sample_weights : Tensor, optional
            (B,), ≥ 0: multiply the samples' losses, or in Proxy-Anchor losses the exponentials, in both sums.
            Differentiable; in Proxy-Anchor losses where positive. A sample of weight 0 is absent, also among the
            candidates of the others, and the mean divides by the number of the other samples: so a mask of zeros and
            ones gives the loss of the batch without the samples that it drops.

        Returns
        -------
        Tensor
            () or, with ``reduction="none"``, (B,); (C,) for Proxy-Anchor losses. A sample without pairs adds 0. A batch
            that is empty, or of which no sample is kept, gives 0, connected to the graph.

        Raises
        ------
        ValueError, TypeError
            Shapes, types or devices that do not fit; on the CPU NaN or inf (on a GPU, where a check would stall the
            stream, the loss is NaN).
        IndexError
            On the CPU, a label out of range (on a GPU a device-side assertion), or a place of ``indices_tuple`` that is
            not there.
        """
        return self._evaluate(LossInputs(embeddings, labels, indices_tuple, ref_emb, ref_labels, sample_weights))

    def _evaluate(self, inputs: LossInputs) -> Tensor:
        embeddings = inputs.embeddings
        if isinstance(embeddings, Tensor) and embeddings.dtype == torch.float64 and not self.shards.divided:
            self._widen()
        if self.ignore_index is not None:
            inputs = without_label(inputs, self.ignore_index)
        if self.shards.divided:
            loss = self.shards.guard(self._loss, joint_inputs(self, inputs, self._own_rows))
            if self.weighs_losses and self.reduction == "none":
                loss = self.shards.own(loss)
            return self.shards.same_upstream(loss)
        if not self.is_fused():
            return self._reduced(inputs)
        loss, added = self._loss(inputs), self._regularization(embeddings)
        return loss + added if isinstance(added, Tensor) else loss

    def _widen(self) -> None:
        """Turn the parameters into float64 for good, as the peer does."""
        for parameter in self.parameters():
            if parameter.dtype != torch.float64:
                parameter.data = parameter.data.double()

    def _own_rows(self, inputs: LossInputs) -> dict[str, Tensor | None]:
        """Rows that this process adds to the joint inputs, checked, by the names of their fields."""
        raise NotImplementedError

    def _loss(self, inputs: LossInputs) -> Tensor:
        """The loss, (), or its terms, as ``reduction`` says."""
        raise NotImplementedError

    def _class_parameter(self) -> nn.Parameter | None:
        """The parameter of the class matrix, of all classes; None: the loss has none."""
        return None
