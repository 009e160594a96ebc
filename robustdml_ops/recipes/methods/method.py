"""What a training method is."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from robustdml_ops.recipes.filters.options import FilterOptions
from robustdml_ops.recipes.options import Options, OptionSet


def only_labels(options: OptionSet) -> tuple[str, ...]:
    """Inputs of a loss that takes labels and nothing else.

    Parameters
    ----------
    options : OptionSet
        Settings; any.

    Returns
    -------
    tuple of str
        ``("labels",)``.
    """
    return ("labels",)


def only_value(loss: nn.Module, embeddings: Tensor, arguments: dict[str, Any]) -> tuple[Tensor, dict[str, Tensor]]:
    """Call a loss of whose samples nothing is to be logged.

    Parameters
    ----------
    loss : Module
        The loss.
    embeddings : Tensor
        (B, D).
    arguments : dict
        Its other arguments.

    Returns
    -------
    tuple
        Its value, and nothing.
    """
    return loss(embeddings, **arguments), {}


@dataclass(frozen=True)
class Method:
    """A training method.

    Attributes
    ----------
    title : str
        Its name in tables and plots.
    make_loss : callable
        Makes the loss of the settings, the number of classes C and the embedding size D.
    options : tuple of type
        The groups of settings that it takes, each a subclass of `Options`; methods may share one.
    inputs : callable
        Names, by the settings, what the loss takes beside the embeddings: keys of
        `robustdml_ops.recipes.loss_inputs.LOSS_INPUTS`.
    samples_per_class : int
        Default of the setting of that name: K of batches of P classes × K samples, 0 for random batches.
    learning_rate : float
        Default of the setting of that name.
    observe : callable
        Calls the loss with embeddings and the arguments of its inputs by name; gives its value and what is to be logged
        of each sample, (B,) by name.
    observed : tuple of str
        The names of what `observe` gives.
    takes_weights : bool
        Whether the loss has ``sample_weights``, of which a filter makes use.
    filter : FilterOptions
        Default of the setting of that name.
    proxies : callable or None
        Gives the proxies of the loss, (C, D) or (C, H, D), where it has any.
    start : str
        Default of the setting of that name.
    averages : bool
        Whether the embedding layer is averaged with its start, by a share that a trial chooses, where the setting does
        not say otherwise.
    """

    title: str
    make_loss: Callable[[OptionSet, int, int], nn.Module]
    options: tuple[type[Options], ...] = ()
    inputs: Callable[[OptionSet], tuple[str, ...]] = only_labels
    samples_per_class: int = 0
    learning_rate: float = 1e-3
    observe: Callable[[nn.Module, Tensor, dict[str, Any]], tuple[Tensor, dict[str, Tensor]]] = only_value
    observed: tuple[str, ...] = ()
    takes_weights: bool = True
    filter: FilterOptions = field(default_factory=FilterOptions)
    proxies: Callable[[Any], Tensor] | None = None
    start: str = "random"
    averages: bool = False
