"""How sharp log-densities are: a factor below 1, because the dimensions of an embedding are not independent.

A density of many dimensions is too sure of itself. How many independent dimensions there are is told by the squared
distances d² of samples from their class: of n independent normal dimensions log d² has the variance 2/n. So
log-densities are multiplied by about n/D. No label is asked for that. Of features that were not learnt from the labels
classes may overlap by nature: where the labels given are far likelier under a smaller factor, that one is the most that
is taken.
"""

import math

import torch
from torch import Tensor

from robustdml.audit.class_model import ClassModel
from robustdml.audit.features import block_of, blocks
from robustdml.audit.label_noise import fit_rate

_FACTORS = (0.05, 0.07, 0.1, 0.14, 0.2, 0.28, 0.4, 0.56, 0.8, 1.0)
# Samples that the independent dimensions, and the factor by the labels, are told by.
_SHARPNESS_ROWS = 4096
_FACTOR_ROWS = 8_192


def independent_share(X: Tensor, model: ClassModel, classes: Tensor, weights: Tensor) -> float:
    """Share of the dimensions that are independent, by the distances of samples from their nearest class."""
    rows = _some_rows(X, _SHARPNESS_ROWS)
    quadratic, linear, constant = model.predictive()
    distances = []
    for block in blocks(len(rows), block_of(len(model.counts))):
        chosen = rows[block]
        Z = model.coordinates(X[chosen])
        nearest = torch.addmm(constant, Z, linear).addmm_(Z.square(), quadratic).argmax(1, keepdim=True)
        own = (nearest == classes[chosen]).mul(weights[chosen]).sum(1, keepdim=True)
        distances.append(model.without_own(Z, nearest, own)[1][:, 0])
    # By quantiles: samples of no class are far away.
    low, high = torch.cat(distances).clamp(min=1e-12).log().quantile(torch.tensor([0.16, 0.84])).tolist()
    variance = max((high - low) / 2, 1e-3) ** 2
    return float(2 / variance / len(model.between))


def factor_by_labels(X: Tensor, labels: Tensor, model: ClassModel) -> float:
    """The factor of log-densities under which the labels given are the likeliest; each row counts for its label."""
    rows = _some_rows(X, _FACTOR_ROWS)
    quadratic, linear, constant = model.predictive()
    prior = model.log_prior()
    own_densities, others = [], []
    for block in blocks(len(rows), block_of(len(model.counts))):
        chosen = rows[block]
        given = labels[chosen, None]
        Z = model.coordinates(X[chosen])
        own_densities.append(model.without_own(Z, given, torch.ones(given.shape))[0][:, 0])
        densities = torch.addmm(constant, Z, linear).addmm_(Z.square(), quadratic).scatter_(1, given, -math.inf)
        others.append(torch.stack([(densities * factor + prior).logsumexp(1) for factor in _FACTORS], 1))
    return _likeliest_factor(torch.cat(own_densities), torch.cat(others), prior[labels[rows]])


def _some_rows(X: Tensor, most: int) -> Tensor:
    return torch.linspace(0, len(X) - 1, min(len(X), most)).long()


def _likeliest_factor(own: Tensor, others: Tensor, prior: Tensor) -> float:
    """The factor with the highest likelihood of the labels, from (n,) of these and (n, factors) of all others."""
    best, likeliest = -math.inf, 1.0
    popular = prior.exp()
    for place, factor in enumerate(_FACTORS):
        right = torch.sigmoid(own * factor + prior - others[:, place])
        rate = fit_rate(right, popular)
        likelihood = float(((1 - rate) * right + rate * (1 - right) * popular).clamp(min=1e-30).log().double().mean())
        if likelihood > best:
            best, likeliest = likelihood, factor
    return likeliest
