"""The call of a loss, on one process and where other processes have samples or classes of their own."""

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from robustdml_ops.engine.shards import ONE_PROCESS, OneProcess, settings_of
from robustdml_ops.losses.inputs import LossInputs
from robustdml_ops.losses.joint_inputs import joint_inputs
from robustdml_ops.losses.options import LossOptions, check_options
from robustdml_ops.losses.peer.interface import PeerInterface, without_label
from robustdml_ops.losses.reduction import check_reduction


class MetricLoss(PeerInterface):
    """A loss of embeddings and labels; each family has its sums."""

    known_options: ClassVar[type] = LossOptions  # names of its keyword arguments
    weighs_losses: ClassVar[bool] = False  # sample weights multiply losses that every process computes
    shards: OneProcess = ONE_PROCESS

    def __init__(
        self,
        *,
        reduction: str = "mean",
        backend: str | None = None,
        ignore_index: int | None = None,
        **options: Any,
    ) -> None:
        check_options(type(self), self.known_options.__annotations__, {"reduction": reduction, **options})
        check_reduction(reduction)
        super().__init__(**options)
        self.reduction = reduction
        self.backend = backend
        self.ignore_index = ignore_index

    def class_dimensions(self) -> dict[str, int]:
        """Parameters with entries for each class, and the dimension that counts the classes."""
        return {}

    def _evaluate(self, inputs: LossInputs) -> Tensor:
        embeddings = inputs.embeddings
        if isinstance(embeddings, Tensor) and embeddings.dtype == torch.float64 and not self.shards.divided:
            self._widen()
        if self.ignore_index is not None:
            inputs = without_label(inputs, self.ignore_index)
        if self.shards.divided:
            return self.shards.guard(self._own_loss, self._joint(inputs))
        if not self.is_fused():
            return self._reduced(inputs)
        loss, added = self._loss(inputs), self._regularization(embeddings)
        return loss + added if isinstance(added, Tensor) else loss

    def _widen(self) -> None:
        """Turn the parameters into float64 for good, as the peer does."""
        for parameter in self.parameters():
            if parameter.dtype != torch.float64:
                parameter.data = parameter.data.double()

    def _joint(self, inputs: LossInputs) -> LossInputs:
        """The inputs of all processes."""
        return joint_inputs(self.shards, inputs, self._own_rows, settings_of(self), not self.weighs_losses)

    def _own_rows(self, inputs: LossInputs) -> dict[str, Tensor | None]:
        """Rows that this process adds to the joint inputs, checked, by the names of their fields."""
        raise NotImplementedError

    def _loss(self, inputs: LossInputs) -> Tensor:
        """The loss, (), or its terms, as ``reduction`` says."""
        raise NotImplementedError

    def _own_loss(self, inputs: LossInputs) -> Tensor:
        """The loss of the joint inputs or, unreduced, this process's terms of it."""
        return self._loss(inputs)

    def _class_parameter(self) -> nn.Parameter | None:
        """The parameter of the class matrix, of all classes; None: the loss has none."""
        return None
