"""What the native functions compute, said plainly in numpy float64."""

from dataclasses import dataclass

import numpy as np


@dataclass
class Expected:
    lse_positive: np.ndarray
    lse_negative: np.ndarray
    dsimilarity: np.ndarray
    dpositive_bias: np.ndarray
    dnegative_bias: np.ndarray


def anchor_lse(
    S, alpha, positive_bias, negative_bias, anchor_bias, positive, weight, upstream_positive, upstream_negative
):
    """Both log-sum-exps of every row of S (rows, B), and their gradients; positive and weight are (rows, B)."""
    S, weight = np.asarray(S, np.float64), np.asarray(weight, np.float64)
    column = lambda values: np.asarray(values, np.float64).reshape(-1, 1)  # noqa: E731
    positive_terms = np.where(positive, weight * np.exp(np.float64(positive_bias) - alpha * S), 0)
    negative_terms = np.where(positive, 0, weight * np.exp(np.float64(negative_bias) + alpha * S + column(anchor_bias)))
    positive_sum, negative_sum = positive_terms.sum(1), negative_terms.sum(1)
    positive_gradient = column(upstream_positive) * positive_terms / column(1 + positive_sum)
    negative_gradient = column(upstream_negative) * negative_terms / column(1 + negative_sum)
    return Expected(
        np.log1p(positive_sum),
        np.log1p(negative_sum),
        alpha * (negative_gradient - positive_gradient),
        positive_gradient.sum(0),
        negative_gradient.sum(0),
    )


def confidence_sets(values, logits, beta, threshold):
    """Membership and weights of Smooth Proxy-Anchor; values in the order of S."""
    values = np.asarray(values, np.float64)
    confidence = 1 / (1 + np.exp(-values)) if logits else values
    return confidence > threshold, 1 / (1 + np.exp(-beta * np.abs(confidence - threshold)))
