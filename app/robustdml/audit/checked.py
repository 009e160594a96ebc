"""Correction of the auditor's probabilities by labels that a person has checked.

Features tell least about the number of wrong labels, because overlapping classes look like wrong labels. So one number
is learnt, the shift b of all log-odds that a label is right, at its highest posterior density under a normal prior:

    b = argmax Σ_checked log σ(±(logit q_i + b)) − b²/2

The labels may be chosen by q, as suspects are: the shift holds for labels of any q.
"""

from dataclasses import replace

import torch
from torch import Tensor

from robustdml.audit.rounds import Judgement

WIDEST, HALVINGS = 50.0, 50  # the shift lies between ±WIDEST, and is found by so many halvings
LEAST = 1e-6


def with_checked(judged: Judgement, checked: Tensor) -> Judgement:
    """Judge with knowledge of some labels: ``checked`` (N,) float64, 1 for right ones, 0 for wrong ones, else NaN."""
    known = ~checked.isnan()
    if not known.any():
        return judged
    truth = checked[known]
    right = _shifted(judged.right, known, truth)
    qualities = torch.stack([_shifted(one, known, truth) for one in judged.qualities])  # each explanation by itself
    # The other classes gain what the label loses, in proportion.
    others = ((1 - right) / (1 - judged.right.double()).clamp(min=LEAST)).to(judged.no_class.dtype)
    return replace(
        judged,
        right=right.to(judged.right.dtype),
        proposed_right=(judged.proposed_right * others).clamp(max=1),
        no_class=(judged.no_class * others).clamp(max=1),
        qualities=qualities.to(judged.qualities.dtype),
    )


def _shifted(right: Tensor, known: Tensor, truth: Tensor) -> Tensor:
    """Probabilities (N,) with the shift that checked labels ask for; of these the truth."""
    z = torch.logit(right.double(), LEAST)
    low, high = -WIDEST, WIDEST
    for _ in range(HALVINGS):  # the slope falls with b
        shift = (low + high) / 2
        slope = float((truth - torch.sigmoid(z[known] + shift)).sum()) - shift
        low, high = (shift, high) if slope > 0 else (low, shift)
    found = torch.sigmoid(z + low)
    found[known] = truth
    return found
