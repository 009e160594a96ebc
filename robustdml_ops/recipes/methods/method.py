"""What a training method is."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import nn

if TYPE_CHECKING:
    from robustdml_ops.recipes.config import TrainingConfig


def only_labels(config: "TrainingConfig") -> tuple[str, ...]:
    """Inputs of a loss that takes labels and nothing else.

    Parameters
    ----------
    config : TrainingConfig
        Settings; any.

    Returns
    -------
    tuple of str
        ``("labels",)``.
    """
    return ("labels",)


@dataclass(frozen=True)
class Method:
    """A training method.

    Attributes
    ----------
    title : str
        Its name in tables and plots.
    make_loss : callable
        Makes the loss of settings and number of classes.
    inputs : callable
        Names, by the settings, what the loss takes beside the embeddings: arguments of its ``forward`` and keys of
        `robustdml_ops.recipes.loss_inputs.LOSS_INPUTS`.
    samples_per_class : int
        Default of the setting of that name: K of batches of P classes × K samples, 0 for random batches.
    """

    title: str
    make_loss: Callable[["TrainingConfig", int], nn.Module]
    inputs: Callable[["TrainingConfig"], tuple[str, ...]] = only_labels
    samples_per_class: int = 0
