"""The settings of PRISM: their values, their defaults, and the errors for those that do not fit each other."""

from collections.abc import Mapping
from typing import Any

from robustdml_ops.engine.validation import check_choice, check_sizes
from robustdml_ops.ops.vmf.problem import BIAS_CORRECTIONS, ESTIMATORS

WITH_BANK = ("average", "vmf")
SIMILARITIES = ("average", "proxy", "vmf")
THRESHOLDS = ("smooth-top-r", "top-r", "per-class", "otsu", "cautious", "fixed")
BY_OTSU = ("otsu", "cautious")
MOST_REJECTED = 0.8
_CHOICES = {"unseen": ("skip", "zero"), "estimator": ESTIMATORS, "bias_correction": BIAS_CORRECTIONS}
# Values of unseen, estimator and bias_correction that are not given, by preset.
DEFAULTS: dict[str | None, dict[str, str]] = {
    None: {"unseen": "skip", "estimator": "newton", "bias_correction": "u"},
    "paper": {"unseen": "skip", "estimator": "prism", "bias_correction": "none"},
}


def check_settings(
    similarity: str, threshold: str, preset: str | None, embedding_size: int, optional: Mapping[str, Any]
) -> None:
    """ValueError for unknown choices, and for ``optional`` settings (None: not given) that are missing or don't fit."""
    check_choice(SIMILARITIES, similarity=similarity)
    check_choice(THRESHOLDS, threshold=threshold)
    check_choice(tuple(DEFAULTS), preset=preset)
    for name, known in _CHOICES.items():
        check_choice((None, *known), **{name: optional[name]})
    if threshold in BY_OTSU and similarity != "vmf":
        raise ValueError(
            f'threshold="{threshold}" needs similarity="vmf", got "{similarity}": a cut parts right labels from wrong '
            "ones only where scores are log-likelihoods"
        )
    _check_presence(similarity, threshold, optional)
    for name, hint in (("noise_rate", ": it is a share, not a percentage"), ("fixed_threshold", "")):
        if optional[name] is not None and not 0 <= optional[name] <= 1:
            raise ValueError(f"{name} must lie in [0, 1], got {optional[name]}{hint}")
    if optional["vmf_start"] is not None and optional["vmf_start"] < 0:
        raise ValueError(f"vmf_start must be at least 0, got {optional['vmf_start']}")
    if similarity == "vmf" and embedding_size < 2:
        raise ValueError('similarity="vmf" needs embedding_size ≥ 2: on a line there is no direction to spread in')
    if optional["max_copies"] is not None:
        check_sizes(max_copies=optional["max_copies"])
    if preset is None:
        return
    for name, value in DEFAULTS[preset].items():
        if optional[name] not in (None, value):
            raise ValueError(f'preset="{preset}" has {name}="{value}", got "{optional[name]}": leave one out')
    if optional["num_samples"] is not None:
        raise ValueError(f'preset="{preset}" has no num_samples: leaving own copies out is an extension')
    if threshold in ("per-class", *BY_OTSU):
        raise ValueError(f'preset="{preset}" has no threshold="{threshold}": it is an extension')


def _check_presence(similarity: str, threshold: str, optional: Mapping[str, Any]) -> None:
    fixed, bank, vmf = threshold == "fixed", similarity in WITH_BANK, 'similarity="vmf"'
    of_bank = f"similarity {', '.join(WITH_BANK)}"
    rate = None if threshold in BY_OTSU else 'the share of samples to reject; "cautious", with "vmf", needs none'
    of_rate = 'any threshold but "fixed"' if fixed else f"threshold={threshold!r}"
    for name, serves, where, meaning in (  # without a meaning, the setting may be left out
        ("fixed_threshold", fixed, 'threshold="fixed"', "the P_clean above which a sample is kept"),
        ("noise_rate", not fixed, of_rate, rate),
        ("memory_size", bank, of_bank, "rows of the bank, for instance the size of the training set"),
        ("vmf_start", similarity == "vmf", vmf, "iterations of AvgSim, such as the paper's 1500"),
        ("num_samples", bank, of_bank, None),
        ("max_copies", optional["num_samples"] is not None, "num_samples", None),
        ("unseen", similarity == "average", 'similarity="average"', None),
        ("estimator", similarity == "vmf", vmf, None),
        ("bias_correction", similarity == "vmf", vmf, None),
    ):
        value = optional[name]
        if serves and meaning and value is None:
            raise ValueError(f"{name} is missing, and {where} needs it: {meaning}")
        if not serves and value is not None:
            raise ValueError(f"{name}={value!r} is of no use here: it belongs to {where}")
