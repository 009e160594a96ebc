"""Everything that defines a training run, and its checks."""

from dataclasses import dataclass, field, fields, replace
from typing import Any

from robustdml.errors import UnknownNameError, UsageError
from robustdml.filters.options import AUDIT, FILTERS, NO_FILTER, FilterOptions
from robustdml.methods import METHODS, option_groups
from robustdml.options import OptionSet, check_bounds
from robustdml.review.uses import CONFIDENCE, DROP, TRAINING_USES, WEIGHT
from robustdml_ops.robust import PRISM

RANDOM, PRINCIPAL = "random", "principal"
STARTS = (RANDOM, PRINCIPAL)
# The name of a backbone that is not trained yet.
UNTRAINED = "untrained"


@dataclass(frozen=True)
class TrainingConfig:
    """Settings of one run. Those of a method or a filter are groups of their own, and have no effect on the others.

    Defaults are the papers' where they name any. One departs from it: the learning rate of the dense layers is 1e-3
    rather than 1e-4, with which a run of 15 epochs on Glyphs ends long before plain Proxy-Anchor has converged on clean
    labels (``docs/training.md`` has the figures).

    Attributes
    ----------
    method : str
        A key of `robustdml.methods.METHODS`.
    noise_rate : float or None
        Rate of wrong labels that a filter assumes, in [0, 1]; None for the true rate of the data, as in the papers, or
        0 where the true labels are not known. The thresholds "otsu" and "cautious" need none: a number is the most that
        they reject of a class.
    seed : int
        Seed of initialisation and batches.
    epochs : int
        Passes over the training split.
    batch_size : int
        Samples a step.
    samples_per_class : int or None
        0 for random batches, or K for batches of batch_size/K classes × K samples; None for what the method asks for,
        then in smaller batches where there are fewer classes, or where K does not divide the batch size.
    embedding_size : int or None
        D; None for 64, or with the start called principal for as many as keep the similarities of the features, 64 to
        512.
    start : str or None
        How the embedding layer begins: ``random``, He's normal distribution, or ``principal``, the principal axes of
        the features; None for what the method asks for.
    averaging : float or None
        Share of the trained embedding layer in its average with its start, in [0, 1]; None for what the method asks
        for: 1, or a share that is chosen by a trial run which leaves classes out.
    finetune : bool
        Train the backbone as well; otherwise its features are computed once and only the embedding layer trains.
    backbone : str
        ``efficientnet-lite0`` (of the extra ``vision``), ``timm:NAME``, ``package.module:factory`` of the user's own,
        ``untrained`` for the built-in network as it starts, or empty for the one that goes with the data.
    backbone_weights : str
        File of weights for the first two, instead of those that they come with; empty for none.
    augment : bool
        Whether the first two crop and flip images at random while they are finetuned.
    learning_rate : float or None
        Of AdamW for the network; None for what the method asks for.
    proxy_learning_rate, weight_decay : float
        Of AdamW for proxies (and margins), and its decay, which spares proxies and margins.
    amp : str
        ``none``, or ``bf16`` for bfloat16 autocast.
    options : OptionSet
        Settings of methods, which lie in the methods' own files in `robustdml.methods`:
        ``OptionSet(SmoothOptions(beta=50.0))``, and then ``config.options[SmoothOptions].beta``.
    labels : str
        File ``labels.csv`` of an audit of these training samples, whose findings are used; empty for none.
    labels_use : str
        What is done with them: ``drop`` leaves out what is called wrong or of no class, ``correct`` puts proposals of
        at least `labels_confidence` in the place of the label and drops the others, ``weight`` weighs every sample by
        the probability that its label is right.
    labels_confidence : float
        In [0, 1].
    correct : bool
        Whether samples that the filter rejects take part under the class that it thinks they are of.
    correct_confidence : float
        In [0, 1], the least probability of that class.
    filter : FilterOptions or None
        What keeps samples of probably wrong labels out of the loss; None for what the method asks for.
    """

    method: str = "robust"
    noise_rate: float | None = None
    seed: int = 0
    epochs: int = 15
    batch_size: int = 256
    samples_per_class: int | None = None
    embedding_size: int | None = None
    start: str | None = None
    averaging: float | None = None
    finetune: bool = False
    backbone: str = ""
    backbone_weights: str = ""
    augment: bool = True
    learning_rate: float | None = None
    proxy_learning_rate: float = 1e-2
    weight_decay: float = 1e-4
    amp: str = "none"
    labels: str = ""
    labels_use: str = DROP
    labels_confidence: float = CONFIDENCE
    correct: bool = False
    correct_confidence: float = CONFIDENCE
    options: OptionSet = field(default_factory=OptionSet)
    filter: FilterOptions | None = None

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise UnknownNameError("method", self.method, METHODS)
        if self.noise_rate is not None and not 0 <= self.noise_rate <= 1:
            raise UsageError(f"noise_rate={self.noise_rate}: expected a share between 0 and 1")
        if self.amp not in ("none", "bf16"):
            raise UnknownNameError("amp", self.amp, ("none", "bf16"))
        for name in ("epochs", "batch_size", "embedding_size"):
            check_bounds(name, getattr(self, name), at_least=1)
        if self.start not in (None, *STARTS):
            raise UnknownNameError("start", str(self.start), STARTS)
        self._check_averaging()
        for name in ("samples_per_class", "seed"):
            check_bounds(name, getattr(self, name), at_least=0)
        for name in ("learning_rate", "proxy_learning_rate"):
            check_bounds(name, getattr(self, name), positive=True)
        for group in self.options.groups:
            if type(group) not in option_groups():
                raise UsageError(f"{type(group).__name__}: no method has this group of settings")
            group.check()
        self._check_filter()
        self._check_labels()
        self._check_correction()

    def _check_correction(self) -> None:
        if not 0 <= self.correct_confidence <= 1:
            raise UsageError(f"correct_confidence={self.correct_confidence}: expected a probability between 0 and 1")
        if not self.correct:
            return
        if self.filter_options.kind != "prism-vmf":
            raise UsageError(
                f"correct is of what a filter by vMF-Sim rejects, and there is filter {self.filter_options.kind}: "
                "choose filter prism-vmf, or a method that has it, robust"
            )
        if "labels" not in METHODS[self.method].inputs(self.options):
            raise UsageError(f"correct has no effect on method {self.method}, which takes no labels")

    def _check_labels(self) -> None:
        if self.labels_use not in TRAINING_USES:
            raise UnknownNameError("use of labels", self.labels_use, TRAINING_USES)
        if not 0 <= self.labels_confidence <= 1:
            raise UsageError(f"labels_confidence={self.labels_confidence}: expected a probability between 0 and 1")
        if not self.labels:
            return
        if self.labels_use == WEIGHT and not METHODS[self.method].takes_weights:
            raise UsageError(f"labels_use {WEIGHT}: method {self.method} weighs samples itself; drop or correct")
        if self.noise_rate is None and self.needs_noise_rate:
            raise UsageError(
                f"filter {self.filter_options.kind} with threshold {self.filter_options.threshold} needs the share of "
                "wrong labels that the audit has left: give noise_rate, or take the threshold cautious"
            )

    def _check_averaging(self) -> None:
        if self.averaging is None:
            return
        if not 0 <= self.averaging <= 1:
            raise UsageError(f"averaging={self.averaging}: expected a share between 0 and 1")
        if self.averaging < 1 and self.finetune:
            raise UsageError(f"averaging={self.averaging} is for frozen features: leave it out, or finetune")
        if self.averaging < 1 and self.layer_start != PRINCIPAL:
            raise UsageError(
                f"averaging={self.averaging} is with what the layer starts from, and a random start is nothing to go "
                f"back to; give start {PRINCIPAL} as well"
            )

    def _check_filter(self) -> None:
        self.filter_options.check()
        kind = self.filter_options.kind
        if kind == NO_FILTER:
            return
        if not METHODS[self.method].takes_weights:
            raise UsageError(f"filter {kind}: method {self.method} weighs samples itself; use filter none")
        if kind == AUDIT:
            if self.noise_rate is not None:
                raise UsageError(f"noise_rate={self.noise_rate} has no effect on filter {kind}, which estimates it")
            return
        if FILTERS[kind] == "proxy" and METHODS[self.method].proxies is None:
            raise UsageError(f"filter {kind} needs proxies, and method {self.method} has none; use prism-average")

    @property
    def balanced_samples(self) -> int:
        """K of class-balanced batches, 0 for random ones: the setting, or what the method asks for."""
        if self.samples_per_class is None:
            return METHODS[self.method].samples_per_class
        return self.samples_per_class

    @property
    def layer_start(self) -> str:
        """How the embedding layer begins: the setting, or what the method asks for."""
        if self.start is not None:
            return self.start
        # Features of an untrained network have no axes worth starting from.
        return RANDOM if self.backbone == UNTRAINED else METHODS[self.method].start

    @property
    def chooses_averaging(self) -> bool:
        """Whether a trial is to choose the share of the trained embedding layer."""
        asked = self.averaging is None and METHODS[self.method].averages
        return asked and not self.finetune and self.layer_start == PRINCIPAL

    @property
    def network_learning_rate(self) -> float:
        """Learning rate of the network: the setting, or what the method asks for."""
        return METHODS[self.method].learning_rate if self.learning_rate is None else self.learning_rate

    @property
    def filter_options(self) -> FilterOptions:
        """The filter: the setting, or what the method asks for."""
        chosen = METHODS[self.method].filter if self.filter is None else self.filter
        # Corrected is what this filter rejects: none other is tried in its place.
        return replace(chosen, on_trial=False) if self.correct else chosen

    @property
    def needs_noise_rate(self) -> bool:
        """Whether the filter's threshold needs the rate of wrong labels."""
        options = self.filter_options
        return options.kind in FILTERS and options.threshold not in (*PRISM.THRESHOLDS_BY_OTSU, "fixed")

    def assumed_noise_rate(self, true_rate: float) -> float | None:
        """Rate of wrong labels that the filter assumes: the setting, or the true one if its threshold needs a rate."""
        return true_rate if self.noise_rate is None and self.needs_noise_rate else self.noise_rate

    def as_dict(self) -> dict[str, Any]:
        """All settings as they are to be stored, the filter that the method asks for among them.

        Returns
        -------
        dict
            Numbers, texts, None, and a dict for each group.
        """
        plain = {item.name: getattr(self, item.name) for item in fields(self) if item.name != "options"}
        groups = {group.name: self.options[group].as_dict() for group in option_groups()}
        return {**plain, **groups, "filter": self.filter_options.as_dict()}

    def flat(self) -> dict[str, Any]:
        """All settings by name, those of a group as ``group.name``.

        Returns
        -------
        dict
            Numbers, texts, None.
        """
        return _flatten(self.as_dict())

    def differences(self, other: dict[str, Any]) -> list[str]:
        """Name the settings that a stored run had otherwise; the number of epochs may differ, so that a run can go on.

        A setting that came after the run was stored had its default then.

        Parameters
        ----------
        other : dict
            The stored settings, as `as_dict` gives them.

        Returns
        -------
        list of str
            Lines such as ``seed: 1 then, 0 now``.
        """
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
