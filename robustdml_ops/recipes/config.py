"""Everything that defines a training run, and its checks."""

from dataclasses import asdict, dataclass, field
from typing import Any

from robustdml_ops.recipes.errors import UsageError
from robustdml_ops.recipes.filter_options import FILTERS, NO_FILTER, FilterOptions
from robustdml_ops.recipes.methods import (
    METHODS,
    AdaptiveOptions,
    AnchorOptions,
    ContrastiveOptions,
    MemoryContrastiveOptions,
    MultiSimilarityOptions,
    NormalizedSoftmaxOptions,
    ProcSimOptions,
    ProxyNCAOptions,
    SelfPacedOptions,
    SmoothOptions,
    SoftTripleOptions,
    SuperLossOptions,
)
from robustdml_ops.recipes.noise import noise_rate, parse_noise


@dataclass(frozen=True)
class TrainingConfig:
    """Settings of one run. Those of a method or a filter are a group of their own, and have no effect on the others.

    Defaults are the papers' where they name any. One departs from it: the learning rate of the dense layers is 1e-3
    rather than 1e-4, with which a run of 15 epochs on Glyphs ends long before plain Proxy-Anchor has converged on clean
    labels (``docs/training.md`` has the figures).

    Attributes
    ----------
    method : str
        A key of `robustdml_ops.recipes.methods.METHODS`.
    noise : str
        What is done to the training labels: ``none``, or ``KIND:RATE`` with a key of
        `robustdml_ops.recipes.noise.NOISES`.
    taxonomy : str
        Tree of the classes for semantic noise, as in `robustdml_ops.recipes.taxonomy.load_taxonomy`; empty for the one
        that goes with the data.
    noise_rate : float or None
        Share of wrong labels that a filter is told, in [0, 1]; None for that of `noise`, the true one, as papers do.
        The threshold "otsu" is not told it: a number is the most that it rejects of a class.
    seed : int
        Of initialisation, batches and noise.
    epochs : int
        Passes over the training split.
    batch_size : int
        Samples a step.
    samples_per_class : int or None
        0 for random batches, or K for batches of batch_size/K classes × K samples; None for what the method asks for,
        then in smaller batches where there are fewer classes, or where K does not divide the batch size.
    embedding_size : int
        D.
    finetune : bool
        Train the backbone as well; otherwise its features are computed once and only the embedding layer trains.
    backbone : str
        ``package.module:factory`` of the user's own, ``untrained`` for the built-in network as it starts, or empty for
        the one that goes with the data.
    learning_rate : float or None
        Of AdamW for the network; None for what the method asks for.
    proxy_learning_rate, weight_decay : float
        Of AdamW for proxies (and margins), and its decay, which spares proxies and margins.
    amp : str
        ``none``, or ``bf16`` for bfloat16 autocast.
    anchor, smooth, adaptive, proxy_nca, normalized_softmax, soft_triple, contrastive, mcl, multi_similarity
        Settings of methods.
    procsim, superloss, bspml
        Likewise, of those that weigh samples or pairs.
    filter : FilterOptions or None
        What keeps samples of probably wrong labels out of the loss; None for what the method asks for.
    """

    method: str = "robust"
    noise: str = "none"
    taxonomy: str = ""
    noise_rate: float | None = None
    seed: int = 0
    epochs: int = 15
    batch_size: int = 256
    samples_per_class: int | None = None
    embedding_size: int = 64
    finetune: bool = False
    backbone: str = ""
    learning_rate: float | None = None
    proxy_learning_rate: float = 1e-2
    weight_decay: float = 1e-4
    amp: str = "none"
    anchor: AnchorOptions = field(default_factory=AnchorOptions)
    smooth: SmoothOptions = field(default_factory=SmoothOptions)
    adaptive: AdaptiveOptions = field(default_factory=AdaptiveOptions)
    proxy_nca: ProxyNCAOptions = field(default_factory=ProxyNCAOptions)
    normalized_softmax: NormalizedSoftmaxOptions = field(default_factory=NormalizedSoftmaxOptions)
    soft_triple: SoftTripleOptions = field(default_factory=SoftTripleOptions)
    contrastive: ContrastiveOptions = field(default_factory=ContrastiveOptions)
    mcl: MemoryContrastiveOptions = field(default_factory=MemoryContrastiveOptions)
    multi_similarity: MultiSimilarityOptions = field(default_factory=MultiSimilarityOptions)
    procsim: ProcSimOptions = field(default_factory=ProcSimOptions)
    superloss: SuperLossOptions = field(default_factory=SuperLossOptions)
    bspml: SelfPacedOptions = field(default_factory=SelfPacedOptions)
    filter: FilterOptions | None = None

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise UsageError(f"method {self.method!r}: expected one of {', '.join(METHODS)}")
        parse_noise(self.noise)
        if self.noise_rate is not None and not 0 <= self.noise_rate <= 1:
            raise UsageError(f"noise_rate={self.noise_rate}: expected a share between 0 and 1")
        kind = self.filter_options.kind
        if kind not in (NO_FILTER, *FILTERS):
            raise UsageError(f"filter {kind!r}: expected one of {', '.join((NO_FILTER, *FILTERS))}")
        if kind != NO_FILTER and not METHODS[self.method].takes_weights:
            raise UsageError(f"filter {kind}: method {self.method} weighs samples itself; use filter none")
        if kind == "prism-proxy" and METHODS[self.method].proxies is None:
            raise UsageError(f"filter prism-proxy needs proxies, and method {self.method} has none; use prism-average")
        if self.amp not in ("none", "bf16"):
            raise UsageError(f"amp {self.amp!r}: expected none or bf16")
        settings = self.flat()
        for name in ("epochs", "batch_size", "embedding_size", "smooth.epochs"):
            if settings[name] < 1:
                raise UsageError(f"{name}={settings[name]}: expected at least 1")
        for name in ("samples_per_class", "seed", "filter.warmup", "filter.vmf_epochs"):
            if settings[name] is not None and settings[name] < 0:
                raise UsageError(f"{name}={settings[name]}: expected at least 0")
        for name in ("learning_rate", "proxy_learning_rate", "smooth.learning_rate"):
            if settings[name] is not None and not settings[name] > 0:
                raise UsageError(f"{name}={settings[name]}: expected a positive number")

    @property
    def balanced_samples(self) -> int:
        """K of class-balanced batches, 0 for random ones: the setting, or what the method asks for."""
        if self.samples_per_class is None:
            return METHODS[self.method].samples_per_class
        return self.samples_per_class

    @property
    def network_learning_rate(self) -> float:
        """Learning rate of the network: the setting, or what the method asks for."""
        return METHODS[self.method].learning_rate if self.learning_rate is None else self.learning_rate

    @property
    def filter_options(self) -> FilterOptions:
        """The filter: the setting, or what the method asks for."""
        return METHODS[self.method].filter if self.filter is None else self.filter

    @property
    def told_noise_rate(self) -> float | None:
        """Share of wrong labels that a filter is told: the setting, or the true one for thresholds that need one."""
        needs_one = self.filter_options.threshold not in ("otsu", "fixed")
        return noise_rate(self.noise) if self.noise_rate is None and needs_one else self.noise_rate

    def as_dict(self) -> dict[str, Any]:
        """All settings as they are to be stored, the filter that the method asks for among them.

        Returns
        -------
        dict
            Numbers, texts, None, and a dict for each group.
        """
        return asdict(self) | {"filter": asdict(self.filter_options)}

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

        Parameters
        ----------
        other : dict
            The stored settings, as `as_dict` gives them.

        Returns
        -------
        list of str
            Lines such as ``seed: 1 then, 0 now``.
        """
        stored = _flatten(other)
        return [
            f"{name}: {stored.get(name)!r} then, {value!r} now"
            for name, value in self.flat().items()
            if name != "epochs" and stored.get(name) != value
        ]


def _flatten(settings: dict[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        flat |= {f"{name}.{inner}": v for inner, v in value.items()} if isinstance(value, dict) else {name: value}
    return flat
