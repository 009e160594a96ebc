"""Losses that compare samples with a class matrix, which is a parameter: one row, or column, for each class."""

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from robustdml_ops.engine.precision import compute_dtype
from robustdml_ops.engine.proxy_update import ProxyUpdate
from robustdml_ops.engine.validation import (
    check_finite_embeddings,
    check_label_range,
    check_sample_weights,
    check_sizes,
)
from robustdml_ops.losses.families.metric_loss import MetricLoss
from robustdml_ops.losses.inputs import LossInputs, checked_labels
from robustdml_ops.losses.options import ClassMatrixOptions
from robustdml_ops.losses.peer.dense import dense_logits
from robustdml_ops.losses.rows_taking_part import class_matrix, update_of_matrix
from robustdml_ops.losses.sampling.negatives import negatives_of


class ClassMatrixLoss(MetricLoss):
    """A loss with the parameter ``matrix_name``: (C, D), or (D, C) if ``columns``."""

    known_options = ClassMatrixOptions
    matrix_name: ClassVar[str] = "proxies"
    columns: ClassVar[bool] = False
    centers: int | None = None  # H, where a class has several rows, or columns

    def __init__(self, num_classes: int, embedding_size: int, *, weight_init_func: Any = None, **options: Any) -> None:
        check_sizes(num_classes=num_classes, embedding_size=embedding_size)
        negatives = negatives_of(options)
        super().__init__(**options)
        self.num_classes = num_classes
        self.embedding_size = embedding_size
        self.negatives = negatives
        self.negative_share = 1.0 if negatives is None else negatives.share
        if negatives is not None:
            self._refuse_dense("negative_share")
        self.weight_init_func = weight_init_func or self.get_default_weight_init_func()

    def _add_class_matrix(self, rows: int) -> None:
        """Make the parameter, filled by ``weight_init_func``; ``rows`` counts the classes or centres."""
        shape = (self.embedding_size, rows) if self.columns else (rows, self.embedding_size)
        parameter = nn.Parameter(torch.empty(*shape))
        setattr(self, self.matrix_name, parameter)
        self.weight_init_func(parameter)

    def get_default_weight_init_func(self) -> Any:
        """Return the function that fills a new class matrix, in place."""
        return nn.init.normal_

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
            A miner's pairs or triplets. w_i is how often the miner chose sample i, divided by the count of the most
            frequent one. Softmax losses multiply the sample's loss by w_i, and the mean divides by B; Proxy-Anchor
            losses multiply its exponentials by e^(w_i − 1). Both as pytorch-metric-learning.
        ref_emb, ref_labels : None
            There for the sake of the interface: samples are compared with the class matrix.
        sample_weights : Tensor, optional
            (B,), ≥ 0. Softmax losses multiply the samples' losses by them; Proxy-Anchor losses the exponentials, in
            both sums. Differentiable; in Proxy-Anchor losses where positive. A sample of weight 0 is absent: a mask of
            zeros and ones gives the loss of the batch without the samples that it drops.

        Returns
        -------
        Tensor
            () or, with ``reduction="none"``, (B,) for softmax losses and (C,) for Proxy-Anchor losses. An empty batch,
            or one without any sample kept, gives 0, connected to the graph.

        Raises
        ------
        ValueError, TypeError
            Shapes, types or devices that do not fit; on the CPU NaN or inf (on a GPU, where a check would stall the
            stream, the loss is NaN).
        IndexError
            On the CPU, a label out of range (on a GPU a device-side assertion).
        """
        return self._evaluate(LossInputs(embeddings, labels, indices_tuple, ref_emb, ref_labels, sample_weights))

    def get_logits(self, embeddings: Tensor) -> Tensor:
        """Logits of ``embeddings`` (B, D) with all classes, before any margin: (B, C), materialised.

        Proxy-Anchor losses have cosines, softmax losses cosines times their scale, ProxyNCALoss squared distances.
        """
        return self._logits(embeddings) if self._dense_reason() is None else dense_logits(self, embeddings)

    def class_dimensions(self) -> dict[str, int]:
        """Parameters with entries for each class, and the dimension that counts the classes."""
        return {self.matrix_name: int(self.columns)}

    def extra_repr(self) -> str:
        """Return the settings, for ``repr``."""
        return f"num_classes={self.num_classes}, embedding_size={self.embedding_size}"

    def _logits(self, embeddings: Tensor) -> Tensor:
        raise NotImplementedError

    def _own_rows(self, inputs: LossInputs) -> dict[str, Tensor | None]:
        labels = checked_labels(self, inputs)
        check_label_range(labels, self.num_classes)
        return {**self._own_samples(inputs), "labels": labels}

    def _own_samples(self, inputs: LossInputs) -> dict[str, Tensor | None]:
        embeddings, weights = inputs.embeddings, inputs.sample_weights
        check_finite_embeddings(embeddings)
        if weights is not None:
            dtype = compute_dtype(embeddings, self._class_parameter())
            weights = check_sample_weights(weights, embeddings.new_empty(len(embeddings), dtype=dtype))
        return {"embeddings": embeddings, "sample_weights": weights}

    def _class_parameter(self) -> nn.Parameter:
        parameter: nn.Parameter = getattr(self, self.matrix_name)
        return parameter

    def _class_matrix(self) -> Tensor:
        matrix = class_matrix(self)[0]
        return matrix if self.centers is None else matrix.flatten(0, 1)

    def _update(self) -> ProxyUpdate | None:
        return update_of_matrix(self)
