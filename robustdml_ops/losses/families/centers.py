"""Softmax losses with H centres a class."""

from typing import Any

from torch import Tensor

from robustdml_ops.losses.families.classes import ClassFamilyLoss


class CentersLoss(ClassFamilyLoss):
    """The class matrix is (D, C·H), whose columns from k·H on are the H centres of class k, as the peer's.

    Where classes are sharded it is (C, H, D): shards of its columns would cut classes apart.
    """

    columns = True
    centers: int

    def class_dimensions(self) -> dict[str, int]:
        """Parameters with entries for each class, and the dimension of ``by_class`` that counts the classes."""
        return {self.matrix_name: 0}

    def by_class(self, _: str, centers: Tensor) -> Tensor:
        """The class matrix, (D, C·H) or (C, H, D), as (C, H, D)."""
        return centers if centers.dim() == 3 else centers.t().reshape(-1, self.centers, len(centers))

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *arguments: Any) -> None:
        """Take centres by class, as several processes save them, also on one process."""
        saved = state_dict.get(prefix + self.matrix_name)
        if saved is not None and saved.dim() == 3 and self._class_parameter().dim() == 2:
            state_dict = {**state_dict, prefix + self.matrix_name: saved.flatten(0, 1).t()}
        super()._load_from_state_dict(state_dict, prefix, *arguments)
