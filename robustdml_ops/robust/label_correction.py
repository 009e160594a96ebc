"""Correction of labels in training: train on a rejected sample with the class that the filter proposes."""

from typing import NamedTuple

import torch
from torch import Tensor

from robustdml_ops.engine.shards import TypedBuffers
from robustdml_ops.engine.validation import check_sizes
from robustdml_ops.robust.checked_batch import check_batch, check_keep
from robustdml_ops.robust.prism.prism import PRISM


class Corrected(NamedTuple):
    """A batch to train on."""

    labels: Tensor  # (B,) int64: the given label, or the proposal that replaces it
    keep: Tensor  # (B,) bool: samples to train on, the corrected ones included
    corrected: Tensor  # (B,) bool


class LabelCorrection(TypedBuffers):
    """Gives samples that PRISM rejects the class that it proposes for them.

    A rejected sample x is trained on with the label

        k*(x) = argmax_k T(x, k),      if P(k* | x) = softmax_k T(x, k)[k*] ≥ confidence

    and k* was the same in its last ``visits`` judgements. The correction ends as soon as the filter keeps the sample or
    proposes another class. In a training step::

        result = prism(embeddings, labels, ids)
        fixed = correction(prism, embeddings, labels, result.keep, ids)
        loss = loss_function(embeddings, fixed.labels, sample_weights=fixed.keep)
        loss.backward()
        optimizer.step()
        prism.enqueue(embeddings, labels, result.keep, ids)  # corrected samples would support their own correction

    An extension: Liu et al. name the correction of labels as an outlook (section VII). A step takes one more product
    B×C×D; nothing waits for a GPU.

    ``proposals`` (N,) int64 has the class that each sample's last judgement proposed, −1 for its own label or without a
    judgement; ``times`` (N,) int64, how often in a row. Where ``grow_classes`` gives classes other numbers make a new
    ``LabelCorrection``: proposals would be compared with those of other classes.

    Parameters
    ----------
    num_samples : int
        N, size of the training set.
    confidence : float
        In [0, 1]. Most P of vMF-Sim are near 1: there the visits decide.
    visits : int
        How often in a row the same class must be proposed, at least 1.

    Examples
    --------
    >>> prism = PRISM(2, 2, "vmf", threshold="fixed", fixed_threshold=0.5, memory_size=8, vmf_start=0)
    >>> right = torch.tensor([[1.0, 0.1], [1.0, -0.1], [0.1, 1.0], [-0.1, 1.0]])
    >>> prism.enqueue(right, torch.tensor([0, 0, 1, 1]), torch.ones(4, dtype=torch.bool))
    >>> x, label, ids = torch.tensor([[1.0, 0.0]]), torch.tensor([1]), torch.tensor([4])
    >>> correction = LabelCorrection(num_samples=5, visits=2)
    >>> for _ in range(2):
    ...     result = prism(x, label, ids)
    ...     correction(prism, x, label, result.keep, ids)
    Corrected(labels=tensor([1]), keep=tensor([False]), corrected=tensor([False]))
    Corrected(labels=tensor([0]), keep=tensor([True]), corrected=tensor([True]))
    """

    proposals: Tensor
    times: Tensor
    shown = ("confidence", "visits")

    def __init__(self, num_samples: int, confidence: float = 0.9, visits: int = 2) -> None:
        super().__init__()
        check_sizes(num_samples=num_samples, visits=visits)
        if not 0 <= confidence <= 1:
            raise ValueError(f"confidence must lie in [0, 1], got {confidence}")
        self.confidence, self.visits = confidence, visits
        self.register_buffer("proposals", torch.full((num_samples,), -1))
        self.register_buffer("times", torch.zeros(num_samples, dtype=torch.int64))

    @torch.no_grad()
    def forward(self, prism: PRISM, embeddings: Tensor, labels: Tensor, keep: Tensor, sample_ids: Tensor) -> Corrected:
        """Correct a batch that has been judged; this counts as a visit of each of its samples.

        Returns ``labels`` (B,) to train with, ``keep`` (B,) bool and ``corrected`` (B,) bool.

        Parameters
        ----------
        prism : PRISM
            The filter, with similarity "average" or "vmf".
        embeddings, labels, keep, sample_ids : Tensor
            (B, D) and (B,), as given to the filter; (B,) bool, its verdict; (B,), integers in 0 … N−1.

        Raises
        ------
        ValueError, TypeError, IndexError, RuntimeError
            Wrong shapes, types or ids; a filter without a bank. The state is as before.
        """
        D, N = prism.embedding_size, len(self.proposals)
        _, labels, ids = check_batch("embeddings", embeddings, labels, sample_ids, D, N, self.proposals)
        assert ids is not None
        keep = check_keep(keep, labels)
        proposed, log_p = prism.propose(embeddings)
        proposed = torch.where((proposed == labels) | log_p.isinf(), -1, proposed)
        times = torch.where(proposed == self.proposals[ids], self.times[ids] + 1, 1)
        self.proposals.index_copy_(0, ids, proposed)
        self.times.index_copy_(0, ids, times)
        sure = (log_p.exp() >= self.confidence) & (times >= self.visits)
        corrected = ~keep & sure & (proposed >= 0)
        return Corrected(torch.where(corrected, proposed, labels), keep | corrected, corrected)
