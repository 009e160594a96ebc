"""Scores of a batch, log P_clean of each sample, from a softmax over classes."""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from robustdml_ops.engine.shards import OneProcess
from robustdml_ops.ops import class_lse
from robustdml_ops.robust.bank.memory_bank import MemoryBank
from robustdml_ops.robust.checked_batch import CheckedBatch

# `CautiousThreshold` keeps samples of classes with fewer rows in the bank, own copies left out.
FEWEST_ROWS = 5
_MOST_LOGITS = 2**22  # in a chunk of `likeliest_classes`: 16 MB


class Scores(NamedTuple):
    """One score per sample."""

    values: Tensor  # (B,) log P_clean; 0 where not known
    known: Tensor  # (B,) bool: the sample's class has rows in the bank, or was in a batch before (ProxySim)
    vmf_pending: Tensor | None = None  # () bool: the values are AvgSim's, vMF-Sim has not begun; None: no vMF-Sim
    class_rows: Tensor | None = None  # (B,) rows of the sample's class, own copies left out; for `CautiousThreshold`
    other_labels: Tensor | None = None  # (B,) scores under labels of other samples, NaN if the same; for it, too


class ClassLogits(NamedTuple):
    """T(x, k) = scale_k x·Σ_k + bias_k, where Σ_k is the sum of the bank's rows of class k."""

    scale: Tensor  # (C,)
    bias: Tensor  # (C,)


def joint_class_lse(shards: OneProcess, batch: CheckedBatch, proxies: Tensor, **settings: Any) -> tuple[Tensor, Tensor]:
    """:func:`class_lse` over the classes of all processes; it checks the values of rows and labels."""
    lse = class_lse(batch.X, proxies, shards.labels(batch.labels), elsewhere=shards.divided, **settings)
    return shards.log_sum_exp(*lse, batch.labels)


def log_softmax(target: Tensor, others: Tensor, known: Tensor) -> Tensor:
    """Log P_clean from the label's logit and the log-sum-exp of all other classes; 0 for an unknown class.

    The logit minus the log-sum-exp of all classes would be rounded to 0 where P_clean is nearly 1.
    """
    return torch.where(known, functional.logsigmoid(target - others), 0)


def likeliest_classes(X: Tensor, sums: Tensor, logits: ClassLogits) -> tuple[Tensor, Tensor]:
    """Argmax_k T of unit rows X, (B,) int64, and the log of its softmax over the classes, (B,)."""
    best, classes = X.new_full((len(X),), -torch.inf), torch.zeros(len(X), dtype=torch.int64, device=X.device)
    lse, step = best, max(_MOST_LOGITS // max(len(X), 1), 1)
    for start in range(0, len(sums), step):
        chunk = slice(start, start + step)
        T = (X @ sums[chunk].to(X.dtype).T) * logits.scale[chunk] + logits.bias[chunk]
        top, place = T.max(1)
        classes = torch.where(top > best, place + start, classes)
        best, lse = best.maximum(top), lse.logaddexp(T.logsumexp(1))
    return classes, torch.where(best > -torch.inf, best - lse, -torch.inf)


def scores_under_other_labels(bank: MemoryBank, batch: CheckedBatch, logits: ClassLogits, lse: Tensor) -> Tensor:
    """Score each sample under the label of the sample B/2 places away, which is wrong if its own is right."""
    others, shards = batch.labels.roll(len(batch.labels) // 2), bank.shards
    scale, sums, bias = (shards.at_labels(values, others) for values in (logits.scale, bank.sums, logits.bias))
    logit = shards.from_owners(scale * (batch.X * sums).sum(1) + bias, others)
    judged = (others != batch.labels) & (shards.of_labels(bank.counts, others) >= FEWEST_ROWS)
    return (logit - lse).masked_fill(~judged, torch.nan)
