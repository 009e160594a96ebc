"""What the losses over classes share: a sample's log-sum-exp of all logits, less the logit of its own class."""

from torch import Tensor, nn

from robustdml_ops.losses.reduction import check_reduction, reduce_samples
from robustdml_ops.ops import ClassLSE
from robustdml_ops.validation import check_labels, check_matrix, check_same_device, check_sizes


class ClassFamilyLoss(nn.Module):
    """One loss per sample, ℓ_i = log Σ_k exp(logit_ik) − logit_iy; a subclass has the logits."""

    def __init__(self, num_classes: int, embedding_size: int, reduction: str, backend: str | None) -> None:
        super().__init__()
        check_sizes(num_classes=num_classes, embedding_size=embedding_size)
        check_reduction(reduction)
        self.num_classes = num_classes
        self.embedding_size = embedding_size
        self.reduction = reduction
        self.backend = backend

    def forward(self, embeddings: Tensor, labels: Tensor, sample_weights: Tensor | None = None) -> Tensor:
        """Loss of a batch.

        Parameters
        ----------
        embeddings : Tensor
            (B, D), floating point, any scale.
        labels : Tensor
            (B,) integers in 0 … C − 1.
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
        lse = self._class_lse(embeddings, self._check(embeddings, labels))
        return reduce_samples(lse.lse - lse.target, sample_weights, self.reduction)

    def extra_repr(self) -> str:
        """Return the settings, for ``repr``."""
        return f"num_classes={self.num_classes}, embedding_size={self.embedding_size}"

    def _class_lse(self, embeddings: Tensor, labels: Tensor) -> ClassLSE:
        raise NotImplementedError

    def _check(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        check_matrix("embeddings", embeddings, columns=self.embedding_size)
        check_same_device(embeddings=embeddings, **dict(self.named_parameters()))
        return check_labels(labels, embeddings)
