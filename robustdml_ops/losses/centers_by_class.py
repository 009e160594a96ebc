"""What the losses with several centres a class share: how the centres lie, of one process and of many."""

from typing import Any, ClassVar

from torch import Tensor, nn

from robustdml_ops.losses.families.classes import ClassFamilyLoss


class CentersByClassLoss(ClassFamilyLoss):
    """A parameter (D, C·H) whose columns from k·H on are the H centres of class k, as pytorch-metric-learning's.

    Where classes are sharded it is (C, H, D): a division of its columns would cut classes apart.
    """

    centers_name: ClassVar[str]  # of the parameter

    def class_dimensions(self) -> dict[str, int]:
        """See the base class; of what lies by class."""
        return {self.centers_name: 0}

    def by_class(self, _: str, centers: Tensor) -> Tensor:
        """The parameter, (D, C·H) or by class already, as (C, H, D), which is how it lies where classes are sharded."""
        return centers if centers.dim() == 3 else centers.t().reshape(-1, self._centers_per_class(), len(centers))

    def _centers_per_class(self) -> int:
        """H."""
        raise NotImplementedError

    def _class_parameter(self) -> nn.Parameter:
        parameter: nn.Parameter = getattr(self, self.centers_name)
        return parameter

    def _class_matrix(self) -> Tensor:
        return self._proxies().flatten(0, 1)

    def _proxies(self) -> Tensor:
        """(C, H, D), a view."""
        return self.by_class(self.centers_name, self._rows_here(self._class_parameter()))

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *arguments: Any) -> None:
        """Of one process or, with centres by class, of several."""
        saved = state_dict.get(prefix + self.centers_name)
        if saved is not None and saved.dim() == 3 and self._class_parameter().dim() == 2:
            state_dict = {**state_dict, prefix + self.centers_name: saved.flatten(0, 1).t()}
        super()._load_from_state_dict(state_dict, prefix, *arguments)
