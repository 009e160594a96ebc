"""Losses of a softmax over the candidates of each sample, divided by a temperature."""

from typing import Any, ClassVar

from typing_extensions import Unpack

from robustdml_ops.engine.validation import check_positive
from robustdml_ops.losses.families.pairs import PairFamilyLoss, PairInputs
from robustdml_ops.losses.inputs import LossInputs, LossOptions
from robustdml_ops.ops.pairs.autograd import pair_dtype
from robustdml_ops.ops.pairs.contrast import PairContrast, coefficients_of, pair_contrast


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

    def _contrast(self, inputs: PairInputs, summed: bool = False) -> PairContrast:
        """Losses of the samples of this process; ``summed``: Σ weight · loss, in one sweep."""
        embeddings, _, candidates, _ = inputs.pairs
        scale = None
        if summed:
            weights = embeddings.new_ones(()) if inputs.weights is None else inputs.weights
            scale = weights.to(pair_dtype(embeddings, candidates))
        coefficients = coefficients_of(embeddings, candidates, self._scale())
        settings: dict[str, Any] = {"anchors_first": inputs.anchors_first, "backend": self.backend}
        return pair_contrast(*inputs.pairs, scale, coefficients=coefficients, form=self.form, **settings)
