"""The filters of a run, which keep samples of probably wrong labels out of a step."""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from robustdml.arrays import Rows
from robustdml.config import RANDOM, TrainingConfig
from robustdml.data import RetrievalData
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


class Filter(nn.Module):
    """Keeps every sample, and is the base of filters that do not; all state is in ``state_dict``."""

    observed: tuple[str, ...] = ()  # The names of what `verdict` and `judge` give

    @property
    def bank(self) -> MemoryBank | None:
        """Its memory of embeddings, where it has one."""
        return None

    @property
    def verdict(self) -> dict[str, Tensor]:
        """Scores and choice that hold for the whole run, (N,) by name: batches are drawn from the samples kept."""
        return {}

    def fit(self, judge_labels: Callable[[], Tensor], embed: Callable[[], Tensor]) -> None:
        """Prepare for the first step, by the quality of all labels, (N,), or their embeddings before it, (N, D)."""

    def judge(
        self, embeddings: Tensor, rows: Rows, proxies: Callable[[], Tensor | None]
    ) -> tuple[Tensor | None, dict[str, Tensor]]:
        """Mask of the samples kept, (B,) bool, or None for all; and values to log, (B,) by name."""
        return None, {}

    def remember(self, embeddings: Tensor, rows: Rows, keep: Tensor) -> None:
        """Put the samples kept into the memory, after the step."""

    def record(self) -> dict[str, float]:
        """Return numbers for the history, after an epoch."""
        return {}


class PrismFilter(Filter):
    """PRISM, which judges each batch before its step."""

    observed = ("log_p_clean", KEPT)

    def __init__(
        self, config: TrainingConfig, data: RetrievalData, embedding_size: int, steps_per_epoch: int, world: World
    ) -> None:
        super().__init__()
        options, num_samples = config.filter_options, len(data.train)
        similarity = FILTERS[options.kind]
        # From a start that says something already the memory is filled before the first step.
        self._is_filled_first = config.layer_start != RANDOM
        has_bank = similarity in PRISM.SIMILARITIES_WITH_BANK
        memory_size = num_samples if options.memory_size is None else options.memory_size
        vmf_start = 0 if self._is_filled_first else options.vmf_epochs * steps_per_epoch
        try:
            self.prism = PRISM(
                data.train.num_classes,
                embedding_size,
                similarity,
                config.assumed_noise_rate(data.noise_rate),
                options.threshold,
                window=options.window,
                memory_size=memory_size if has_bank else None,
                vmf_start=vmf_start if similarity == "vmf" else None,
                fixed_threshold=options.fixed_threshold,
                num_samples=num_samples if options.without_copies else None,
                preset=options.preset,
                memory_dtype=getattr(torch, options.memory_dtype),
            )
        except ValueError as error:
            raise UsageError(f"filter {options.kind}: {error}") from error
        self._labels, self._world = torch.from_numpy(data.train.labels), world
        self._cautious = options.threshold == "cautious"

    @property
    def bank(self) -> MemoryBank | None:
        return self.prism.bank if self.prism.similarity in PRISM.SIMILARITIES_WITH_BANK else None

    def fit(self, judge_labels: Callable[[], Tensor], embed: Callable[[], Tensor]) -> None:
        bank = self.bank
        if bank is None or not self._is_filled_first:
            return
        embeddings = embed()
        # In random order, so that a memory smaller than N is left with some of every class.
        for rows in torch.split(torch.randperm(len(embeddings)), _FILLED_AT_ONCE):
            own = self._world.part(rows.numpy())
            batch = embeddings[own].to(bank.features.device)
            self.remember(batch, own, torch.ones(len(own), dtype=torch.bool, device=batch.device))

    def judge(
        self, embeddings: Tensor, rows: Rows, proxies: Callable[[], Tensor | None]
    ) -> tuple[Tensor | None, dict[str, Tensor]]:
        labels, ids = self._of_batch(embeddings, rows)
        result = self.prism(embeddings, labels, ids, proxies() if self.prism.similarity == "proxy" else None)
        return result.keep, {"log_p_clean": result.log_p_clean, KEPT: result.keep}

    def remember(self, embeddings: Tensor, rows: Rows, keep: Tensor) -> None:
        labels, ids = self._of_batch(embeddings, rows)
        self.prism.enqueue(embeddings, labels, keep, ids)

    def record(self) -> dict[str, float]:
        share = float(self.prism.wrong_share) if self._cautious else math.nan
        return {} if math.isnan(share) else {"wrong_share": share}

    def _of_batch(self, embeddings: Tensor, rows: Rows) -> tuple[Tensor, Tensor]:
        ids = torch.from_numpy(rows)
        return self._labels[ids].to(embeddings.device), ids.to(embeddings.device)


class AuditFilter(Filter):
    """Judges all labels before training, by `label_quality`; batches are drawn from the samples kept."""

    observed = (QUALITY, KEPT)
    quality: Tensor

    def __init__(self, num_samples: int) -> None:
        super().__init__()
        self.register_buffer("quality", torch.ones(num_samples))

    @property
    def verdict(self) -> dict[str, Tensor]:
        keep = self.quality >= LEAST_QUALITY
        # Everything is kept where nothing would be.
        return {QUALITY: self.quality, KEPT: keep if keep.any() else ~keep}

    def fit(self, judge_labels: Callable[[], Tensor], embed: Callable[[], Tensor]) -> None:
        self.quality.copy_(judge_labels())
