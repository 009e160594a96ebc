"""Steps, loss and observations of an epoch that has not ended; a checkpoint in the middle of it holds them."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from robustdml_ops.losses import Observation

# Of so many steps the first one is observed, where the loss can be: small steps take longer then.
OBSERVED_EVERY = 8
# What is observed, by its name in a record of an epoch.
SEEN = {
    "own_probability": "probability",
    "own_margin": "margin",
    "own_rank": "rank",
    "hardest_positive": "hardest_positive",
    "hardest_negative": "hardest_negative",
}


@dataclass
class UnderWay:
    """Steps, samples, loss and what was observed since the epoch began."""

    steps: int = 0
    samples: int = 0
    taken: int = 0  # Steps for which the filter kept something
    total: Tensor = field(default_factory=lambda: torch.zeros(()))  # Sum of their losses
    seconds: float = 0.0
    seen: Tensor = field(default_factory=lambda: torch.zeros(len(SEEN), 2))  # Sum and number of each of SEEN

    def see(self, observation: Observation) -> None:
        """Add what a step has seen of its samples."""
        for place, name in enumerate(SEEN.values()):
            value = getattr(observation, name)
            if value is not None:
                known = torch.isfinite(value)
                found = torch.stack([torch.where(known, value, 0).sum(), known.sum()])
                self.seen = self.seen.to(found.device)
                self.seen[place] += found
