"""What a training method is."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from robustdml.filters.options import FilterOptions
from robustdml.options import Options, OptionSet


@dataclass(frozen=True)
class Method:
    """A training method."""

    title: str  # Its name in tables and plots
    # Makes the loss of the settings, the number of classes C and the embedding size D.
    make_loss: Callable[[OptionSet, int, int], nn.Module]
    # The groups of settings that it takes, each a subclass of `Options`; methods may share one.
    options: tuple[type[Options], ...] = ()
    # Names what the loss takes beside the embeddings: keys of `robustdml.loss_inputs.LOSS_INPUTS`.
    inputs: tuple[str, ...] = ("labels",)
    # Default of the setting of that name: K of batches of P classes × K samples, 0 for random batches.
    samples_per_class: int = 0
    learning_rate: float = 1e-3  # Default of the setting of that name
    # Calls the loss with embeddings and the arguments of its inputs by name; gives its value and what is to be logged
    # of each sample, (B,) by name.
    observe: Callable[[nn.Module, Tensor, dict[str, Any]], tuple[Tensor, dict[str, Tensor]]] = (
        lambda loss, embeddings, arguments: (loss(embeddings, **arguments), {})
    )
    observed: tuple[str, ...] = ()  # The names of what `observe` gives
    takes_filter: bool = True  # False of losses that take no weights of samples
    filter: FilterOptions = field(default_factory=FilterOptions)  # Default of the setting of that name
    # Gives the proxies of the loss, (C, D) or (C, H, D), where it has any.
    proxies: Callable[[Any], Tensor] | None = None
    start: str = "random"  # Default of the setting of that name
    averages: bool = False  # Whether a trial chooses the setting `averaging` where it is not given
    # Names of the methods whose losses trials compare, its own first; none: its own alone.
    losses: tuple[str, ...] = ()
    has_stages: bool = False  # Whether the trials are after half of the epochs, and not before training
    # Angle by which Adagrad within the sweep turns a proxy in its first step; None: AdamW at `proxy_learning_rate`.
    proxy_radians: float | None = None


def arguments_of(loss: Callable[..., nn.Module], options: OptionSet, groups: Sequence[type[Options]]) -> dict[str, Any]:
    """Settings of these groups by name, as far as the loss takes them; the others are of its inputs."""
    taken = inspect.signature(loss).parameters
    settings = {name: value for group in groups for name, value in options[group].as_dict().items()}
    return {name: value for name, value in settings.items() if name in taken}
