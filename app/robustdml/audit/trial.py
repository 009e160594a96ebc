"""A trial with labels that are wrong on purpose, which shows how much each expert's doubt is worth on this data set.

Every sample of the trial gets a second label, drawn evenly among the other classes. In the first round the experts, who
have learnt from neither, score both. With x the logarithms of these scores for a label, and of the scores of the class
that the experts prefer,

    log P(x | drawn) / P(x | given) = w · x + b,

fitted as a logistic regression of drawn labels against given ones. So an expert that tells nothing on this data set has
no weight, and where the experts name no class clearly a low score is no evidence of a wrong label.
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
    """Scores of given and drawn labels by experts, who are asked one after the other."""

    def __init__(self, labels: Tensor, num_classes: int) -> None:
        self.labels = labels
        self.rows = torch.from_numpy(evenly(len(labels), MOST_ROWS))
        step = torch.randint(1, num_classes, (len(self.rows),), generator=torch.Generator().manual_seed(0))
        self.drawn = (labels[self.rows] + step) % num_classes
        self._given: list[Tensor] = []
        self._wrong: list[Tensor] = []

    def ask(self, experts: Experts, evidence: Evidence, weights: Weights) -> None:
        """Add the scores of some experts in their first round, with the evidence of all samples."""
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
        """Log-odds of each label (N,) that it was drawn and not given."""
        given, wrong = (np.stack([one.numpy() for one in columns], 1) for columns in (self._given, self._wrong))
        mean, spread = given.mean(0), given.std(0).clip(1e-6)
        rows = np.concatenate([given[self.rows.numpy()], wrong])
        model = LogisticRegression().fit((rows - mean) / spread, np.arange(len(rows)) >= len(wrong))
        return torch.from_numpy(model.decision_function((given - mean) / spread))
