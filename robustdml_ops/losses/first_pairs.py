"""Warns once where most samples of the first steps have no pair to learn from."""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from robustdml_ops.backends.dispatch import is_recorded
from robustdml_ops.engine.labels import ABSENT, signed_labels
from robustdml_ops.losses.first_steps import Watch
from robustdml_ops.losses.inputs import LossInputs

# Steps whose samples are counted, and the share of them without a pair that is too large.
STEPS, MOST = 100, 0.5


class FirstPairs(Watch):
    """Counts the samples that have no positive in their batch, or are in no pair of a miner.

    Memory banks are left out, since they have few positives before they are full.
    """

    def __init__(self) -> None:
        super().__init__()
        self.last = STEPS
        self.counts: Tensor | None = None  # samples without a pair, and all samples, (2,)
        self.joint: LossInputs | None = None  # of all processes, while their loss is computed

    def __call__(self, loss_function: Any, inputs: LossInputs, loss: Any) -> None:
        """Count the samples of one call."""
        if torch.compiler.is_compiling():
            return
        joint, self.joint = self.joint, None
        if not isinstance(loss, Tensor) or not loss.requires_grad or loss.is_meta:
            return
        if is_recorded(loss.device):  # a graph would repeat the count
            return
        own = loss_function.shards.own_slice()
        counts = _counts(inputs if joint is None else joint, own)
        if counts is None:
            return
        self.calls += 1
        if self.calls <= STEPS:
            self.counts = counts if self.counts is None else self.counts + counts
            if self.calls == STEPS:
                self._send("lonely", self.counts[0] / self.counts[1].clamp(min=1))
                self.counts = None
        self._tell(loss_function, STEPS)


def _counts(inputs: LossInputs, own: slice) -> Tensor | None:
    """Samples without a pair and all samples, (2,); None where the call has a bank, or several labels a sample.

    Of a miner's pairs, which have the samples ``own`` of this process as anchors, those.
    """
    X, labels, listed, _, ref_labels, weights, *_ = inputs
    absent = None if weights is None else weights.to(X.device) == 0
    if listed is not None:
        lonely = X.new_ones(len(X), dtype=torch.bool)
        for anchors in (listed[0], listed[0 if len(listed) == 3 else 2]):
            lonely.index_fill_(0, anchors.to(X.device, torch.int64), False)
        present = torch.ones_like(lonely) if absent is None else ~absent
        return torch.stack([(lonely & present)[own].sum(), present[own].sum()])
    if not isinstance(labels, Tensor) or labels.dim() != 1 or (ref_labels is not None and ref_labels is not labels):
        return None
    labels = signed_labels(labels).to(X.device)
    labels = labels if labels.is_floating_point() else labels.long()
    none = -torch.inf if labels.is_floating_point() else ABSENT
    ordered = (labels if absent is None else labels.masked_fill(absent, none)).sort().values
    same, present = ordered[1:] == ordered[:-1], ordered != none
    lonely = present & ~(pad(same, (1, 0)) | pad(same, (0, 1)))
    return torch.stack([lonely.sum(), present.sum()])


def _lonely(loss_function: Any, found: float, steps: int) -> str | None:
    if not found > MOST:
        return None
    return (
        f"in {steps} steps {100 * found:.0f} % of the samples of {type(loss_function).__name__} had no other sample of "
        "their class in the batch, or were in no pair of the miner: they teach at most to be apart. Draw batches of P "
        "classes with K samples each, as pytorch-metric-learning's MPerClassSampler(labels, K) does; or take larger "
        "batches, by backward_in_micro_batches, or a loss with a class matrix, such as ProxyAnchorLoss"
    )


FirstPairs.messages = {"lonely": _lonely}
