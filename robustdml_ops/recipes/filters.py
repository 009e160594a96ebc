"""The filter of a run: who takes part in each step, and how well it chose."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from robustdml_ops.recipes.config import TrainingConfig
from robustdml_ops.recipes.errors import UsageError
from robustdml_ops.recipes.evaluation import detection_auc
from robustdml_ops.recipes.filter_options import FILTERS, NO_FILTER
from robustdml_ops.recipes.samplers import Indices
from robustdml_ops.robust import PRISM, MemoryBank

QUANTILES = {"min": 0.0, "q25": 0.25, "median": 0.5, "q75": 0.75, "max": 1.0}


class Filter(nn.Module):
    """PRISM in a run, and what it did in the epoch; all its state is in ``state_dict``.

    Parameters
    ----------
    config : TrainingConfig
        Settings; its filter is not ``none``.
    labels : ndarray
        Labels with their noise, (N,).
    changed : ndarray
        Which are wrong, (N,): to measure with.
    num_classes : int
        C.
    steps_per_epoch : int
        Batches an epoch.
    """

    log_p_clean: Tensor
    counts: Tensor

    def __init__(
        self,
        config: TrainingConfig,
        labels: NDArray[np.int64],
        changed: NDArray[np.bool_],
        num_classes: int,
        steps_per_epoch: int,
    ) -> None:
        super().__init__()
        options, num_samples = config.filter, len(labels)
        similarity = FILTERS[options.kind]
        has_bank = similarity not in ("proxy", "batch-positive")
        fixed = options.threshold == "fixed"
        memory_size = num_samples if options.memory_size is None else options.memory_size
        try:
            self.prism = PRISM(
                num_classes,
                config.embedding_size,
                similarity,
                None if fixed else config.told_noise_rate,
                options.threshold,
                window=options.window,
                memory_size=memory_size if has_bank else None,
                vmf_start=options.vmf_epochs * steps_per_epoch if similarity == "vmf" else None,
                fixed_threshold=options.fixed_threshold,
                num_samples=num_samples if options.without_copies else None,
                preset=options.preset,
            )
        except ValueError as error:
            raise UsageError(f"filter {options.kind}: {error}") from error
        self._labels = torch.from_numpy(labels)
        self._changed = changed
        # Of each sample, when it was last judged in this epoch; NaN where it was not.
        self.register_buffer("log_p_clean", torch.full((num_samples,), torch.nan))
        # Samples judged: right and kept, right, kept, all.
        self.register_buffer("counts", torch.zeros(4, dtype=torch.int64))

    @property
    def bank(self) -> MemoryBank | None:
        """The memory of the filter, where it has one."""
        bank: MemoryBank | None = getattr(self.prism, "bank", None)
        return bank

    def start_epoch(self) -> None:
        """Forget what the filter did; not what it knows."""
        self.log_p_clean.fill_(torch.nan)
        self.counts.zero_()

    def judge(self, embeddings: Tensor, rows: Indices, proxies: Tensor | None) -> Tensor:
        """Say who takes part.

        Parameters
        ----------
        embeddings : Tensor
            Of the batch, (B, D), detached.
        rows : ndarray
            Sample numbers, (B,).
        proxies : Tensor or None
            Of the loss, (C, D) or (C, H, D), where it has any.

        Returns
        -------
        Tensor
            bool, (B,).
        """
        labels, ids = self._of_batch(embeddings, rows)
        result = self.prism(embeddings, labels, ids, proxies if self.prism.similarity == "proxy" else None)
        self.log_p_clean[ids] = result.log_p_clean.to(self.log_p_clean)
        right = torch.from_numpy(~self._changed[rows]).to(embeddings.device)
        of_batch = [right & result.keep, right, result.keep, torch.ones_like(right)]
        self.counts += torch.stack([mask.sum() for mask in of_batch])
        keep: Tensor = result.keep
        return keep

    def remember(self, embeddings: Tensor, rows: Indices, keep: Tensor) -> None:
        """Put what was kept into the memory, after the step.

        Parameters
        ----------
        embeddings, rows
            As given to `judge`.
        keep : Tensor
            As it came out.
        """
        labels, ids = self._of_batch(embeddings, rows)
        self.prism.enqueue(embeddings, labels, keep, ids)

    def record(self) -> dict[str, float]:
        """Say how well it chose in this epoch, and how concentrated the classes are.

        Returns
        -------
        dict
            ``filter_precision``: share of right labels among the kept; ``filter_recall``: share of the right ones that
            were kept; ``filter_kept``: share kept; ``filter_auc``: of the scores, where there are wrong labels; for
            vMF-Sim the quartiles of κ, once it has begun, over the classes that are in the memory.
        """
        right_kept, right, kept, judged = self.counts.tolist()
        record = {
            "filter_precision": right_kept / max(kept, 1),
            "filter_recall": right_kept / max(right, 1),
            "filter_kept": kept / max(judged, 1),
        }
        auc = detection_auc(self.scores()["log_p_clean"], self._changed)
        return record | ({} if auc is None else {"filter_auc": auc}) | self._kappa()

    def scores(self) -> dict[str, NDArray[np.float32]]:
        """Say what it held of each training sample in the last epoch.

        Returns
        -------
        dict
            ``log_p_clean``: float32, (N,), NaN where a sample was in no batch.
        """
        return {"log_p_clean": self.log_p_clean.cpu().numpy()}

    def _kappa(self) -> dict[str, float]:
        if self.prism.similarity != "vmf" or self.bank is None:
            return {}
        kappa = self.prism.kappa[self.bank.seen].float()
        if not len(kappa) or not kappa.any():
            return {}
        return {f"kappa_{name}": float(kappa.quantile(q)) for name, q in QUANTILES.items()}

    def _of_batch(self, embeddings: Tensor, rows: Indices) -> tuple[Tensor, Tensor]:
        ids = torch.from_numpy(rows)
        return self._labels[ids].to(embeddings.device), ids.to(embeddings.device)


def make_filter(
    config: TrainingConfig,
    labels: NDArray[np.int64],
    changed: NDArray[np.bool_],
    num_classes: int,
    steps_per_epoch: int,
) -> Filter | None:
    """Make the filter that the settings ask for.

    Parameters
    ----------
    config, labels, changed, num_classes, steps_per_epoch
        As in `Filter`.

    Returns
    -------
    Filter or None
        None for ``none``.
    """
    if config.filter.kind == NO_FILTER:
        return None
    return Filter(config, labels, changed, num_classes, steps_per_epoch)
