"""BSPML: multi-similarity with weights learnt at the samples' own pace."""

from dataclasses import dataclass

from torch import nn

from robustdml.methods.method import Method
from robustdml.methods.pairs import SAMPLES_PER_CLASS
from robustdml.options import Options, OptionSet, option
from robustdml_ops.losses import BSPMLLoss


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


def _bspml(options: OptionSet, num_classes: int, embedding_size: int) -> nn.Module:
    bspml = options[SelfPacedOptions]
    return BSPMLLoss(bspml.alpha, bspml.beta, bspml.base, bspml.epsilon)


METHODS = {
    "bspml": Method(
        "BSPML",
        _bspml,
        (SelfPacedOptions,),
        inputs=lambda options: ("labels", "self_paced_weights"),
        samples_per_class=SAMPLES_PER_CLASS,
        learning_rate=3e-3,
    )
}
