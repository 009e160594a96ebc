"""Two methods of papers that weigh samples themselves, ProcSim and BSPML, for the comparison with the application's."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from robustdml.data import Rows
from robustdml.errors import UsageError
from robustdml.loss_inputs import LOSS_INPUTS, LossInput, Training
from robustdml.methods import METHODS
from robustdml.methods.pairs import MultiSimilarityOptions, pair_method
from robustdml.methods.softmax import ProxyNCAOptions
from robustdml.options import Options, OptionSet, option
from robustdml_ops.losses import BSPMLLoss, MultiSimilarityLoss, ProcSimLoss
from robustdml_ops.robust import BalancedSelfPaced


@dataclass(frozen=True)
class ProcSimOptions(Options, name="procsim"):
    """ProcSim; each row of its paper's ablation is a setting."""

    lam: float = option(0.03, "how far above the threshold a sample still counts")
    dml: str = option("multi-similarity", "the loss that confidences weigh", choices=("multi-similarity", "proxy-nca"))
    threshold: str = option("otsu", "between right and wrong labels", choices=("otsu", "mean", "gmm"))
    detector: str = option("proxy-nca", "whose losses tell them apart", choices=("proxy-nca", "multi-similarity"))
    drop_above: bool = option(
        False, "leave what lies above the threshold out of the pairs of others, too; an extension"
    )


@dataclass(frozen=True)
class SelfPacedOptions(Options, name="bspml"):
    """BSPML."""

    alpha: float = option(2.0, "scale of positive pairs")
    beta: float = option(50.0, "scale of negative pairs")
    base: float = option(1.0, "similarity that pairs are measured from, ρ")
    epsilon: float = option(0.1, "mining: how far a pair may be from the hardest of the other kind")
    lam: float = option(2.0, "age of the first update, λ")
    growth: float = option(1.1, "what each update multiplies the age by")
    lam_max: float = option(2.0, "largest age, λ∞; the paper tunes it from 1 to 5")
    mu: float | None = option(None, "weight of the balance among classes (default: λ∞); 0 for none")
    warmup: int = option(1, "epochs before the first update, with all weights 1")


def _procsim(options: OptionSet, num_classes: int, embedding_size: int) -> nn.Module:
    settings = options[ProcSimOptions].as_dict()
    if settings["dml"] == "multi-similarity":
        settings["dml"] = MultiSimilarityLoss(**options[MultiSimilarityOptions].as_dict(), reduction="none")
    return ProcSimLoss(num_classes, embedding_size, **settings, softmax_scale=options[ProxyNCAOptions].softmax_scale)


def _observed_step(loss: nn.Module, embeddings: Tensor, arguments: dict[str, Any]) -> tuple[Tensor, dict[str, Tensor]]:
    assert isinstance(loss, ProcSimLoss)
    step = loss.step(embeddings, **arguments)
    above = step.losses > step.threshold
    return step.loss, {"sigma": step.confidence, "detector_loss": step.losses, "above_threshold": above}


def _bspml(options: OptionSet, num_classes: int, embedding_size: int) -> nn.Module:
    bspml = options[SelfPacedOptions]
    return BSPMLLoss(bspml.alpha, bspml.beta, bspml.base, bspml.epsilon)


class SelfPacedWeights(LossInput):
    """One weight per training sample, solved for before each epoch over the embeddings of all of them."""

    module: BalancedSelfPaced
    observed = ("weight",)

    def __init__(self, training: Training) -> None:
        super().__init__(training)
        options = training.config.options[SelfPacedOptions]
        try:
            self.module = BalancedSelfPaced(
                torch.from_numpy(self._train.labels),
                options.lam,
                options.growth,
                options.lam_max,
                options.mu,
                alpha=options.alpha,
                beta=options.beta,
                base=options.base,
                seed=training.config.seed,
            ).to(training.device)
        except ValueError as error:
            raise UsageError(f"method bspml: {error}") from error
        self._warmup = options.warmup

    def start_epoch(self, epoch: int, embed: Callable[[], Tensor]) -> None:
        if epoch >= self._warmup:
            self.module.update(embed().to(self._training.device))

    def arguments(self, rows: Rows) -> dict[str, Tensor]:
        return {"sample_weights": self.module.weights(torch.from_numpy(rows).to(self._training.device))}

    def observe(self, arguments: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"weight": arguments["sample_weights"]}

    def record(self) -> dict[str, float]:
        # Mean and standard deviation of the classes' average weights, Eq. 14 of the paper.
        return {"maw": self.module.maw, "sdaw": self.module.sdaw, "age": float(self.module.lam)}


LOSS_INPUTS["self_paced_weights"] = SelfPacedWeights
METHODS |= {
    "procsim": pair_method(
        "ProcSim",
        _procsim,
        (ProcSimOptions, MultiSimilarityOptions, ProxyNCAOptions),
        observe=_observed_step,
        observed=("sigma", "detector_loss", "above_threshold"),
        takes_weights=False,
    ),
    "bspml": pair_method("BSPML", _bspml, (SelfPacedOptions,), inputs=("labels", "self_paced_weights")),
}
