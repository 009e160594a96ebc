"""The filter of many classes: each sample against its own class, once, by embeddings that have learnt something."""

import torch
from torch import Tensor

from robustdml.arrays import Labels
from robustdml.filters.filter import KEPT, LEAST_QUALITY, Filter
from robustdml.progress import OnProgress
from robustdml_ops.robust import OwnClassFilter

# Samples that are judged at once, sorted by class; as many first batches as give distributions to the first.
AT_ONCE, FIRST = 1024, 16


class OwnClassVerdict(Filter):
    """A verdict on all labels halfway: batches are drawn from what is kept."""

    observed = ("log_p_clean", KEPT)
    log_p_clean: Tensor

    def __init__(self, num_samples: int) -> None:
        super().__init__()
        self.register_buffer("log_p_clean", torch.full((num_samples,), torch.nan))  # until it has judged

    @property
    def verdict(self) -> dict[str, Tensor]:
        """Scores and choice, (N,) by name; none before it has judged."""
        if self.log_p_clean.isnan().any():
            return {}
        keep = self.log_p_clean.exp() > LEAST_QUALITY
        # Everything is kept where nothing would be.
        return {"log_p_clean": self.log_p_clean, KEPT: keep if keep.any() else ~keep}

    def judge_all(self, embeddings: Tensor, labels: Labels, on_progress: OnProgress) -> None:
        """Judge the labels (N,) of embeddings (N, D)."""
        given = torch.from_numpy(labels)
        batches = torch.split(given.argsort(stable=True), AT_ONCE)
        judge = OwnClassFilter(window=10 * FIRST)
        for rows in batches[:FIRST]:
            judge(embeddings[rows], given[rows])
        for number, rows in enumerate(batches):
            on_progress("judging labels", number, len(batches))
            self.log_p_clean[rows] = judge(embeddings[rows], given[rows]).log_p_clean.to(self.log_p_clean.device)
