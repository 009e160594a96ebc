"""Judging labels in rounds: the experts learn, explanations are compared, and their posterior is what is learnt next.

Features as they are come in two forms, rows of length 1 and columns of variance 1, each with folds of its own. Rounds
may swing between two states. So the last two rounds of both forms judge together. Of embeddings learnt from the labels
normal densities alone judge, in their last round: near a sample of a wrong label lie others of that label, which the
network drew there. Nor do labels drawn at random tell how those look that the network has seen.

Rounds take members of a diverse class for wrong labels, and then learn from that. So the first round, which knows the
given labels alone, has a say in three ways. Its clear samples bound the rate of wrong labels, see
`robustdml.audit.clear`; its probabilities are mixed with those of the last rounds; and a trial with labels that are
wrong on purpose shows how much its doubts are worth, see `robustdml.audit.trial`. None of it holds for embeddings that
learnt the labels.
"""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from robustdml.arrays import Array
from robustdml.audit.clear import clear_samples, with_share
from robustdml.audit.experts import Evidence, Experts
from robustdml.audit.explanations import Explanation, anchored, believable, bounded_by_size, explanations
from robustdml.audit.features import principal_rows
from robustdml.audit.trial import Trial

# Scale of rows of length 1 in the logistic regression, whose ridge is 1/2: chosen as scikit-learn's C = 3.
UNIT_SCALE = 3**0.5
# All rounds, and those of them that judge. Densities alone take longer to settle.
ROUNDS, ROUNDS_LEARNT = (4, 2), (10, 1)
# Exponent of the likelihood of a label, by which the forms are weighed: chosen on the choosing sets of
# experiments/bench/audit_sets.py and on drawn ones.
LIKELIHOOD = 10.0
# Weight of the last rounds beside the first one, weight of the trial's evidence, and the least rate of wrong labels.
# The weights were chosen on the choosing sets of experiments/bench/audit_sets.py and diverse_sets.py.
LAST, TRIAL, LEAST_RATE = 0.5, 0.5, 0.002
# Where more of the labels of the clearest samples disagree, the features may tell nothing.
BLIND = 0.6
# Weight of the margins in training, chosen on the choosing sets of experiments/bench/audit_sets.py and diverse_sets.py;
# fewer margins say nothing; standard deviations at which one ends; steps of its fit.
MARGIN_PART, FEWEST_MARGINS, FAR_MARGIN, NEWTON_STEPS = 0.3, 20, 4.0, 20
# The shift by checked labels lies between ±WIDEST, and is found by so many halvings; least probability of a logit.
WIDEST, HALVINGS, LEAST = 50.0, 50, 1e-6


@dataclass(frozen=True)
class Judgement:
    """Probabilities and likeliest classes of all samples."""

    right: Tensor  # Probability that the label is right, float32, (N,)
    proposed: Tensor  # The likeliest other class, int64, (N,)
    proposed_right: Tensor  # Probability of that, (N,)
    no_class: Tensor  # Probability that it is of none of the classes, (N,)
    nearest: Tensor  # The class that the features alone say, int64, (N,)
    # Probability that each label is right under each explanation that chance does not exclude, (E, N).
    qualities: Tensor
    overlap: Tensor  # Probability that the features alone leave to other classes than the likeliest, (N,)
    bounds: tuple[float, float, float] = (0.0, 1.0, 1.0)  # Of the rate of wrong labels, with an estimate between them
    # Share of the labels that disagree among samples as clear as each one, (N,); None where the features were learnt.
    disagreement: Tensor | None = None


@dataclass(frozen=True)
class _First:
    """Class probabilities of the features, from the given labels alone."""

    likelihood: float
    classes: Tensor  # int64, (N, K)
    probability: Tensor  # (N, K)


@dataclass(frozen=True)
class _Round:
    likelihood: float  # Of a label after the first round
    classes: Tensor  # int64, (N, K): the given label, the likeliest classes, and last C, which is no class
    posterior: Tensor  # Probability of each of them, (N, K)
    nearest: Tensor
    qualities: Tensor
    overlap: Tensor


def judge(features: Array, labels: Tensor, num_classes: int, learnt: bool = False) -> Judgement:
    """Judge every label by features (N, F)."""
    unit = principal_rows(features)
    if learnt:
        return _together(_last_rounds(Experts(unit, labels, num_classes, neighbours=False), learnt)[1])
    columns = principal_rows(features, scaled=True)
    scales = (UNIT_SCALE, 1.0)
    forms = [
        Experts(X, labels, num_classes, scale * X, seed=number)
        for number, (X, scale) in enumerate(zip((unit, columns), scales, strict=True))
    ]
    trial = Trial(labels, num_classes)
    firsts, lasts = zip(*(_last_rounds(experts, learnt, trial) for experts in forms), strict=True)
    # By all experts, and by the regression alone where there is one.
    kinds = [list(kind) for kind in zip(*firsts, strict=True)]
    judged = _together([found for rounds in lasts for found in rounds])
    return _with_clear(judged, kinds, labels, num_classes, trial.evidence())


def _last_rounds(experts: Experts, learnt: bool, trial: Trial | None = None) -> tuple[list[_First], list[_Round]]:
    """Run all rounds; return class probabilities of the first one, and the posteriors of the last ones."""
    count, last = ROUNDS_LEARNT if learnt else ROUNDS
    labels, num_classes = experts.labels, experts.num_classes
    evidence, explained, weights = explanations(experts)
    firsts = _firsts(experts, evidence, explained[0])
    if trial is not None:
        trial.ask(experts, evidence, explained[0].weights)
    likelihood = max(float(one.likelihood.mean()) for one in explained)
    # Afterwards samples of the other folds have learnt from a held-out label, and the regression would repeat it.
    if not explained[0].weights.logistic:
        experts.logits = experts.columns = None
    found = []
    for number in range(1, count):
        # The last column, no class, is not fitted.
        counting = anchored(labels, evidence.classes, explained[0].posterior, num_classes)
        if not learnt:
            counting = bounded_by_size(evidence.classes, counting, num_classes)
        experts.learn(evidence.classes[:, :-1], counting[:, :-1])
        evidence, explained, weights = explanations(experts)
        if number < count - last:
            continue
        posterior, qualities = believable(experts, evidence, explained, weights, learnt)
        top = evidence.log_probabilities(explained[0].weights, num_classes)[:, :-2].max(1, keepdim=True)
        nearest = evidence.classes.gather(1, top.indices)[:, 0]
        found.append(_Round(likelihood, evidence.classes, posterior, nearest, qualities, 1 - top.values[:, 0].exp()))
    return firsts, found


def _firsts(experts: Experts, evidence: Evidence, main: Explanation) -> list[_First]:
    """Class probabilities of the first round: by all experts, and by the regression alone where there is one."""
    alone = evidence.log_probabilities(main.weights, experts.num_classes)[:, :-2].exp()
    firsts = [_First(main.mean, evidence.classes[:, :-1], alone)]
    if experts.logits is not None:
        listed = evidence.density > -math.inf
        probability = evidence.logistic.exp() * listed
        own = experts.logits.gather(1, experts.labels[:, None]).mean()
        firsts.append(_First(float(own), evidence.classes[:, :-1], probability))
    return firsts


def _with_clear(
    judged: Judgement, firsts: list[list[_First]], labels: Tensor, num_classes: int, trial: Tensor
) -> Judgement:
    """Correct the probabilities of the last rounds by the first round, its clear samples and the trial (N,).

    Each list of `firsts` has the class probabilities of one kind of experts, a form each. The clear samples of the
    first list bound the rate of wrong labels.
    """
    kinds = [_named(one, labels) for one in firsts]
    clears = [clear_samples(top.numpy(), (nearest != labels).numpy()) for _, nearest, top in kinds]
    clear = clears[0]
    wrong = 1 - judged.right.double()
    share = min(max(float(wrong.mean()), clear.low), clear.high)
    even = max(share, LEAST_RATE) / num_classes
    first = torch.stack([even / ((1 - share) * own + even) for own, *_ in kinds]).mean(0)
    disagreements = [torch.from_numpy(one.disagreement).clamp(min=1e-9) for one in clears]
    # Odds of being wrong fall by the root of the ratio, and of several kinds by the geometric mean of these roots.
    ratios = [(one.high / found).clamp(max=1) for one, found in zip(clears, disagreements, strict=True)]
    within = torch.stack(ratios).log().mean(0).mul(0.5).exp()
    mixed = with_share(torch.logit((LAST * wrong + (1 - LAST) * first) * within, LEAST) + TRIAL * trial, share)
    found = _with_right(judged, 1 - mixed)
    if clear.estimate > BLIND and clear.low < clear.estimate / 2:
        # Not even the clearest samples have the labels that the features say: nothing can be told of any.
        return replace(found, bounds=(0.0, 0.0, 1.0), disagreement=torch.full_like(disagreements[0], math.inf))
    return replace(found, bounds=(clear.low, clear.estimate, clear.high), disagreement=disagreements[0])


def _named(firsts: list[_First], labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Probability of the label, the likeliest class and its probability, (N,), by several forms."""
    weights = (LIKELIHOOD * torch.tensor([one.likelihood for one in firsts])).softmax(0)
    classes = torch.cat([one.classes for one in firsts], 1)
    parts = torch.cat([weight * one.probability for weight, one in zip(weights, firsts, strict=True)], 1).double()
    parts /= parts.sum(1, keepdim=True).clamp(min=1e-12)
    named = torch.stack([parts.where(classes == one[:, None], 0).sum(1) for one in classes.unbind(1)], 1)
    top = named.max(1, keepdim=True)
    own = parts.where(classes == labels[:, None], 0).sum(1)
    return own, classes.gather(1, top.indices)[:, 0], top.values[:, 0]


def _together(rounds: list[_Round]) -> Judgement:
    weights = (LIKELIHOOD * torch.tensor([one.likelihood for one in rounds])).softmax(0)
    mean = torch.stack([one.posterior[:, [0, -1]] for one in rounds], 2) @ weights
    classes = torch.cat([one.classes[:, 1:-1] for one in rounds], 1)
    parts = torch.cat([weight * one.posterior[:, 1:-1] for weight, one in zip(weights, rounds, strict=True)], 1)
    # A class that several rounds name has the sum of what they give it.
    named = torch.stack([parts.where(classes == one[:, None], 0).sum(1) for one in classes.unbind(1)], 1)
    best = named.max(1, keepdim=True)
    return Judgement(
        right=mean[:, 0],
        proposed=classes.gather(1, best.indices)[:, 0],
        proposed_right=best.values[:, 0],
        no_class=mean[:, 1],
        nearest=rounds[int(weights.argmax())].nearest,
        qualities=torch.cat([one.qualities for one in rounds]),
        overlap=torch.stack([one.overlap for one in rounds], 1) @ weights,
    )


def taken(judged: Judgement, rows: Tensor) -> Judgement:
    """Take the judgements of some rows (n,)."""
    fields = ("right", "proposed", "proposed_right", "no_class", "nearest", "overlap")
    disagreement = None if judged.disagreement is None else judged.disagreement[rows]
    some = {name: getattr(judged, name)[rows] for name in fields}
    return replace(judged, **some, qualities=judged.qualities[:, rows], disagreement=disagreement)


def with_margins(judged: Judgement, margins: Tensor) -> Judgement:
    """Let the margins (N,) that labels had in training speak; NaN says nothing, and the rate of wrong labels stays.

    The evidence of a margin m is what it tells of the beliefs q,

        e(m) = a m + b − logit(mean q),      a, b = argmax Σ q_i log σ(a m_i + b) + (1 − q_i) log σ(−a m_i − b), a ≥ 0,

    so margins that do not agree with the features have no weight. It is added to the log-odds, times `MARGIN_PART`.
    """
    known = ~margins.isnan()
    if int(known.sum()) < FEWEST_MARGINS or float(margins[known].std()) == 0:
        return judged
    right, m = judged.right.double(), margins[known].double()
    m = ((m - m.mean()) / m.std()).clamp(-FAR_MARGIN, FAR_MARGIN)
    q = right[known]
    base = torch.logit(q.mean(), LEAST)
    rows, found = torch.stack([m, torch.ones_like(m)], 1), torch.stack([torch.zeros_like(base), base])
    for _ in range(NEWTON_STEPS):
        p = torch.sigmoid(rows @ found)
        curvature = (rows * (p * (1 - p))[:, None]).T @ rows + LEAST * len(q) * torch.eye(2, dtype=torch.float64)
        found = found + torch.linalg.solve(curvature, rows.T @ (q - p))
    if float(found[0]) <= 0:
        return judged
    odds = torch.logit(right, LEAST)
    odds[known] += MARGIN_PART * (rows @ found - base)
    return _with_right(judged, 1 - with_share(-odds, float(1 - right.mean())))


def with_checked(judged: Judgement, checked: Tensor) -> Judgement:
    """Judge with knowledge of some labels: ``checked`` (N,) float64, 1 for right ones, 0 for wrong ones, else NaN.

    Features tell least about the number of wrong labels, because overlapping classes look like wrong labels. So one
    number is learnt, the shift b of all log-odds that a label is right, at its highest posterior density under a normal
    prior:

        b = argmax Σ_checked log σ(±(logit q_i + b)) − b²/2

    The labels may be chosen by q, as suspects are: the shift holds for labels of any q.
    """
    known = ~checked.isnan()
    if not known.any():
        return judged
    truth = checked[known]
    right = _shifted(judged.right, known, truth)
    qualities = torch.stack([_shifted(one, known, truth) for one in judged.qualities])  # each explanation by itself
    return replace(_with_right(judged, right), qualities=qualities.to(judged.qualities.dtype))


def _with_right(judged: Judgement, right: Tensor) -> Judgement:
    """Give labels other probabilities (N,) of being right; other classes gain what the label loses, in proportion."""
    others = (1 - right) / (1 - judged.right.double()).clamp(min=LEAST)
    # Together the others have no more than the label leaves.
    others = others.minimum((1 - right) / (judged.proposed_right + judged.no_class).double().clamp(min=LEAST))
    others = others.to(judged.no_class.dtype)
    return replace(
        judged,
        right=right,
        proposed_right=(judged.proposed_right * others).clamp(max=1),
        no_class=(judged.no_class * others).clamp(max=1),
    )


def _shifted(right: Tensor, known: Tensor, truth: Tensor) -> Tensor:
    """Probabilities (N,) whose log-odds are shifted as checked labels ask for; those of checked labels are 0 or 1."""
    z = torch.logit(right.double(), LEAST)
    low, high = -WIDEST, WIDEST
    for _ in range(HALVINGS):  # the slope falls with b
        shift = (low + high) / 2
        slope = float((truth - torch.sigmoid(z[known] + shift)).sum()) - shift
        low, high = (shift, high) if slope > 0 else (low, shift)
    found = torch.sigmoid(z + low)
    found[known] = truth
    return found
