"""Losses of a softmax over the candidates of each sample, divided by a temperature."""

from typing import Any, ClassVar

from torch import Tensor
from typing_extensions import Unpack

from robustdml_ops.engine.validation import check_positive
from robustdml_ops.losses.families.pairs import PairFamilyLoss, PairInputs
from robustdml_ops.losses.inputs import LossInputs, LossOptions
from robustdml_ops.ops.pairs.autograd import pair_dtype
from robustdml_ops.ops.pairs.contrast import (
    ContrastSum,
    PairContrast,
    coefficients_of,
    pair_contrast,
    pair_contrast_sum,
)


class ContrastFamilyLoss(PairFamilyLoss):
    """Logits are cosines over a temperature; a subclass has the ``form`` of the contrast and the mean."""

    served_forms = ("cosine", "squared")
    recorded: ClassVar[tuple[str, ...]] = ("temperature",)
    shown: ClassVar[tuple[str, ...]] = recorded
    form = "each"

    def __init__(self, temperature: float, **options: Unpack[LossOptions]) -> None:
        super().__init__(**options)
        check_positive(temperature=temperature)
        self.temperature = temperature

    def _refuse(self, inputs: LossInputs) -> None:
        if self.shards.is_sharded(inputs.ref_emb):
            raise ValueError(
                f"{type(self).__name__} takes no bank whose slots are divided among processes: give "
                "bank.features.full_tensor() and bank.labels.full_tensor() as ref_emb and ref_labels"
            )

    def _scale(self) -> float:
        """Factor of the cosines; with squared distances −d²/τ = 2(s − 1)/τ, of which the constant cancels."""
        return (2 if self._form() == "squared" else 1) / self.temperature

    def _sum(self, inputs: PairInputs, scale: Tensor) -> ContrastSum:
        """Σ_i scale_i ℓ_i of the samples of this process, and the number of losses above 0, in one sweep."""
        embeddings, _, candidates, _ = inputs.pairs
        scale = scale.to(pair_dtype(embeddings, candidates))
        return pair_contrast_sum(*inputs.pairs, scale, **self._settings(inputs))

    def _contrast(self, inputs: PairInputs) -> PairContrast:
        """Losses and log-sum-exps of the samples of this process."""
        return pair_contrast(*inputs.pairs, **self._settings(inputs))

    def _settings(self, inputs: PairInputs) -> dict[str, Any]:
        embeddings, _, candidates, _ = inputs.pairs
        coefficients = coefficients_of(embeddings, candidates, self._scale())
        settings = {"coefficients": coefficients, "form": self.form, "anchors_first": inputs.anchors_first}
        return {**settings, "backend": self.backend}
