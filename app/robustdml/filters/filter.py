"""The filters of a run, which keep samples of probably wrong labels out of a step."""

import math

import torch
from torch import Tensor, nn

from robustdml.arrays import Labels, Rows
from robustdml.config import TrainingConfig
from robustdml.errors import UsageError
from robustdml.filters.options import FILTERS
from robustdml.world import World
from robustdml_ops.robust import PRISM, MemoryBank

# What filters call their choice.
KEPT = "kept"
_FILLED_AT_ONCE = 4096
QUALITY = "label_quality"
# A label is kept unless it is more likely wrong than right.
LEAST_QUALITY = 0.5


class PrismFilter(nn.Module):
    """PRISM in a run; all its state is in ``state_dict``."""

    observed = ("log_p_clean", KEPT)

    def __init__(
        self, config: TrainingConfig, labels: Labels, num_classes: int, embedding_size: int, steps_per_epoch: int
    ) -> None:
        super().__init__()
        options, num_samples = config.filter_options, len(labels)
        similarity = FILTERS[options.kind]
        has_bank = similarity in PRISM.SIMILARITIES_WITH_BANK
        memory_size = num_samples if options.memory_size is None else options.memory_size
        try:
            self.prism = PRISM(
                num_classes,
                embedding_size,
                similarity,
                config.noise_rate,
                options.threshold,
                window=options.window,
                memory_size=memory_size if has_bank else None,
                vmf_start=options.vmf_epochs * steps_per_epoch if similarity == "vmf" else None,
                fixed_threshold=options.fixed_threshold,
                num_samples=num_samples if options.without_copies else None,
                preset=options.preset,
                memory_dtype=getattr(torch, options.memory_dtype),
            )
        except ValueError as error:
            raise UsageError(f"filter {options.kind}: {error}") from error
        self._labels = torch.from_numpy(labels)
        self._cautious = options.threshold == "cautious"

    @property
    def bank(self) -> MemoryBank | None:
        """Its memory, where it has one."""
        return self.prism.bank if self.prism.similarity in PRISM.SIMILARITIES_WITH_BANK else None

    def fill(self, embeddings: Tensor, world: World) -> None:
        """Remember every training sample as it is before the first step, where that says something already."""
        bank = self.bank
        if bank is None:
            return
        # In random order, so that a memory smaller than N is left with some of every class.
        for rows in torch.split(torch.randperm(len(embeddings)), _FILLED_AT_ONCE):
            own = world.part(rows.numpy())
            batch = embeddings[own].to(bank.features.device)
            self.remember(batch, own, torch.ones(len(own), dtype=torch.bool, device=batch.device))

    def judge(self, embeddings: Tensor, rows: Rows, proxies: Tensor | None) -> tuple[Tensor, dict[str, Tensor]]:
        """Say what is kept, (B,) bool, and what is to be logged, (B,) by name."""
        labels, ids = self._of_batch(embeddings, rows)
        result = self.prism(embeddings, labels, ids, proxies if self.prism.similarity == "proxy" else None)
        return result.keep, {"log_p_clean": result.log_p_clean, KEPT: result.keep}

    def remember(self, embeddings: Tensor, rows: Rows, keep: Tensor) -> None:
        """Put what was kept into the memory, after the step."""
        labels, ids = self._of_batch(embeddings, rows)
        self.prism.enqueue(embeddings, labels, keep, ids)

    def record(self) -> dict[str, float]:
        """Return numbers for the history, after an epoch."""
        share = float(self.prism.wrong_share) if self._cautious else math.nan
        return {} if math.isnan(share) else {"wrong_share": share}

    def _of_batch(self, embeddings: Tensor, rows: Rows) -> tuple[Tensor, Tensor]:
        ids = torch.from_numpy(rows)
        return self._labels[ids].to(embeddings.device), ids.to(embeddings.device)


class AuditFilter(nn.Module):
    """A verdict on all labels before training, by `label_quality`: batches are drawn from what is kept."""

    observed = (QUALITY, KEPT)
    quality: Tensor

    def __init__(self, num_samples: int) -> None:
        super().__init__()
        self.register_buffer("quality", torch.ones(num_samples))

    @property
    def verdict(self) -> dict[str, Tensor]:
        """Quality and choice of all samples, (N,) by name; everything is kept where nothing would be."""
        keep = self.quality >= LEAST_QUALITY
        return {QUALITY: self.quality, KEPT: keep if keep.any() else ~keep}
