"""Three experts on which class a sample is of, each asked about samples that it has not learnt from.

- Normal densities (`ClassModel`): covariances of the other folds, class means without the sample itself.
- The labels of the neighbours, which vote.
- A logistic regression of the other folds, where it is cheap: it is better where few classes overlap.

Candidates of a sample are the class of its label, the densest classes, those of its nearest neighbours, and the
likeliest of the regression. Few classes are all evaluated. Of many, only those whose means are nearest to the sample in
the strongest directions are; the sum over all others is estimated from classes drawn at random.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import NamedTuple

import torch
from torch import Tensor

from robustdml.arrays import blocks
from robustdml.audit.class_model import ClassModel, Moments, independent_share
from robustdml.audit.features import block_of, lifted
from robustdml_ops.ops import nearest

# Samples × classes up to which all classes are asked about: a minute or less.
MOST_PAIRS = 5 * 10**8
# Beyond, classes that are listed for a sample, the directions that these are found in, and classes drawn.
LISTED, DIRECTIONS, DRAWN = 32, 64, 256
# No −∞, of which a weight of 0 would make NaN.
LOWEST = torch.finfo(torch.float32).min / 4


class AllClasses:
    """Log densities plus log shares of all classes, (n, C)."""

    def __init__(self, density: Tensor) -> None:
        self.density = density

    def densest(self, count: int) -> Tensor:
        """The classes of most density, (n, k)."""
        return self.density.topk(min(count, self.density.shape[1]), 1).indices

    def others(self, near: Tensor, weights: Sequence[float]) -> Tensor:
        """Logarithms of the sums over all classes but those near (n, K), by weight. Overwrites the densities."""
        self.density.scatter_(1, near, LOWEST)
        return torch.stack([(weight * self.density).logsumexp(1) for weight in weights], 1)


class SomeClasses:
    """Log densities plus log shares of the classes listed for each row (n, L); drawn ones (R,) stand for all others."""

    def __init__(self, listed: Tensor, density: Tensor, drawn: Tensor, of_drawn: Tensor, num_classes: int) -> None:
        self.listed, self.density = listed, density
        twice = (listed[:, :, None] == drawn).any(1)
        self.drawn = of_drawn.masked_fill(twice, LOWEST)
        self.times = ((num_classes - listed.shape[1]) / (~twice).sum(1, keepdim=True)).log()

    def densest(self, count: int) -> Tensor:
        """The classes of most density, (n, k)."""
        return self.listed.gather(1, self.density.topk(count, 1).indices)

    def others(self, near: Tensor, weights: Sequence[float]) -> Tensor:
        """Logarithms of the sums over all classes but those near (n, K), by weight."""
        listed = self.density.masked_fill((self.listed[:, :, None] == near[:, None]).any(2), LOWEST)
        both = (torch.cat([weight * listed, weight * self.drawn + self.times], 1) for weight in weights)
        return torch.stack([one.logsumexp(1) for one in both], 1)


def shortlist(X: Tensor, model: ClassModel) -> Tensor | None:
    """Classes whose means are nearest to each row (N, F), (N, L); None where all classes are asked about."""
    num_classes = len(model.counts)
    if len(X) * num_classes <= MOST_PAIRS or num_classes <= LISTED + DRAWN:
        return None
    directions = slice(-DIRECTIONS, None)  # The strongest are the last.
    means = model.sums[:, directions] / (model.counts[:, None] + 1 / model.between[directions])
    rows = (X - model.origin) @ model.transform[:, directions]
    rows, means = lifted(rows, means)
    return nearest(rows, means, LISTED).indices


def candidates(Z: Tensor, model: ClassModel, log_share: Tensor, listed: Tensor | None) -> AllClasses | SomeClasses:
    """Densities of rows (n, D) in the model's coordinates: of the classes listed (n, L), or of all where none are."""
    if listed is None:
        return AllClasses(model.log_densities()(Z).add_(log_share))
    drawn = torch.randperm(len(log_share), generator=torch.Generator().manual_seed(0))[:DRAWN]
    of_listed = model.without_own(Z, listed, torch.zeros(listed.shape))[0] + log_share[listed]
    of_drawn = model.log_densities(drawn)(Z).add_(log_share[drawn])
    return SomeClasses(listed, of_listed, drawn, of_drawn, len(log_share))


FOLDS = 5
# Classes beside the label's: the densest, those of most neighbours, and the likeliest of the regression.
DENSEST, MOST_VOTED, LIKELIEST = 6, 4, 3
NEIGHBOURS = 20
# Beyond, neighbours cost more than all else.
MOST_WITH_NEIGHBOURS = 100_000
# Votes of a class without neighbours, in shares of the class.
NO_VOTE = 0.3
# Factor of the share of independent dimensions by which tails are judged: chosen on validation letters.
TAIL_SHARPNESS = 1.35
# Samples by which that share is estimated.
SHARPNESS_ROWS = 4096
# Samples × features × classes up to which a logistic regression is cheap, its steps, and the least log-probability.
MOST_LOGISTIC, STEPS, LEAST_LOGIT = 2 * 10**7, 25, -9.0


class Votes(NamedTuple):
    """Labels of the neighbours of each sample."""

    labels: Tensor  # int64, (N, n)
    weights: Tensor  # float32, (N, n)

    @classmethod
    def of(cls, X: Tensor, labels: Tensor) -> "Votes | None":
        """Find the neighbours by distance; None where there are too many samples."""
        if len(X) > MOST_WITH_NEIGHBOURS or len(X) < 2:
            return None
        (rows,) = lifted(X)
        found = nearest(rows, rows, min(NEIGHBOURS, len(X) - 1), exclude_self=True)
        distance = (2 - 2 * found.values).clamp(min=0)
        fifth = distance[:, min(4, distance.shape[1] - 1), None].clamp(min=1e-9)
        return cls(labels[found.indices], (-distance / (2 * fifth)).exp())

    def share(self, rows: Tensor, labels: Tensor) -> Tensor:
        """Share of the votes of some rows (n,) for one label each, (n,)."""
        weights = self.weights[rows]
        return (weights * (self.labels[rows] == labels[:, None])).sum(1) / weights.sum(1)


class Weights(NamedTuple):
    """Exponents of the experts."""

    density: float
    votes: float
    logistic: float = 0.0


@dataclass(frozen=True)
class Evidence:
    """Outputs of the experts for the likely classes of some samples."""

    weights: tuple[float, ...]  # Those of `others`
    labels: Tensor  # int64, (n,)
    classes: Tensor  # int64, (n, K): the label, likely classes, and last C, which is no class
    density: Tensor  # log density + log share, (n, K − 1), the sample left out; −∞ where a class is there already
    votes: Tensor  # log votes, (n, K − 1)
    logistic: Tensor  # log-probabilities, (n, K − 1)
    no_class: Tensor  # log-probability of no class, beside the likeliest class's, (n,)
    others: Tensor  # The density of all other classes together, by weight, (n, weights)
    others_logistic: Tensor  # Mean log-probability of them, (n,)

    def rows(self, chosen: Tensor) -> "Evidence":
        """Take some of the samples."""
        tensors = {field.name: getattr(self, field.name)[chosen] for field in fields(self) if field.name != "weights"}
        return replace(self, **tensors)

    def log_probabilities(self, weights: Weights, num_classes: int) -> Tensor:
        """Log-probabilities of the classes, of all others together, and of none, (n, K + 1)."""
        missing = self.density == -math.inf
        logits = weights.density * self.density.masked_fill(missing, 0) + weights.votes * self.votes
        logits = (logits + weights.logistic * self.logistic).masked_fill(missing, -math.inf)
        others = self.others[:, self.weights.index(weights.density)] + weights.votes * math.log(NO_VOTE / num_classes)
        others = others + weights.logistic * self.others_logistic
        none = logits.amax(1) + self.no_class
        return torch.cat([logits, others[:, None], none[:, None]], 1).log_softmax(1)


class Experts:
    """The experts of some rows (N, F) with labels (N,)."""

    def __init__(
        self,
        X: Tensor,
        labels: Tensor,
        num_classes: int,
        columns: Tensor | None = None,
        neighbours: bool = True,
        seed: int = 0,
    ) -> None:
        self.X, self.labels, self.num_classes = X, labels, num_classes
        self.votes = Votes.of(X, labels) if neighbours else None
        self.fold = torch.randperm(len(X), generator=torch.Generator().manual_seed(seed)) % FOLDS
        if columns is not None:
            self.fold = _folds(labels, seed)
        self.logits: Tensor | None = None
        self.columns = columns
        self._coefficients: Tensor | None = None
        self.learn(labels[:, None], torch.ones(len(X), 1))

    def learn(self, classes: Tensor, weights: Tensor) -> None:
        """Fit all experts to samples that count for classes (N, K) by weights (N, K)."""
        self.classes, self.weights = classes, weights
        parts = [
            Moments.of(self.X[chosen], classes[chosen], weights[chosen], self.num_classes)
            for chosen in (self.fold == number for number in range(FOLDS))
        ]
        whole = Moments.of(self.X, classes, weights, self.num_classes)
        self.models = [ClassModel.fit(whole, part) for part in parts]
        # The models differ little: the first one lists the classes for all.
        self.listed = shortlist(self.X, self.models[0])
        self.sharpness = [self._sharpness(model) for model in self.models]
        if self.columns is not None and self.columns.numel() * self.num_classes <= MOST_LOGISTIC:
            self.logits, self._coefficients = regress(
                self.columns, classes, weights, self.fold, self.num_classes, self._coefficients
            )

    def evidence(self, rows: Tensor, used: Sequence[float], labels: Tensor | None = None) -> Evidence:
        """Ask about some rows (n,); `used` are the weights that densities of other classes are summed with.

        With labels (n,) these are judged in place of those given.
        """
        used = tuple(dict.fromkeys(used))
        labels = self.labels[rows] if labels is None else labels
        order = torch.argsort(self.fold[rows], stable=True)
        parts = []
        for number, model in enumerate(self.models):
            inside = order[self.fold[rows[order]] == number]
            parts += [
                self._ask(rows[inside[block]], labels[inside[block]], model, self.sharpness[number], used)
                for block in blocks(len(inside), self._at_a_time)
            ]
        back = torch.argsort(order)
        joined = [torch.cat(part)[back] for part in zip(*parts, strict=True)]
        return Evidence(used, *joined)

    @property
    def _at_a_time(self) -> int:
        """Rows whose densities are in memory at a time."""
        return block_of(self.num_classes if self.listed is None else LISTED + DRAWN)

    def _candidates(self, rows: Tensor, Z: Tensor, model: ClassModel, log_share: Tensor) -> AllClasses | SomeClasses:
        return candidates(Z, model, log_share, None if self.listed is None else self.listed[rows])

    def _own(self, rows: Tensor, classes: Tensor) -> Tensor:
        """By how much some rows count for classes (n, K)."""
        return (classes[:, :, None] == self.classes[rows, None]).mul(self.weights[rows, None]).sum(2)

    def _sharpness(self, model: ClassModel) -> float:
        rows = torch.linspace(0, len(self.X) - 1, min(len(self.X), SHARPNESS_ROWS)).long()
        distances = []
        for block in blocks(len(rows), self._at_a_time):
            chosen = rows[block]
            Z = model.coordinates(self.X[chosen])
            densest = self._candidates(chosen, Z, model, torch.zeros(self.num_classes)).densest(1)
            distances.append(model.without_own(Z, densest, self._own(chosen, densest))[1][:, 0])
        return min(1.0, TAIL_SHARPNESS * independent_share(torch.cat(distances), Z.shape[1]))

    def _ask(
        self, rows: Tensor, given: Tensor, model: ClassModel, sharpness: float, used: tuple[float, ...]
    ) -> tuple[Tensor, ...]:
        share = torch.bincount(self.labels, minlength=self.num_classes) + 0.5
        prior = (share / share.sum()).log()
        Z = model.coordinates(self.X[rows])
        found = self._candidates(rows, Z, model, prior)
        chosen = [given[:, None], found.densest(DENSEST)]
        if self.votes is not None:
            chosen.append(self.votes.labels[rows, :MOST_VOTED])
        if self.logits is not None:
            chosen.append(self.logits[rows].topk(min(LIKELIEST, self.num_classes), 1).indices)
        near = torch.cat(chosen, 1)
        density, distance = model.without_own(Z, near, self._own(rows, near))
        none = model.no_class(Z, density, distance, prior[near], sharpness)
        twice = torch.stack([(near[:, :place] == near[:, place, None]).any(1) for place in range(near.shape[1])], 1)
        voted, regressed, others_regressed = torch.zeros(near.shape), torch.zeros(near.shape), torch.zeros(len(rows))
        if self.votes is not None:
            same = near[:, :, None] == self.votes.labels[rows, None]
            voted = same.mul(self.votes.weights[rows, None]).sum(2)
            voted = (voted + NO_VOTE * prior[near].exp()).log()
        if self.logits is not None:
            logits = self.logits[rows]
            regressed = logits.gather(1, near)
            left = (1 - regressed.exp().masked_fill(twice, 0).sum(1)) / max(self.num_classes - near.shape[1], 1)
            others_regressed = left.clamp(min=math.exp(LEAST_LOGIT)).log()
        peak = (density + prior[near]).masked_fill(twice, -math.inf).amax(1, keepdim=True)
        # From here on relative to the likeliest class, so that weights do not scale what all have in common.
        others = found.others(near, used) - torch.tensor(used) * peak
        density = (density + prior[near] - peak).masked_fill(twice, -math.inf)
        near = torch.nn.functional.pad(near, (0, 1), value=self.num_classes)
        return given, near, density, voted, regressed, none, others, others_regressed


def _folds(labels: Tensor, seed: int) -> Tensor:
    """Fold of each sample, (N,): drawn at random, and the samples of a class are spread evenly over the folds.

    A regression knows nothing of a class whose samples are all in the fold that it does not see.
    """
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    order = order[torch.argsort(labels[order], stable=True)]
    return torch.empty_like(order).index_copy_(0, order, torch.arange(len(order)) % FOLDS)


def regress(
    X: Tensor, classes: Tensor, weights: Tensor, fold: Tensor, num_classes: int, start: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Multinomial logistic regression of the other folds: log-probabilities (N, C), and the coefficients to go on."""
    rows = torch.cat([X, torch.ones(len(X), 1)], 1)
    target = torch.zeros(len(X), num_classes).scatter_add_(1, classes, weights)
    seen = (fold != torch.arange(FOLDS)[:, None]).float()[:, :, None]
    with torch.enable_grad():
        coefficients = torch.zeros(FOLDS, rows.shape[1], num_classes) if start is None else start.clone()
        coefficients.requires_grad_()
        solver = torch.optim.LBFGS([coefficients], max_iter=STEPS, line_search_fn="strong_wolfe")

        def loss() -> Tensor:
            solver.zero_grad()
            found = -(seen * target * (rows @ coefficients).log_softmax(2)).sum()
            found = found + coefficients[:, :-1].square().sum() / 2
            found.backward()  # type: ignore[no-untyped-call]
            return found

        solver.step(loss)  # type: ignore[no-untyped-call]
    coefficients = coefficients.detach()
    logits = (rows @ coefficients)[fold, torch.arange(len(X))].log_softmax(1)
    return logits.clamp(min=LEAST_LOGIT), coefficients
