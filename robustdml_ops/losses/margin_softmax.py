"""What the softmax losses with a margin share: class weights (D, C), a scale, and a margin on the label's logit."""

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from robustdml_ops.engine.validation import check_finite_numbers, check_positive
from robustdml_ops.losses.families.classes import ClassFamilyLoss
from robustdml_ops.losses.families.metric_loss import no_initialisation
from robustdml_ops.losses.peer.distances import named
from robustdml_ops.losses.peer.package import INSTALLED, ClassLossOptions, peer_distances, peer_losses
from robustdml_ops.ops import similarity


class MarginSoftmaxLoss(ClassFamilyLoss):
    """Cross-entropy of s·cos θ_k over the classes; a subclass moves the label's."""

    peer_name: ClassVar[str]  # of the peer's class that computes the same

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        margin: float,
        scale: float,
        **options: Unpack[ClassLossOptions],
    ) -> None:
        super().__init__(num_classes, embedding_size, **options)
        check_finite_numbers(margin=margin)
        check_positive(scale=scale)
        if INSTALLED and not isinstance(self.distance, peer_distances.CosineSimilarity):
            raise ValueError(f"{named(self.distance)}: margins are of cosines, take CosineSimilarity()")
        self.margin = margin
        self.scale = scale
        self.W = nn.Parameter(torch.empty(embedding_size, num_classes))
        self.weight_init_func(self.W)
        self.add_to_recordable_attributes(list_of_names=["num_classes", "margin", "scale"], is_stat=False)
        self.add_to_recordable_attributes(name="avg_angle", is_stat=True)

    def get_logits(self, embeddings: Tensor) -> Tensor:
        """s·cos θ of ``embeddings`` (B, D) with all classes, (B, C), materialised; without the margin."""
        if self._dense_reason() is not None:
            logits: Tensor = self._twin().get_logits(embeddings)
            return logits
        return similarity(embeddings, self.W.t()) * self.scale

    def _keep_angle(self, cosines: Tensor) -> None:
        """Mean angle with the label's class, in degrees, where statistics are asked for; waits for the device."""
        if self.collect_stats:
            self.avg_angle = float(torch.acos(cosines.detach().clamp(-1, 1)).mean().rad2deg())

    def class_dimensions(self) -> dict[str, int]:
        """See the base class."""
        return {"W": 1}

    def _class_parameter(self) -> nn.Parameter:
        return self.W

    def _class_matrix(self) -> Tensor:
        return self._rows_here(self.W).t()

    def _twin(self) -> Any:
        twin = getattr(peer_losses, self.peer_name)(
            num_classes=1,
            embedding_size=1,
            scale=self.scale,
            distance=self.distance,
            weight_init_func=no_initialisation,
        )
        twin.num_classes, twin.margin, twin.W = self.num_classes, self.margin, self.W
        return twin
