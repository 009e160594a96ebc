"""The auditor beside a training loop of one's own: it is shown the batches, and reports."""

import numpy as np
import torch
from torch import Tensor

from robustdml.audit.auditor import LabelAuditor
from robustdml_ops.engine.validation import check_id_range, check_matrix, check_sample_ids, check_sizes


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
        Which samples there has been a batch of, bool, (N,).

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
        check_sizes(num_samples=num_samples, embedding_size=embedding_size)
        self._embeddings = torch.zeros(num_samples, embedding_size)
        self._labels = torch.zeros(num_samples, dtype=torch.int64)
        self.seen = torch.zeros(num_samples, dtype=torch.bool)

    @torch.no_grad()
    def __call__(self, embeddings: Tensor, labels: Tensor, ids: Tensor) -> None:
        """Take note of a batch."""
        embeddings = check_matrix("embeddings", embeddings, columns=self._embeddings.shape[1])
        ids = check_sample_ids(ids, len(embeddings)).cpu()
        check_id_range(ids, len(self.seen))
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
