"""How far probabilities can be believed, by labels that are drawn wrong on purpose.

Labels drawn evenly among the classes that a sample is not of get scores s, log-odds of the label by the features
alone. Of labels given at a rate r of such wrong ones at least r P(s ≤ t | drawn) have s ≤ t, so that for every t

    r ≤ P(s ≤ t | given) / P(s ≤ t | drawn).

An explanation by labels that are wrong evenly at a higher rate takes overlap for wrong labels: milder probabilities
have their log-odds shifted until the rate is that bound. Other wrong labels look like overlap, and no trial tells them
apart: there milder probabilities are flatter ones. Either is mixed with the explanation, and a label is called wrong
only where both agree.
"""

import torch
from torch import Tensor

from robustdml.audit.experts import Evidence, Experts, Weights
from robustdml.audit.explanations import CHOOSING_ROWS, EVENLY, HALF, Explanation, explain, flatter

# Shares of the drawn labels at which the bound is taken, and normal deviations that chance may add to it.
QUANTILES = (0.25, 0.4, 0.55, 0.7, 0.85)
CHANCE = 3.0
# Labels that are drawn for each row at least.
DRAWS = 4
# Weight of the milder probabilities: what the sharper ones call wrong they do not call right.
MILDER = 0.3
# Explanations of less weight have no say in verdicts and intervals.
LEAST_WEIGHT = 0.05


def believable(
    experts: Experts, evidence: Evidence, explained: list[Explanation], weights: Tensor, learnt: bool
) -> tuple[Tensor, Tensor]:
    """Probabilities of the candidates (N, K), and of each label being right under each explanation (E, N)."""
    num_classes, main = experts.num_classes, explained[0]
    bound = 1.0 if learnt else rate_bound(experts, evidence, main)
    posterior, qualities = torch.zeros(main.posterior.shape), []
    for one, weight in zip(explained, weights, strict=True):
        if one.kind == EVENLY:
            milder = [capped(one.posterior, bound)]
        else:
            flat = explain(evidence, num_classes, one.kind, [flatter(one.weights, HALF)])
            milder = [other.posterior for other in flat]
        believed = (1 - MILDER) * one.posterior + MILDER * milder[0] if milder else one.posterior
        posterior += weight * believed
        if one is not main and weight < LEAST_WEIGHT:
            continue
        qualities += [one.posterior[:, 0], *(other[:, 0] for other in milder if one is main or one.kind == EVENLY)]
    return posterior, torch.stack([*qualities, posterior[:, 0]])


def rate_bound(experts: Experts, evidence: Evidence, one: Explanation) -> float:
    """The highest rate of labels that are wrong evenly."""
    count = len(experts.labels)
    rows = torch.linspace(0, count - 1, min(count, CHOOSING_ROWS)).long()
    scores = _log_odds(evidence.rows(rows), one.weights, experts.num_classes)
    rows = rows.repeat(DRAWS)
    random = torch.Generator().manual_seed(0)
    # The last candidate is no class: any label is wrong then.
    place = torch.multinomial(one.posterior[rows].clamp(min=1e-9), 1, generator=random)
    truth = evidence.classes[rows].gather(1, place)[:, 0]
    drawn = (truth + torch.randint(1, experts.num_classes, (len(rows),), generator=random)) % experts.num_classes
    wrong = _log_odds(experts.evidence(rows, [one.weights.density], drawn), one.weights, experts.num_classes)
    shares = torch.tensor(QUANTILES)
    below = (scores[:, None] <= wrong.quantile(shares)).float().mean(0)
    chance = CHANCE * ((below * (1 - below) + 1 / len(scores)) / len(scores)).sqrt()
    return float(((below + chance) / shares).amin())


def capped(posterior: Tensor, bound: float) -> Tensor:
    """Shift the log-odds of wrong labels until their share (`posterior` has the right ones first) is the bound."""
    right = posterior[:, :1].double().clamp(1e-12, 1 - 1e-12)
    if 1 - float(right.mean()) <= bound:
        return posterior
    low, high = 0.0, 60.0
    for _ in range(30):
        middle = (low + high) / 2
        share = float(torch.sigmoid(-torch.logit(right) - middle).mean())
        low, high = (middle, high) if share > bound else (low, middle)
    shifted = torch.sigmoid(torch.logit(right) + high).float()
    others = posterior[:, 1:] * ((1 - shifted) / (1 - posterior[:, :1]).clamp(min=1e-9))
    return torch.cat([shifted, others], 1)


def _log_odds(evidence: Evidence, weights: Weights, num_classes: int) -> Tensor:
    """Log-odds of the labels by the features alone, (n,)."""
    found = evidence.log_probabilities(weights, num_classes)
    return found[:, 0] - found[:, 1:].logsumexp(1)
