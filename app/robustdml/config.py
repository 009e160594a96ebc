"""Everything that defines a training run, and its checks."""

import math
from dataclasses import dataclass, field, fields
from typing import Any

from robustdml.errors import UsageError
from robustdml.filters.options import AUDIT, FILTERS, NO_FILTER, OWN_CLASS, FilterOptions
from robustdml.methods import METHODS, option_groups
from robustdml.options import Options, OptionSet, option
from robustdml_ops.robust import PRISM

DROP, CORRECT = "drop", "correct"
USES = (DROP, CORRECT)
# Proposals that are put in the place of a label are at least as sure as this.
CONFIDENCE = 0.9

CONSTANT, COSINE = "constant", "cosine"
RANDOM, PRINCIPAL, WHITENED = "random", "principal", "whitened"
STARTS = (RANDOM, PRINCIPAL, WHITENED)
# The name of a backbone that is not trained yet.
UNTRAINED = "untrained"


@dataclass(frozen=True)
class TrainingConfig(Options):
    """Settings of one run; ``robustdml train --help`` describes each.

    Defaults are the papers' where they name any, but for the learning rate of the dense layers: with 1e-4 a run of 15
    epochs on Glyphs ends long before plain Proxy-Anchor has converged on clean labels (``docs/training.md``).

    Settings of methods are groups in `options`, declared in the methods' own files in `robustdml.methods`:
    ``OptionSet(SmoothOptions(beta=50.0))``, and then ``config.options[SmoothOptions].beta``. The group `filter` is None
    for the filter that the method asks for. Groups of other methods have no effect.

    Examples
    --------
    >>> TrainingConfig(method="proxy-anchor", epochs=3).network_learning_rate
    0.001
    """

    method: str = option("robust", "the loss", choices=METHODS, heading="what to train")
    noise_rate: float | None = option(
        None,
        "rate of wrong labels that a filter assumes (default: that of --noise, as in the papers); for the thresholds "
        f"otsu and cautious the most that is rejected of a class (default: {PRISM.MOST_REJECTED})",
        at_least=0,
        at_most=1,
    )
    labels: str = option("", "labels.csv of robustdml audit for these samples, whose findings are used", metavar="FILE")
    labels_use: str = option(DROP, "drop wrong labels, or correct by sure proposals and drop the rest", choices=USES)
    labels_confidence: float = option(CONFIDENCE, "least probability of such a proposal", at_least=0, at_most=1)
    finetune: bool = option(False, "train the backbone too, not the embedding layer alone", heading="network")
    backbone: str = option(
        "",
        "efficientnet-lite0 (needs the extra vision; for folders of images), timm:NAME, your own as "
        f"package.module:factory, FILE.py:factory, FILE.pt2, or {UNTRAINED}, for a small CNN with random weights "
        "(default: efficientnet-lite0 for images, none for features, of glyphs "
        "its own CNN)",
    )
    backbone_weights: str = option("", "file of weights for efficientnet-lite0 or timm:NAME", metavar="FILE")
    augment: bool = option(True, "random crops and flips, where efficientnet-lite0 or timm:NAME is finetuned")
    embedding_size: int | None = option(
        None,
        "size of the embeddings (default: 64; from a whitened or principal start the first of 64, 128, … that "
        "loses little; where the features are kept, theirs)",
        at_least=1,
    )
    start: str | None = option(
        None,
        "the embedding layer as it starts: random (He's normal distribution), the principal axes of the features, or "
        "these whitened within classes (default: whitened for robust, principal if it finetunes and for many-classes; "
        "else random)",
        choices=STARTS,
    )
    averaging: float | None = option(
        None,
        "weight of the trained embedding layer in its average with its start (default: 1; of robust "
        "chosen by trial runs on held-out training classes, which may keep the features as they are)",
        at_least=0,
        at_most=1,
    )
    epochs: int = option(15, "passes over the training images", at_least=1, heading="training")
    batch_size: int = option(256, "images a step", at_least=1)
    micro_batch: int | None = option(
        None,
        "images that are in the backbone at once, with finetune: the step is that of all images, and takes one more "
        "forward (default: all of a step)",
        metavar="IMAGES",
        at_least=1,
    )
    samples_per_class: int | None = option(
        None,
        "0 for random batches, K for balanced ones with K images of each class (default: 4 for losses on pairs, "
        "else 0)",
        metavar="K",
        at_least=0,
    )
    learning_rate: float | None = option(
        None,
        "of AdamW, for the embedding layer (default: 1e-3, of soft-triple and losses on pairs 3e-3; of robust more if "
        "steps are few)",
        positive=True,
    )
    proxy_learning_rate: float = option(1e-2, "of AdamW, for proxies and margins", positive=True)
    backbone_learning_rate: float | None = option(
        None, "of AdamW, for the backbone, with finetune (default: as for the embedding layer)", positive=True
    )
    schedule: str = option(CONSTANT, "rates as given, or down to 0 along a cosine", choices=(CONSTANT, COSINE))
    warmup: float = option(0.0, "epochs in which the learning rates rise from 0", at_least=0)
    weight_decay: float = option(1e-4, "of the network", at_least=0)
    seed: int = option(0, "of initialisation, batches and noise", at_least=0, at_most=2**63 - 1)
    amp: str = option("none", "bf16 for bfloat16 autocast", choices=("none", "bf16"))
    options: OptionSet = field(default_factory=OptionSet)
    filter: FilterOptions | None = None

    def __post_init__(self) -> None:
        self.check()
        if self.averaging is not None and self.averaging < 1:
            given = f"averaging={self.averaging}"
            if self.finetune:
                raise UsageError(f"{given} is for frozen features, and finetune trains the backbone: leave one out")
            if self.layer_start == RANDOM:
                raise UsageError(f"{given}: a random start is nothing to go back to; give start {WHITENED} as well")
        if self.micro_batch is not None and not self.finetune:
            raise UsageError(f"micro_batch={self.micro_batch} is for finetune, where the backbone trains: leave it out")
        if METHODS[self.method].has_stages and self.epochs < 2:
            raise UsageError(f"epochs={self.epochs}: method {self.method} has two stages and needs 2 or more")
        if self.warmup >= self.epochs:
            raise UsageError(f"warmup={self.warmup:g}: expected fewer than the {self.epochs} epochs")
        for group in self.options.groups:
            if type(group) not in option_groups():
                raise UsageError(f"{type(group).__name__}: no method has this group of settings")
            group.check()
        self._check_filter()
        if self.labels and self.noise_rate is None and self.needs_noise_rate:
            raise UsageError(
                f"filter {self.filter_options.kind} with threshold {self.filter_options.threshold} needs the share of "
                "wrong labels that the audit has left: give noise_rate, or take the threshold cautious"
            )

    def _check_filter(self) -> None:
        self.filter_options.check()
        kind, method = self.filter_options.kind, METHODS[self.method]
        if kind != NO_FILTER and not method.takes_filter:
            raise UsageError(f"filter {kind}: method {self.method} weighs samples itself; use filter none")
        if kind == OWN_CLASS and not method.has_stages:
            raise UsageError(f"filter {kind} judges labels between two stages: method {self.method} has one")
        if kind in (AUDIT, OWN_CLASS) and self.noise_rate is not None:
            raise UsageError(f"noise_rate={self.noise_rate} has no effect on filter {kind}, which estimates it")
        if FILTERS.get(kind) == "proxy" and method.proxies is None:
            raise UsageError(f"filter {kind} needs proxies, and method {self.method} has none; use prism-average")

    @property
    def layer_start(self) -> str:
        """How the embedding layer begins: the setting, or the method's default."""
        if self.start is not None:
            return self.start
        start = METHODS[self.method].start
        # Under a network that trains whitening gained nothing on validation letters.
        start = PRINCIPAL if start == WHITENED and self.finetune else start
        # Features of an untrained network have no axes worth starting from.
        return RANDOM if self.backbone == UNTRAINED else start

    @property
    def chooses_averaging(self) -> bool:
        """Whether a trial run chooses `averaging`, the weight of the trained embedding layer."""
        asked = self.averaging is None and METHODS[self.method].averages
        return asked and not self.finetune and self.layer_start != RANDOM

    @property
    def network_learning_rate(self) -> float:
        """Learning rate of the network: the setting, or the method's default."""
        return METHODS[self.method].learning_rate if self.learning_rate is None else self.learning_rate

    def rate_factor(self, done: float) -> float:
        """Factor of all learning rates after `done` epochs, by warm-up and schedule."""
        if done < self.warmup:
            return done / self.warmup
        if self.schedule == CONSTANT:
            return 1.0
        return 0.5 + 0.5 * math.cos(math.pi * (done - self.warmup) / (self.epochs - self.warmup))

    @property
    def filter_options(self) -> FilterOptions:
        """The filter: the setting, or the method's default."""
        return METHODS[self.method].filter if self.filter is None else self.filter

    @property
    def needs_noise_rate(self) -> bool:
        """Whether the filter's threshold needs the rate of wrong labels."""
        options = self.filter_options
        return options.kind in FILTERS and options.threshold not in (*PRISM.THRESHOLDS_BY_OTSU, "fixed")

    def assumed_noise_rate(self, true_rate: float) -> float | None:
        """Rate of wrong labels that the filter assumes: the setting, or the true one if its threshold needs a rate."""
        return true_rate if self.noise_rate is None and self.needs_noise_rate else self.noise_rate

    def as_dict(self) -> dict[str, Any]:
        """All settings as they are stored: numbers, texts, None, and a dict for each group; the filter is spelt out."""
        plain = {item.name: getattr(self, item.name) for item in fields(self) if item.name != "options"}
        groups = {group.name: self.options[group].as_dict() for group in option_groups()}
        return {**plain, **groups, "filter": self.filter_options.as_dict()}

    def flat(self) -> dict[str, Any]:
        """All settings by name, those of a group as ``group.name``."""
        return _flatten(self.as_dict())

    def differences(self, other: dict[str, Any]) -> list[str]:
        """List the settings that differ from those of a stored run, as ``seed: 1 then, 0 now``, without epochs."""
        # Of a filter the default of the setting, not what the default method asks for.
        stored = TrainingConfig(filter=FilterOptions()).flat() | _flatten(other)
        return [
            f"{name}: {stored[name]!r} then, {value!r} now"
            for name, value in self.flat().items()
            if name != "epochs" and stored[name] != value
        ]


def _flatten(settings: dict[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        flat |= {f"{name}.{inner}": v for inner, v in value.items()} if isinstance(value, dict) else {name: value}
    return flat
