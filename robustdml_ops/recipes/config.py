"""Everything that defines a training run, and its checks."""

from dataclasses import dataclass, fields

from robustdml_ops.recipes.errors import UsageError
from robustdml_ops.recipes.methods import METHODS
from robustdml_ops.recipes.noise import parse_noise


@dataclass(frozen=True)
class TrainingConfig:
    """Settings of one run; the defaults are Smooth Proxy-Anchor's (Roig et al. 2020, section 4.2) where it names any.

    One departs from it: the learning rate of the dense layers is 1e-3 rather than 1e-4, with which a run of 15 epochs
    on Glyphs ends long before plain Proxy-Anchor has converged on clean labels (``docs/training.md`` has the figures).

    Attributes
    ----------
    method : str
        A key of `robustdml_ops.recipes.methods.METHODS`.
    noise : str
        ``none`` or ``symmetric:RATE``: what is done to the training labels.
    seed : int
        Of initialisation, batches and noise.
    epochs : int
        Passes over the training split.
    batch_size : int
        Samples a step.
    samples_per_class : int
        0 for random batches, or K for batches of batch_size/K classes × K samples.
    embedding_size : int
        D.
    finetune : bool
        Train the backbone as well; otherwise its features are computed once and only the embedding layer trains.
    backbone : str
        ``package.module:factory`` of the user's own, or empty for the built-in one.
    learning_rate, proxy_learning_rate, weight_decay : float
        Of AdamW: network, and proxies (and margins); the decay spares proxies and margins.
    alpha, margin : float
        Of the loss.
    beta, threshold : float
        Of Smooth Proxy-Anchor's weights.
    confidence_epochs : int
        Epochs of phase one of Smooth Proxy-Anchor.
    confidence_learning_rate : float
        Of AdamW in phase one.
    amp : str
        ``none``, or ``bf16`` for bfloat16 autocast.
    """

    method: str = "proxy-anchor"
    noise: str = "none"
    seed: int = 0
    epochs: int = 15
    batch_size: int = 256
    samples_per_class: int = 0
    embedding_size: int = 64
    finetune: bool = False
    backbone: str = ""
    learning_rate: float = 1e-3
    proxy_learning_rate: float = 1e-2
    weight_decay: float = 1e-4
    alpha: float = 32.0
    margin: float = 0.1
    beta: float = 100.0
    threshold: float = 0.1
    confidence_epochs: int = 12
    confidence_learning_rate: float = 1e-3
    amp: str = "none"

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise UsageError(f"method {self.method!r}: expected one of {', '.join(METHODS)}")
        parse_noise(self.noise)
        if self.amp not in ("none", "bf16"):
            raise UsageError(f"amp {self.amp!r}: expected none or bf16")
        for name in ("epochs", "batch_size", "embedding_size", "confidence_epochs"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name}={getattr(self, name)}: expected at least 1")
        if self.samples_per_class < 0 or self.seed < 0:
            raise UsageError(f"samples_per_class={self.samples_per_class}, seed={self.seed}: expected at least 0")
        for name in ("learning_rate", "proxy_learning_rate", "confidence_learning_rate"):
            if not getattr(self, name) > 0:
                raise UsageError(f"{name}={getattr(self, name)}: expected a positive number")

    def differences(self, other: dict[str, object]) -> list[str]:
        """Name the settings that a stored run had otherwise; the number of epochs may differ, so that a run can go on.

        Parameters
        ----------
        other : dict
            The stored settings.

        Returns
        -------
        list of str
            Lines such as ``seed: 1 then, 0 now``.
        """
        return [
            f"{field.name}: {other.get(field.name)!r} then, {getattr(self, field.name)!r} now"
            for field in fields(self)
            if field.name != "epochs" and other.get(field.name) != getattr(self, field.name)
        ]
