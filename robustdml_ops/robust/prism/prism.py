"""PRISM: a filter that judges which samples of a batch have a right label."""

import math
import warnings
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from robustdml_ops.engine.labels import check_label_range
from robustdml_ops.engine.rows.backends import normalized
from robustdml_ops.engine.shards import ClassBuffers
from robustdml_ops.engine.validation import check_finite_embeddings, check_matrix, check_sizes
from robustdml_ops.robust.bank.memory_bank import MemoryBank
from robustdml_ops.robust.checked_batch import CheckedBatch, batch_of_all, check_batch, check_ddp_buffers, check_keep
from robustdml_ops.robust.prism import settings as known
from robustdml_ops.robust.prism.similarities import AverageSimilarity, ProxySimilarity, VmfSimilarity, likeliest_classes
from robustdml_ops.robust.prism.thresholds import CautiousThreshold, Scores, make_threshold

# Calls of forward without one of enqueue that are too many.
CALLS_WITHOUT_ROWS = 50


class PRISMResult(NamedTuple):
    """The verdict on a batch."""

    keep: Tensor  # (B,) bool
    log_p_clean: Tensor  # (B,)
    threshold: Tensor  # (), or (B,) with a threshold per class or Otsu's
    rejected_ids: Tensor | None  # (B,) int64, −1 behind the last one; None without sample ids


class PRISM(ClassBuffers):
    """Filter that keeps the samples whose label is probably right.

        P_clean(x) = softmax over the classes k of T(x, k), at k = label;      keep x if P_clean(x) > m

    T(x, k) measures how well x fits class k, by a *bank* of samples that were kept before, or by proxies. A training
    step, in this order::

        result = prism(embeddings, labels)
        loss = loss_function(embeddings, labels, sample_weights=result.keep)
        loss.backward()
        optimizer.step()
        prism.enqueue(embeddings, labels, result.keep)

    A sample is *new* while its class is not in the bank. (With "proxy": was in no batch before. With ``num_samples``:
    while the bank has only the sample's own copies.) A new sample has P_clean = 1 and is kept whatever m is.

    Scores are float32, or float64 where embeddings or bank are, also under autocast. A step makes one product B×C×D and
    keeps nothing of size B×C. There is no gradient, and nothing waits for a GPU: a step can be recorded as a CUDA
    graph, see ``docs/gpu.md``. A resumed run equals an unbroken one bit for bit.

    Source: Liu et al., "Noise-Resistant Deep Metric Learning with Probabilistic Instance Filtering", Algorithm 1.
    ``docs/labels.md`` has the extensions' reasons. Settings that are missing, or of no use to the others, raise.

    Parameters
    ----------
    num_classes, embedding_size : int
        Number of classes C, and length of an embedding D.
    similarity : {"average", "vmf", "proxy"}
        T. ``"average"``, AvgSim: mean cosine with the bank's rows of class k. ``"vmf"``, vMF-Sim: log-density of the
        von Mises–Fisher distribution of those rows. ``"proxy"``, ProxySim: cosine with the nearest proxy of class k.
    noise_rate : float
        R in [0, 1], the share of samples to reject. With "otsu" and "cautious", the most that is rejected of a class,
        by default 0.8. "fixed" has none.
    threshold : {"smooth-top-r", "top-r", "per-class", "otsu", "cautious", "fixed"}
        m. ``"top-r"``: the ⌊R·B⌋-th smallest P_clean of the batch. ``"smooth-top-r"``: the mean of that over the last
        batches. ``"fixed"``: ``fixed_threshold``. Extensions: ``"per-class"``, the R-quantile of the last scores of the
        sample's class. ``"otsu"``, with "vmf" alone: Otsu's cut of the batch in two; nothing is rejected before
        ``vmf_start``. ``"cautious"``: ``"otsu"``, but only while `wrong_share` is above 4 %, and only of classes of
        which the bank has 5 rows, own copies left out.
    window : int
        "smooth-top-r": number of batches in the mean. "per-class", "otsu" and "cautious": number of scores stored per
        class; the last also averages `wrong_share` over as many batches.
    memory_size : int
        Rows of the bank. Required with "average" and "vmf"; "proxy" has no bank.
    vmf_start, fixed_threshold : int, float
        Number of calls in which AvgSim replaces vMF-Sim, while the bank fills; P in [0, 1]. Required with "vmf", and
        with "fixed", alone.
    num_samples, max_copies : int, optional
        Size of the training set, an extension: each sample is then judged without its own past copies, which would
        support any label, and sample ids are required. Up to ``max_copies`` are looked for; the default fits epochs
        that have each sample once and reject a share R.
    unseen : {"skip", "zero"}, optional
        Whether "average" leaves classes that are not in the bank out of the softmax (default), or counts e⁰ for each,
        as the authors' code does.
    estimator, bias_correction : str, optional
        How "vmf" fits κ, see :func:`robustdml_ops.ops.fit_vmf`. By default "newton" and, an extension, "u".
    preset : {"paper"}, optional
        Estimator "prism", bias_correction "none", unseen "skip", and no extension.
    memory_dtype, backend : torch.dtype, str, optional
        Type of the stored rows; sums are float32 at least. ``"native"``, ``"triton"``, ``"eager"``; None: the fastest.

    Examples
    --------
    >>> import torch
    >>> prism = PRISM(num_classes=2, embedding_size=2, noise_rate=0.25, threshold="top-r", memory_size=100)
    >>> x = torch.tensor([[1.0, 0.1], [1.0, -0.1], [0.1, 1.0], [-0.1, 1.0]])
    >>> labels = torch.tensor([0, 0, 1, 1])
    >>> result = prism(x, labels)  # the bank is empty: all are kept
    >>> prism.enqueue(x, labels, result.keep)
    >>> result = prism(x, torch.tensor([0, 1, 1, 1]), sample_ids=torch.tensor([70, 71, 72, 73]))
    >>> result.keep, result.rejected_ids
    (tensor([ True, False,  True,  True]), tensor([71, -1, -1, -1]))
    """

    shown = ("num_classes", "embedding_size", "similarity")
    SIMILARITIES: ClassVar = known.SIMILARITIES
    SIMILARITIES_WITH_BANK: ClassVar = known.WITH_BANK  # those that need ``memory_size``
    THRESHOLDS: ClassVar = known.THRESHOLDS
    THRESHOLDS_BY_OTSU: ClassVar = known.BY_OTSU  # those that need no ``noise_rate``
    MOST_REJECTED: ClassVar = known.MOST_REJECTED  # its default with these

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        similarity: str = "average",
        noise_rate: float | None = None,
        threshold: str = "smooth-top-r",
        *,
        window: int = 20,
        memory_size: int | None = None,
        vmf_start: int | None = None,
        fixed_threshold: float | None = None,
        num_samples: int | None = None,
        max_copies: int | None = None,
        unseen: str | None = None,
        estimator: str | None = None,
        bias_correction: str | None = None,
        preset: str | None = None,
        memory_dtype: torch.dtype = torch.float32,
        backend: str | None = None,
    ) -> None:
        super().__init__()
        check_sizes(num_classes=num_classes, embedding_size=embedding_size, window=window)
        optional = {
            "noise_rate": noise_rate,
            "fixed_threshold": fixed_threshold,
            "memory_size": memory_size,
            "vmf_start": vmf_start,
            "num_samples": num_samples,
            "max_copies": max_copies,
            "unseen": unseen,
            "estimator": estimator,
            "bias_correction": bias_correction,
        }
        known.check_settings(similarity, threshold, preset, embedding_size, optional)
        self.num_classes, self.embedding_size = num_classes, embedding_size
        self.num_samples = num_samples
        self.similarity = similarity
        self.backend = backend
        rate = known.MOST_REJECTED if noise_rate is None else noise_rate
        self.scores: ProxySimilarity | AverageSimilarity
        if memory_size is None:
            self.scores = ProxySimilarity(num_classes, backend)
        else:
            store = "eager" if backend == "native" else backend  # C++ and CUDA have no kernel that stores rows
            bank = MemoryBank(num_classes, embedding_size, memory_size, memory_dtype, num_samples, backend=store)
            if num_samples is not None and max_copies is None:
                rejected = 0.5 if threshold == "fixed" else rate  # a fixed threshold rejects an unknown share
                # Of a sample that every epoch has once, the bank holds as many copies as epochs.
                max_copies = 1 + math.ceil(memory_size / ((1 - min(rejected, 0.9)) * num_samples))
            defaults = known.DEFAULTS[preset]
            unseen, estimator = unseen or defaults["unseen"], estimator or defaults["estimator"]
            if vmf_start is None:
                self.scores = AverageSimilarity(bank, max_copies, unseen, backend)
            else:
                bias_correction, cautious = bias_correction or defaults["bias_correction"], threshold == "cautious"
                self.scores = VmfSimilarity(
                    bank, max_copies, vmf_start, estimator, bias_correction, backend, with_other_labels=cautious
                )
        # Calls of forward before the first of enqueue; None: after that, or without a bank
        self.calls_before_rows: int | None = None if memory_size is None else 0
        self.threshold = make_threshold(threshold, rate, window, fixed_threshold, num_classes, memory_dtype)

    @property
    def bank(self) -> MemoryBank:
        """The bank, for losses that compare with it; RuntimeError with a similarity that has none."""
        if not isinstance(self.scores, AverageSimilarity):
            raise RuntimeError(f'similarity="{self.similarity}" has no bank')
        return self.scores.bank

    @property
    def kappa(self) -> Tensor:
        """Concentration of every class, (C,), 0 until vMF-Sim has begun; RuntimeError without ``"vmf"``."""
        if not isinstance(self.scores, VmfSimilarity):
            raise RuntimeError(f'similarity="{self.similarity}" has no kappa')
        return self.scores.kappa

    @property
    def wrong_share(self) -> Tensor:
        """Estimated share of wrong labels in the last batches, (), NaN at first; RuntimeError without ``"cautious"``.

        It misses wrong labels that fit better than the labels of other samples.
        """
        if not isinstance(self.threshold, CautiousThreshold):
            raise RuntimeError('wrong_share is known with threshold="cautious" alone')
        return self.threshold.wrong_share

    @torch.no_grad()
    def forward(
        self, embeddings: Tensor, labels: Tensor, sample_ids: Tensor | None = None, proxies: Tensor | None = None
    ) -> PRISMResult:
        """Judge the batch of a training step; each call advances the state of the threshold and the iteration.

        Returns ``keep`` (B,) bool; ``log_p_clean`` (B,), 0 for new samples; ``threshold`` log m, () or, with
        "per-class", "otsu" and "cautious", (B,), −∞ where nothing is rejected; ``rejected_ids`` (B,) int64, the ids of
        the rejected and −1 behind them, None without ``sample_ids``.

        Parameters
        ----------
        embeddings, labels : Tensor
            (B, D), floating point, any scale, detached; (B,), integers in 0 … C−1.
        sample_ids : Tensor, optional
            (B,), integers not below 0; in 0 … num_samples − 1 and required if that is given.
        proxies : Tensor, optional
            (C, D) or (C, H, D), any scale, detached: required with similarity "proxy", and refused otherwise.

        Raises
        ------
        ValueError, TypeError
            Wrong shapes, types or devices, missing sample ids or proxies, on the CPU NaN or inf; the state is kept.
        IndexError
            A label or sample id out of range (on a GPU a device-side assertion).
        RuntimeError
            Divided classes within DistributedDataParallel: see :func:`robustdml_ops.distributed.leave_out_of_ddp`.
        """
        check_ddp_buffers(self, self.shards.divided)
        batch, _ = self._batch_of_all(embeddings, labels, sample_ids)
        if self.calls_before_rows is not None and not torch.compiler.is_compiling():
            self.calls_before_rows += 1
            if self.calls_before_rows == CALLS_WITHOUT_ROWS:
                warnings.warn(
                    f"{CALLS_WITHOUT_ROWS} batches were judged, and the bank is empty, so that all samples are kept: "
                    "call enqueue(embeddings, labels, result.keep) after each step",
                    stacklevel=2,
                )
        return self.shards.guard(self._judge, batch, proxies)

    def _judge(self, batch: CheckedBatch, proxies: Tensor | None) -> PRISMResult:
        scores = self._score(batch, proxies)
        threshold = self.threshold(scores, batch.labels)
        keep = (scores.values > threshold) | ~scores.known
        self.scores.advance(batch.labels)
        own = self.shards.take_own
        keep, ids = own(keep), None if batch.sample_ids is None else own(batch.sample_ids)
        threshold = own(threshold) if threshold.dim() else threshold
        rejected = None
        if ids is not None:
            order = keep.byte().argsort(stable=True)
            rejected = torch.where(keep[order], -1, ids[order])
        return PRISMResult(keep, own(scores.values), threshold, rejected)

    @torch.no_grad()
    def log_p_clean(
        self, embeddings: Tensor, labels: Tensor, sample_ids: Tensor | None = None, proxies: Tensor | None = None
    ) -> Tensor:
        """Scores alone, (B,): changes no state. Parameters and errors as in `forward`."""
        batch, _ = self._batch_of_all(embeddings, labels, sample_ids)
        return self.shards.take_own(self.shards.guard(self._score, batch, proxies).values)

    @torch.no_grad()
    def propose(self, embeddings: Tensor) -> tuple[Tensor, Tensor]:
        """Classify each embedding of (B, D) among the classes of the bank; changes no state.

        Returns argmax_k T(x, k), (B,) int64, and the log of its softmax over the classes, (B,), −∞ while the bank is
        empty. RuntimeError for "proxy", or if classes are divided among processes; other errors as `forward`.
        """
        if not isinstance(self.scores, AverageSimilarity) or self.shards.divided:
            raise RuntimeError('propose() is for similarity="average" and "vmf", with all classes on one process')
        check_matrix("embeddings", embeddings, columns=self.embedding_size)
        dtype = torch.promote_types(embeddings.dtype, torch.float32)
        with torch.autocast(embeddings.device.type, enabled=False):
            X = normalized(embeddings.detach(), dtype, self.backend)
            return likeliest_classes(X, self.bank.sums, *self.scores.logits())

    @torch.no_grad()
    def enqueue(self, embeddings: Tensor, labels: Tensor, keep: Tensor, sample_ids: Tensor | None = None) -> None:
        """Store the samples that ``keep`` (B,) bool marks in the bank, after the loss; with "proxy" nothing.

        The other arguments, and errors, are those of `forward`; ``keep`` is of its result.
        """
        self.calls_before_rows = None
        batch, kept = self._batch_of_all(embeddings, labels, sample_ids, (keep,))
        self.shards.guard(self.scores.enqueue, batch, kept)

    def _load_from_state_dict(self, *arguments: Any) -> None:
        self.calls_before_rows = None  # the bank that was saved has rows
        super()._load_from_state_dict(*arguments)

    def _batch_of_all(
        self, embeddings: Tensor, labels: Tensor, sample_ids: Tensor | None, keep: tuple[Tensor, ...] = ()
    ) -> tuple[CheckedBatch, Tensor | None]:
        """Unit rows of all processes, and ``keep`` if given; without ``keep``, `_score` checks the values."""

        def check() -> tuple[CheckedBatch, Tensor | None]:
            D, N, state = self.embedding_size, self.num_samples, next(self.buffers(), None)
            batch = check_batch("embeddings", embeddings, labels, sample_ids, D, N, state)
            dtype = torch.promote_types(embeddings.dtype, torch.float32)
            # A row with NaN or inf becomes NaN, which the checks of the values find.
            batch = batch._replace(X=normalized(embeddings.detach(), dtype, self.backend))
            if keep or self.shards.divided:
                check_label_range(batch.labels, self.num_classes)
                check_finite_embeddings(batch.X)
            return batch, check_keep(keep[0], batch.labels) if keep else None

        return batch_of_all(self, self.shards, check)

    def _score(self, batch: CheckedBatch, proxies: Tensor | None) -> Scores:
        if proxies is not None and self.similarity != "proxy":
            raise ValueError(f'proxies are of no use to similarity="{self.similarity}": leave them out')
        # Cosines in bfloat16 have errors of 2⁻⁹/√D: times a κ in the hundreds, more than classes differ by.
        with torch.autocast(batch.X.device.type, enabled=False):
            return self.scores.score(batch, proxies)
