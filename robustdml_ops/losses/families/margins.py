"""Softmax losses with a margin on the label's logit: one number, one for each class or sample, or a module's."""

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from robustdml_ops.engine.validation import check_finite_numbers, check_positive, check_vector, require
from robustdml_ops.losses.families.classes import ClassFamilyLoss, ClassTerms
from robustdml_ops.losses.inputs import LossInputs
from robustdml_ops.losses.options import SoftmaxOptions
from robustdml_ops.losses.peer.package import INSTALLED, named, peer_distances
from robustdml_ops.ops import ABSENT, similarity
from robustdml_ops.ops.classes.plan import ClassFormula

Margin = float | Tensor | nn.Module


class MarginSoftmaxLoss(ClassFamilyLoss):
    """Cross-entropy of s·cos θ_k over the classes; a subclass moves the label's."""

    recordable: ClassVar[tuple[str, ...]] = ("num_classes", "margin", "scale")
    matrix_name = "W"
    columns = True
    takes_margins = True
    margin_unit: ClassVar[float] = 1.0  # of the argument
    margin_kind: ClassVar[str] = "cosine"  # of a planned step, see ClassFormula
    margin: Margin
    W: nn.Parameter

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        margin: Margin = 28.6,
        scale: float = 64,
        **options: Unpack[SoftmaxOptions],
    ) -> None:
        if isinstance(margin, Tensor | nn.Module):
            self.recordable = ("num_classes", "scale")  # type: ignore[misc]  # record keepers take numbers
        super().__init__(num_classes, embedding_size, **options)
        check_positive(scale=scale)
        if INSTALLED and not isinstance(self.distance, peer_distances.CosineSimilarity):
            raise ValueError(f"{named(self.distance)}: margins are of cosines, take CosineSimilarity()")
        self.scale = scale
        self._add_class_matrix(num_classes * (self.centers or 1))
        self._set_margin(margin)
        self.add_to_recordable_attributes(name="avg_angle", is_stat=True)

    def _set_margin(self, margin: Margin) -> None:
        if not isinstance(margin, Tensor | nn.Module):
            check_finite_numbers(margin=margin)
            self.margin = margin * self.margin_unit
            return
        self._refuse_dense("a margin that is not one number")
        if isinstance(margin, nn.Module):
            self.margin = margin
            return
        check_vector("margin", margin, self.num_classes)
        if not torch.isfinite(margin).all():
            raise ValueError("margin has NaN or inf")
        values = (margin.detach().double() * self.margin_unit).to(margin.dtype)
        # Of classes that grow_classes adds.
        self.unseen_class = {**getattr(self, "unseen_class", {}), "margin": float(values.mean())}
        if isinstance(margin, nn.Parameter):
            self.margin = nn.Parameter(values)
        else:
            self.register_buffer("margin", values)

    def class_dimensions(self) -> dict[str, int]:
        """Parameters and buffers with entries for each class, and the dimension that counts the classes."""
        return {**super().class_dimensions(), **({"margin": 0} if isinstance(self.margin, Tensor) else {})}

    def fill_parameter(self, name: str, values: Tensor) -> None:
        """Fill a parameter with its initial values, in place; a margin of each class with their mean."""
        if name == "margin":
            values.fill_(self.unseen_class["margin"])
        else:
            super().fill_parameter(name, values)

    def _own_rows(self, inputs: LossInputs) -> dict[str, Tensor | None]:
        margins = inputs.margins
        if margins is not None:
            check_vector("margins", margins, len(inputs.embeddings))
        return {**super()._own_rows(inputs), "margins": margins}

    def _signature(self, inputs: LossInputs) -> tuple[Sequence[Any], tuple[Any, ...]]:
        """With the margins of classes in place of those of samples, where these are not given."""
        (*tensors, margins, label_weights), settings = super()._signature(inputs)
        by_class = margins is None and isinstance(self.margin, Tensor)
        return (*tensors, self.margin if by_class else margins, label_weights), (*settings, by_class)

    def _formula(self, margins: Tensor | None) -> ClassFormula | None:
        if self.collect_stats or (margins is None and isinstance(self.margin, nn.Module)):
            return None
        number = 0.0 if isinstance(self.margin, Tensor | nn.Module) else self.margin
        of_classes = margins is not None and margins is self.margin
        unit = 1.0 if of_classes else self.margin_unit
        pooling = "none" if self.centers is None else "max"
        return ClassFormula(self.scale, number, self.margin_kind, unit, of_classes, pooling=pooling)

    def _logits(self, embeddings: Tensor) -> Tensor:
        return similarity(embeddings, self.W.t()) * self.scale

    def _logit_settings(self) -> dict[str, Any]:
        return {"scale": self.scale, "exclude_target": True}

    def _class_sums(self, embeddings: Tensor, labels: Tensor) -> ClassTerms:
        sums = super()._class_sums(embeddings, labels)
        if self.collect_stats:  # waits for the device
            cosines = sums.target.detach()[labels != ABSENT] / self.scale
            self.avg_angle = float(cosines.clamp(-1, 1).acos().mean().rad2deg())
        return sums

    def _own_logits(self, sums: ClassTerms, inputs: LossInputs, labels: Tensor) -> Tensor:
        cosines = sums.target / self.scale
        return self.scale * self._moved(cosines, self._margins(inputs, labels).to(cosines.dtype))

    def _losses_of_sums(self, sums: ClassTerms, own: Tensor) -> Tensor:
        if own.dim() == 2:
            counted = own.clamp(min=torch.finfo(own.dtype).min)  # −∞ where ABSENT
            return torch.cat([sums.lse, counted], 1).logsumexp(1, keepdim=True) - own
        # log(e^others + e^own) − own; beyond 40 the other term is below the last digit of float64.
        return nn.functional.softplus(sums.lse - own, threshold=40)

    def _moved(self, cosines: Tensor, margins: Tensor) -> Tensor:
        """The labels' cosines (B,) or (B, K) with their margins, of the same type, () or of a shape that expands."""
        raise NotImplementedError

    def _margins(self, inputs: LossInputs, labels: Tensor) -> Tensor:
        """Margins of the samples, (B,) or (B, 1), of the labels, (B, K), or (): one for all."""
        given: Tensor | None = inputs.margins
        if given is None and isinstance(self.margin, nn.Module):
            given = self.margin(inputs.embeddings, labels)
        if given is not None:
            check_vector("margins", given, len(labels))
            require(torch.isfinite(given).all(), lambda: "margins have NaN or inf")
            given = given.to(labels.device) * self.margin_unit
            return given if labels.dim() == 1 else given[:, None]
        if isinstance(self.margin, Tensor):
            return self._at_labels("margin", labels)
        return torch.tensor(self.margin, dtype=torch.float64, device="cpu")  # a number for the kernels of any device
