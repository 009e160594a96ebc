"""PRISM as its authors' public code has it: it differs from the paper while classes are new."""

import math

import torch
from torch import Tensor

from robustdml_ops.robust.bank.memory_bank import MemoryBank
from robustdml_ops.robust.batch import Batch
from robustdml_ops.robust.prism.scores import Scores, counts_here
from robustdml_ops.robust.prism.softmax import BankSoftmax
from robustdml_ops.robust.prism.thresholds import Threshold


class AuthorsSimilarity(BankSoftmax):
    """AvgSim, where a class is known once a batch after the first has brought a row of it into the bank.

    Their code computes the means of the classes that the batch before has brought, and takes no note of the batch that
    met an empty bank. A class that is not known adds e⁰ to the denominator.
    """

    brought: Tensor

    def __init__(self, bank: MemoryBank, backend: str | None) -> None:
        super().__init__(bank, None, "zero", backend)
        self.register_buffer("brought", torch.zeros(bank.num_classes, dtype=torch.bool))

    def class_dimensions(self) -> dict[str, int]:
        """As of :class:`BankSoftmax`."""
        return {**super().class_dimensions(), "brought": 0}

    def score(self, batch: Batch, proxies: Tensor | None) -> Scores:
        """As of :class:`BankSoftmax`, and whether the bank is empty."""
        return super().score(batch, proxies)._replace(bank_is_empty=self.bank.enqueued == 0)

    def is_known(self, labels: Tensor) -> Tensor:
        """As of :class:`BankSoftmax`."""
        return self.shards.of_labels(self.brought, labels)

    def enqueue(self, batch: Batch, keep: Tensor) -> None:
        """Store the kept rows, and take note of their classes unless the bank is empty."""
        noted = keep & (self.bank.enqueued > 0)
        self.brought |= counts_here(self.shards, batch.labels, noted.long(), len(self.brought)) > 0
        super().enqueue(batch, keep)

    def refresh(self, classes: Tensor | None) -> None:
        """As of :class:`BankSoftmax`; the scale of classes that are not known stays 0."""
        super().refresh(classes)
        self.scale.mul_(self.brought)


class AuthorsSmoothTopR(Threshold):
    """The mean of the last quantiles of P, or the ⌊R·B⌋ lowest of the batch where that mean says nothing.

    It says nothing while no quantile has been stored, and where it would reject the whole batch; in the second case the
    quantiles before the last one are forgotten. By their ranks, samples of new classes, whose P is 1, are rejected like
    any other: the first ones of the batch. A quantile that falls on a new class is not stored. A batch that meets an
    empty memory is kept and leaves no trace.

    ``share`` is R, ``batches`` how many quantiles count.
    """

    quantiles: Tensor

    def __init__(self, share: float, batches: int) -> None:
        super().__init__()
        self.share = share
        # The latest one last; NaN where there has been no batch yet.
        self.register_buffer("quantiles", torch.full((batches,), math.nan, dtype=torch.float64))

    def judge(self, scores: Scores, labels: Tensor) -> tuple[Tensor, Tensor]:
        """As :meth:`Threshold.judge`; m is −∞ where all are kept, the quantile where ranks decide."""
        values, lowest = scores.values, int(self.share * len(labels))
        if lowest == 0:  # where their code ends with an IndexError
            return torch.ones_like(scores.known), values.new_full((), -math.inf)
        assert scores.bank_is_empty is not None
        ascending, order = values.sort(stable=True)
        by_rank = torch.ones_like(scores.known).index_fill_(0, order[:lowest], False)
        quantile = ascending[lowest - 1]
        stored = self._with(quantile)
        given = ~stored.isnan()
        m = stored.masked_fill(~given, -math.inf).logsumexp(0) - given.sum().to(stored.dtype).log()
        m = m.to(values.dtype)
        by_mean = values > m
        all_rejected = given.any() & ~by_mean.any()
        ranks_decide = all_rejected | ~given.any()
        latest_alone = stored.clone()
        latest_alone[:-1] = math.nan
        stored = torch.where(all_rejected, latest_alone, stored)
        self.quantiles.copy_(torch.where(scores.bank_is_empty, self.quantiles, stored))
        m = torch.where(scores.bank_is_empty, -math.inf, torch.where(ranks_decide, quantile, m))
        return torch.where(ranks_decide, by_rank, by_mean) | scores.bank_is_empty, m

    def _with(self, quantile: Tensor) -> Tensor:
        """The quantiles and this one, unless it is P = 1 or NaN."""
        new = torch.cat([self.quantiles[1:], quantile.to(self.quantiles.dtype)[None]])
        return torch.where(quantile < 0, new, self.quantiles)
