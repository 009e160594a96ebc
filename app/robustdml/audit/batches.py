"""The auditor for a training loop of one's own."""

import numpy as np
import torch
from torch import Tensor

from robustdml.audit.auditor import LabelAuditor


class BatchAuditor:
    """Remembers the latest embedding of every sample that a training loop has seen.

    Parameters
    ----------
    num_samples : int
        N, of the training set.
    embedding_size : int
        D.

    Attributes
    ----------
    seen : Tensor
        Samples that were in a batch, bool, (N,).

    Examples
    --------
    >>> batches = BatchAuditor(num_samples=60, embedding_size=3)
    >>> labels = torch.arange(60) % 3
    >>> embeddings = torch.eye(3)[labels] + 0.1 * torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
    >>> labels[5] = 0
    >>> for ids in torch.arange(60).split(20):  # a training loop
    ...     batches(embeddings[ids], labels[ids], ids)
    >>> batches.report().issues_.nonzero()
    (array([5]),)
    """

    def __init__(self, num_samples: int, embedding_size: int) -> None:
        if num_samples < 1 or embedding_size < 1:
            raise ValueError(f"num_samples={num_samples}, embedding_size={embedding_size}: expected at least 1 of each")
        self._embeddings = torch.zeros(num_samples, embedding_size)
        self._labels = torch.zeros(num_samples, dtype=torch.int64)
        self.seen = torch.zeros(num_samples, dtype=torch.bool)

    @torch.no_grad()
    def __call__(self, embeddings: Tensor, labels: Tensor, ids: Tensor) -> None:
        """Take note of a batch."""
        columns, size = self._embeddings.shape[1], len(self.seen)
        if embeddings.ndim != 2 or embeddings.shape[1] != columns or not embeddings.is_floating_point():
            raise ValueError(
                f"embeddings must be a floating-point matrix with {columns} columns, got shape "
                f"{tuple(embeddings.shape)} of {embeddings.dtype}"
            )
        ids = ids.cpu().long()
        if not len(ids) == len(labels) == len(embeddings):
            raise ValueError(f"{len(embeddings)} embeddings, {len(labels)} labels and {len(ids)} ids: expected as many")
        if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < size:
            raise IndexError(f"ids run from {int(ids.min())} to {int(ids.max())}: expected 0 to {size - 1}")
        self._embeddings[ids] = embeddings.float().cpu()
        self._labels[ids] = labels.cpu().long()
        self.seen[ids] = True

    def report(self, auditor: LabelAuditor | None = None) -> LabelAuditor:
        """Judge the samples that were seen, in the order of their numbers.

        Parameters
        ----------
        auditor : LabelAuditor, optional
            With settings of its own; by default for features that were learnt from the labels.

        Returns
        -------
        LabelAuditor
            Fitted; row i is the i-th of ``seen.nonzero()``.
        """
        auditor = LabelAuditor(features_learnt=True) if auditor is None else auditor
        rows = np.flatnonzero(self.seen.numpy())
        return auditor.fit(self._embeddings.numpy()[rows], self._labels.numpy()[rows])
