"""Softmax losses with a margin: class weights (D, C), a scale, and a margin on the label's logit."""

from typing import ClassVar

from torch import Tensor, nn
from typing_extensions import Unpack

from robustdml_ops.engine.validation import check_finite_numbers, check_positive
from robustdml_ops.losses.families.classes import ClassFamilyLoss
from robustdml_ops.losses.options import SoftmaxOptions
from robustdml_ops.losses.peer.distances import named
from robustdml_ops.losses.peer.package import INSTALLED, peer_distances
from robustdml_ops.ops import similarity


class MarginSoftmaxLoss(ClassFamilyLoss):
    """Cross-entropy of s·cos θ_k over the classes; a subclass moves the label's."""

    recorded = ("num_classes", "margin", "scale")
    matrix_name = "W"
    columns = True
    margin_unit: ClassVar[float] = 1.0  # of the argument
    W: nn.Parameter

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        margin: float = 28.6,
        scale: float = 64,
        **options: Unpack[SoftmaxOptions],
    ) -> None:
        super().__init__(num_classes, embedding_size, **options)
        check_finite_numbers(margin=margin)
        check_positive(scale=scale)
        if INSTALLED and not isinstance(self.distance, peer_distances.CosineSimilarity):
            raise ValueError(f"{named(self.distance)}: margins are of cosines, take CosineSimilarity()")
        self.margin = margin * self.margin_unit
        self.scale = scale
        self._add_class_matrix(num_classes)
        self.add_to_recordable_attributes(name="avg_angle", is_stat=True)

    def _logits(self, embeddings: Tensor) -> Tensor:
        return similarity(embeddings, self.W.t()) * self.scale

    def _keep_angle(self, cosines: Tensor) -> None:
        """Mean angle with the label's class, in degrees, where statistics are collected; waits for the device."""
        if self.collect_stats:
            self.avg_angle = float(cosines.detach().clamp(-1, 1).acos().mean().rad2deg())
