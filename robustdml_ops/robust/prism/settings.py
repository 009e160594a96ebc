"""The settings of PRISM: which belong together, and what the preset fixes."""

import math
from dataclasses import dataclass

import torch

from robustdml_ops.engine.validation import check_sizes
from robustdml_ops.ops.vmf import BIAS_CORRECTIONS, ESTIMATORS

WITH_BANK = ("average", "vmf")
SIMILARITIES = ("average", "proxy", "vmf")
THRESHOLDS = ("smooth-top-r", "top-r", "per-class", "otsu", "cautious", "fixed")
BY_OTSU = ("otsu", "cautious")
MOST_REJECTED = 0.8
UNSEEN = ("skip", "zero")
_OURS = {"unseen": "skip", "estimator": "newton", "bias_correction": "u"}
_PRESETS = {"paper": {"unseen": "skip", "estimator": "prism", "bias_correction": "none"}}


@dataclass(frozen=True)
class PRISMSettings:
    """The arguments of PRISM, checked; ValueError names those that do not fit."""

    num_classes: int
    embedding_size: int
    similarity: str
    noise_rate: float | None
    threshold: str
    window: int
    memory_size: int | None
    vmf_start: int | None
    fixed_threshold: float | None
    num_samples: int | None
    max_copies: int | None
    unseen: str | None
    estimator: str | None
    bias_correction: str | None
    preset: str | None
    memory_dtype: torch.dtype

    def __post_init__(self) -> None:
        self._check_name("similarity", SIMILARITIES)
        self._check_name("threshold", THRESHOLDS)
        self._check_name("preset", (None, *_PRESETS))
        self._check_name("unseen", (None, *UNSEEN))
        self._check_name("estimator", (None, *ESTIMATORS))
        self._check_name("bias_correction", (None, *BIAS_CORRECTIONS))
        check_sizes(num_classes=self.num_classes, embedding_size=self.embedding_size, window=self.window)
        self._check_threshold()
        self._check_similarity()
        self._check_preset()

    def resolved(self, name: str) -> str:
        """``unseen``, ``estimator`` or ``bias_correction``, by default the preset's."""
        value: str | None = getattr(self, name)
        return value or (_PRESETS[self.preset] if self.preset else _OURS)[name]

    @property
    def rate(self) -> float:
        """R of any threshold but a fixed one: the share to reject, with Otsu's cut the most of a class."""
        return MOST_REJECTED if self.noise_rate is None else self.noise_rate

    def copies_to_find(self) -> int | None:
        """``max_copies``, by default the most that the bank holds of a sample that every epoch has once and keeps."""
        if self.num_samples is None or self.memory_size is None or self.max_copies is not None:
            return self.max_copies
        rejected = 0.5 if self.threshold == "fixed" else self.rate  # a fixed threshold rejects an unknown share
        kept = 1 - min(rejected, 0.9)
        return 1 + math.ceil(self.memory_size / (kept * self.num_samples))

    def _check_threshold(self) -> None:
        fixed, otsu = self.threshold == "fixed", self.threshold in BY_OTSU
        self._check_given("fixed_threshold", fixed, 'threshold="fixed"', "the P_clean above which a sample is kept")
        if not otsu:
            self._check_given("noise_rate", not fixed, 'any threshold but "fixed"', "the share of samples to reject")
        elif self.similarity != "vmf":
            raise ValueError(
                f'threshold="{self.threshold}" needs similarity="vmf", got "{self.similarity}": a cut parts right '
                "labels from wrong ones only where scores are log-likelihoods"
            )
        if self.noise_rate is not None and not 0 <= self.noise_rate <= 1:
            raise ValueError(f"noise_rate must lie in [0, 1], got {self.noise_rate}: it is a share, not a percentage")
        if self.fixed_threshold is not None and not 0 <= self.fixed_threshold <= 1:
            raise ValueError(f"fixed_threshold must lie in [0, 1], got {self.fixed_threshold}")

    def _check_similarity(self) -> None:
        vmf, bank = self.similarity == "vmf", self.similarity in WITH_BANK
        with_bank = f"similarity {', '.join(WITH_BANK)}"
        self._check_given("memory_size", bank, with_bank, "rows of the bank, for instance the size of the training set")
        self._check_given("vmf_start", vmf, 'similarity="vmf"', "iterations of AvgSim, such as the paper's 1500")
        if self.vmf_start is not None and self.vmf_start < 0:
            raise ValueError(f"vmf_start must be at least 0, got {self.vmf_start}")
        if vmf and self.embedding_size < 2:
            raise ValueError('similarity="vmf" needs embedding_size ≥ 2: on a line there is no direction to spread in')
        if self.max_copies is not None:
            check_sizes(max_copies=self.max_copies)
        for name, serves, where in (
            ("num_samples", bank, with_bank),
            ("max_copies", self.num_samples is not None, "num_samples"),
            ("unseen", self.similarity == "average", 'similarity="average"'),
            ("estimator", vmf, 'similarity="vmf"'),
            ("bias_correction", vmf, 'similarity="vmf"'),
        ):
            if not serves:
                self._refuse(name, where)

    def _check_preset(self) -> None:
        if self.preset is None:
            return
        of_preset = f'preset="{self.preset}"'
        for name, value in _PRESETS[self.preset].items():
            if getattr(self, name) not in (None, value):
                raise ValueError(f'{of_preset} has {name}="{value}", got "{getattr(self, name)}": leave one out')
        if self.num_samples is not None:
            raise ValueError(f"{of_preset} has no num_samples: leaving own copies out is an extension")
        if self.threshold in ("per-class", *BY_OTSU):
            raise ValueError(f'{of_preset} has no threshold="{self.threshold}": it is an extension')

    def _check_name(self, name: str, known: tuple[str | None, ...]) -> None:
        if getattr(self, name) not in known:
            raise ValueError(f"{name}={getattr(self, name)!r}: expected one of {', '.join(map(str, known))}")

    def _check_given(self, name: str, needed: bool, where: str, meaning: str) -> None:
        if needed and getattr(self, name) is None:
            raise ValueError(f"{name} is missing, and {where} needs it: {meaning}")
        if not needed:
            self._refuse(name, where)

    def _refuse(self, name: str, where: str) -> None:
        if getattr(self, name) is not None:
            raise ValueError(f"{name}={getattr(self, name)!r} is of no use here: it belongs to {where}")
