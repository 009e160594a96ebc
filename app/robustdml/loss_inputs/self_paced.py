"""Weights of BSPML as an input of its loss."""

from collections.abc import Callable

import torch
from torch import Tensor

from robustdml.data import Rows
from robustdml.errors import UsageError
from robustdml.loss_inputs.base import LossInput, Training
from robustdml.methods.self_paced import SelfPacedOptions
from robustdml_ops.robust import BalancedSelfPaced


class SelfPacedWeights(LossInput):
    """One weight per training sample, solved for before each epoch over the embeddings of all of them."""

    module: BalancedSelfPaced
    observed = ("weight",)

    def __init__(self, training: Training) -> None:
        options = training.config.options[SelfPacedOptions]
        try:
            self.module = BalancedSelfPaced(
                torch.from_numpy(training.labels),
                options.lam,
                options.growth,
                options.lam_max,
                options.mu,
                alpha=options.alpha,
                beta=options.beta,
                base=options.base,
                seed=training.config.seed,
            ).to(training.device)
        except ValueError as error:
            raise UsageError(f"method bspml: {error}") from error
        self._warmup, self._device = options.warmup, training.device

    def start_epoch(self, epoch: int, embed: Callable[[], Tensor]) -> None:
        """Solve for the weights, past the warm-up."""
        if epoch >= self._warmup:
            self.module.update(embed().to(self._device))

    def arguments(self, rows: Rows) -> dict[str, Tensor]:
        """Weights of a batch."""
        return {"sample_weights": self.module.weights(torch.from_numpy(rows).to(self._device))}

    def observe(self, arguments: dict[str, Tensor]) -> dict[str, Tensor]:
        """Show the weights to the log."""
        return {"weight": arguments["sample_weights"]}

    def record(self) -> dict[str, float]:
        """Give mean and standard deviation of the classes' average weights, Eq. 14 of the paper, and the age."""
        return {"maw": self.module.maw, "sdaw": self.module.sdaw, "age": float(self.module.lam)}
