"""A trial with labels that are wrong on purpose: how much a doubt of each expert is worth on this data set.

Each sample has its given label and a second one, drawn evenly among the other classes. In the first round the experts
score both; they have learnt neither. Let x hold the logarithms of the scores of a label by all experts, and of the best
score that each expert gives to any class. A logistic regression tells drawn labels from given ones:

    log P(drawn | x) / P(given | x) = w · x + b.

So an expert that cannot tell them apart has no weight, and a low score counts less where no class has a high one.
"""

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from robustdml.arrays import evenly
from robustdml.audit.experts import Evidence, Experts, Weights

# Samples of the trial at most.
MOST_ROWS = 4096
# Least probability of a class, and least share of the neighbours' votes.
LEAST, LEAST_VOTES = 1e-4, 0.02


class Trial:
    """Scores of the given and the drawn labels."""

    def __init__(self, labels: Tensor, num_classes: int) -> None:
        self.labels = labels
        self.rows = torch.from_numpy(evenly(len(labels), MOST_ROWS))
        step = torch.randint(1, num_classes, (len(self.rows),), generator=torch.Generator().manual_seed(0))
        self.drawn = (labels[self.rows] + step) % num_classes
        self._given: list[Tensor] = []
        self._wrong: list[Tensor] = []

    def ask(self, experts: Experts, evidence: Evidence, weights: Weights) -> None:
        """Add the scores of some experts in their first round; `evidence` is that of all samples."""
        every, rows = torch.arange(len(self.labels)), self.rows
        drawn = experts.evidence(rows, [weights.density], self.drawn)
        both = [one.log_probabilities(weights, experts.num_classes).exp() for one in (evidence, drawn)]
        top = both[0][:, :-2].amax(1)
        self._add(both[0][:, 0], both[1][:, 0], LEAST)
        self._add(top, top[rows], LEAST)
        if experts.logits is not None:
            found = experts.logits.exp()
            top = found.amax(1)
            self._add(found[every, self.labels], found[rows, self.drawn], LEAST)
            self._add(top, top[rows], LEAST)
        if experts.votes is not None:
            self._add(experts.votes.share(every, self.labels), experts.votes.share(rows, self.drawn), LEAST_VOTES)

    def _add(self, given: Tensor, wrong: Tensor, least: float) -> None:
        self._given.append((given.double() + least).log())
        self._wrong.append((wrong.double() + least).log())

    def evidence(self) -> Tensor:
        """Log-odds, float64, (N,), that a label like the given one was drawn."""
        given, wrong = (np.stack([one.numpy() for one in columns], 1) for columns in (self._given, self._wrong))
        mean, spread = given.mean(0), given.std(0).clip(1e-6)
        rows = np.concatenate([given[self.rows.numpy()], wrong])
        model = LogisticRegression().fit((rows - mean) / spread, np.arange(len(rows)) >= len(wrong))
        return torch.from_numpy(model.decision_function((given - mean) / spread))
