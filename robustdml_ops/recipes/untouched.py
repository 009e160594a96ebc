"""What the features are worth before any training: every run is held against them."""

import torch

from robustdml_ops.recipes.config import UNTRAINED
from robustdml_ops.recipes.evaluation import METRICS, retrieval_metrics
from robustdml_ops.recipes.networks.models import apply_in_batches
from robustdml_ops.recipes.networks.preparation import Prepared
from robustdml_ops.recipes.progress import OnProgress

# What a run must not lose, and by how much it may fall before it is told: one point.
JUDGED = ("precision_at_1", "mean_average_precision_at_r")
TOLERANCE = 0.01
TITLE = "Untouched features"
WAY_OUT = "use the features as they are, or try fewer epochs, a smaller learning rate or another method"


def untouched_metrics(prepared: Prepared, device: torch.device, on_progress: OnProgress) -> dict[str, float]:
    """Evaluate the test split as it is before the first step, under the cosine.

    Parameters
    ----------
    prepared : Prepared
        Data and backbone, of which nothing has trained yet.
    device : torch.device
        Where the backbone is, and where to search.
    on_progress : callable
        Told of features that are made.

    Returns
    -------
    dict
        As `retrieval_metrics`: of the features that were given or that a frozen backbone makes, and of those of the
        backbone as it starts where it trains.

    Raises
    ------
    UsageError
        As `retrieval_metrics`.
    """
    test = prepared.data.test
    features = test.inputs
    if test.is_images:
        features = apply_in_batches(prepared.backbone, features, device, on_progress=on_progress)
    return retrieval_metrics(features, test.labels, device)


def falls_short(value: float, reference: float) -> bool:
    """Tell whether a metric is more than one point below another.

    Parameters
    ----------
    value, reference : float
        Shares.

    Returns
    -------
    bool
        False where it is one point exactly, however that was rounded.
    """
    return round(reference - value, 9) > TOLERANCE


def untouched_title(backbone: str) -> str:
    """Name the features that a run is held against.

    Parameters
    ----------
    backbone : str
        As `TrainingConfig.backbone`.

    Returns
    -------
    str
        For tables.
    """
    return f"{TITLE} of the untrained network" if backbone == UNTRAINED else TITLE


def below_untouched(metrics: dict[str, float], untouched: dict[str, float]) -> str | None:
    """Say whether training has done harm.

    Parameters
    ----------
    metrics : dict
        Of the trained embedding.
    untouched : dict
        From `untouched_metrics`.

    Returns
    -------
    str or None
        A sentence with the figures and the way out where Recall@1 or MAP@R is more than one point lower than it was
        without training; None otherwise.

    Examples
    --------
    >>> before = {"precision_at_1": 0.9, "mean_average_precision_at_r": 0.5}
    >>> below_untouched({"precision_at_1": 0.892, "mean_average_precision_at_r": 0.6}, before)
    >>> below_untouched({"precision_at_1": 0.67, "mean_average_precision_at_r": 0.5}, before)[:68]
    'Training did harm: Recall@1 is 0.670, and 0.900 with the features un'
    """
    lower = [
        f"{METRICS[key]} is {metrics[key]:.3f}, and {untouched[key]:.3f} with the features untouched"
        for key in JUDGED
        if falls_short(metrics[key], untouched[key])
    ]
    return f"Training did harm: {'; '.join(lower)}. The way out: {WAY_OUT}." if lower else None
