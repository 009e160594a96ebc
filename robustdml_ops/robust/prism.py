"""PRISM: which samples of a batch have a right label, judged by a memory of those that had."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from robustdml_ops.ops.similarity import unit_rows
from robustdml_ops.ops.validation import (
    check_finite_embeddings,
    check_label_range,
    check_labels,
    check_local,
    check_matrix,
    check_same_device,
    check_sample_ids,
)
from robustdml_ops.robust.buffers import TypedBuffers
from robustdml_ops.robust.memory_bank import MemoryBank
from robustdml_ops.robust.prism_scores import (
    AverageSimilarity,
    BatchPositive,
    MemoryPositive,
    ProxySimilarity,
    Scores,
    VmfSimilarity,
)
from robustdml_ops.robust.prism_settings import ABLATIONS, PRISMSettings
from robustdml_ops.robust.prism_thresholds import FixedThreshold, OtsuCut, PerClassThreshold, SmoothTopR, TopR


class PRISMResult(NamedTuple):
    """The verdict on a batch."""

    keep: Tensor  # (B,) bool
    log_p_clean: Tensor  # (B,)
    threshold: Tensor  # (), or (B,) with a threshold per class or Otsu's
    rejected_ids: Tensor | None  # (B,) int64, −1 behind the last one; None without sample ids


class PRISM(TypedBuffers):
    """Filter that keeps the samples whose label is probably right.

        P_clean(x) = softmax over the classes k of T(x, k), at k = label;      keep x if P_clean(x) > m

    In a training step, in this order::

        result = prism(embeddings, labels)
        loss = loss_function(embeddings, labels, sample_weights=result.keep.float())
        loss.backward()
        optimizer.step()
        prism.enqueue(embeddings, labels, result.keep)

    Parameters
    ----------
    num_classes, embedding_size : int
        C and D.
    similarity : {"average", "proxy", "vmf", "batch-positive", "memory-positive"}
        T. ``"average"``: mean cosine with the rows of class k in the bank. ``"proxy"``: cosine with the nearest proxy
        of class k. ``"vmf"``: log-density of the von Mises–Fisher distribution of class k's rows. The last two are the
        paper's ablations, without a softmax: P_clean stands for the mean cosine with the other samples of the class in
        the batch, or with those in the bank.
    noise_rate : float
        R in [0, 1], the share to reject; of all thresholds but ``"fixed"``. 0 rejects none, 1 all samples of known
        classes. ``"otsu"`` needs none: there R is the most that is rejected of a class, by default 0.8.
    threshold : {"smooth-top-r", "top-r", "per-class", "otsu", "fixed"}
        M. ``"top-r"``: the ⌊R·B⌋-th smallest P_clean of the batch. ``"smooth-top-r"``: its mean over the last batches.
        ``"per-class"``: the R-quantile of the last scores of the sample's class, an extension. ``"otsu"``: where the
        batch falls into right and wrong labels by itself, an extension, with ``"vmf"`` alone; nothing is rejected
        before ``vmf_start``. ``"fixed"``: a number.
    window : int
        Batches of ``"smooth-top-r"``, or scores kept per class of ``"per-class"`` and ``"otsu"``.
    memory_size : int
        Rows of the bank; needed with ``"average"``, ``"vmf"`` and ``"memory-positive"``, the three that have one.
    vmf_start : int
        Iterations, calls, in which ``"vmf"`` goes by AvgSim, while the bank fills; needed with it alone.
    fixed_threshold : float
        P in [0, 1] (a cosine for the ablations); needed with ``threshold="fixed"`` alone.
    num_samples : int, optional
        Size of the training set: each sample is judged by its class without its own past copies, which would vouch for
        any label. An extension; sample ids are required then.
    max_copies : int, optional
        How many copies of a sample are looked for with ``num_samples``; by default as many as the bank may hold when
        each epoch has each sample once and a share R is rejected. Samplers that repeat samples need more.
    unseen : {"skip", "zero"}, optional
        Whether ``"average"`` leaves classes that are not in the bank out of the softmax, or, as the authors' code,
        counts e⁰ for each. Default "skip".
    estimator, bias_correction : str, optional
        Of ``"vmf"``, see :func:`robustdml_ops.ops.fit_vmf`. Default "newton" and, an extension, "u".
    preset : {"paper"}, optional
        The paper's form: estimator "prism", bias_correction "none", unseen "skip", and no extension.
    memory_dtype : torch.dtype
        Of the stored rows; sums are float32 at least.
    backend : str, optional
        ``"native"``, ``"triton"``, ``"eager"``: that one or an error. None: the fastest that serves the device.

    Raises
    ------
    ValueError
        Settings out of range, missing, or of no use to the others given.

    Notes
    -----
    A sample is new while nothing can be said of its class: it is not in the bank (``"proxy"``: in no batch before;
    ``"batch-positive"``: not twice in the batch; with ``num_samples``: in the bank with the sample's own copies alone).
    New samples have P_clean = 1 and are kept whatever m is.

    Scores are in float32 (float64 where embeddings or bank are), also under autocast; for ``"vmf"`` the error of log P
    is some 1e-7·κ in float32. One product B×C×D and nothing of that size B×C in memory; no gradient; nothing waits for
    a GPU. All state is in ``state_dict``, and a resumed run equals an unbroken one bit for bit.

    References
    ----------
    Liu et al., "Noise-Resistant Deep Metric Learning with Probabilistic Instance Filtering", Algorithm 1.
    ``docs/prism.md`` has the extensions' reasons.

    Examples
    --------
    >>> import torch
    >>> prism = PRISM(num_classes=2, embedding_size=2, noise_rate=0.25, threshold="top-r", memory_size=100)
    >>> x = torch.tensor([[1.0, 0.1], [1.0, -0.1], [0.1, 1.0], [-0.1, 1.0]])
    >>> labels = torch.tensor([0, 0, 1, 1])
    >>> result = prism(x, labels)  # the bank is empty: all are kept
    >>> prism.enqueue(x, labels, result.keep)
    >>> result = prism(x, torch.tensor([0, 1, 1, 1]), sample_ids=torch.tensor([70, 71, 72, 73]))
    >>> result.log_p_clean, result.threshold
    (tensor([-0.3437, -1.3792, -0.3437, -0.2901]), tensor(-1.3792))
    >>> result.keep, result.rejected_ids
    (tensor([ True, False,  True,  True]), tensor([71, -1, -1, -1]))
    """

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
        settings = PRISMSettings(
            num_classes,
            embedding_size,
            similarity,
            noise_rate,
            threshold,
            window,
            memory_size,
            vmf_start,
            fixed_threshold,
            num_samples,
            max_copies,
            unseen,
            estimator,
            bias_correction,
            preset,
            memory_dtype,
        )
        self.num_classes = num_classes
        self.embedding_size = embedding_size
        self.similarity = similarity
        self.scores = _make_scores(settings, backend)
        self.threshold = _make_threshold(settings)

    @property
    def bank(self) -> MemoryBank:
        """The memory, for losses that compare with it; RuntimeError with a similarity that has none."""
        if not isinstance(self.scores, MemoryPositive):
            raise RuntimeError(f'similarity="{self.similarity}" has no bank')
        return self.scores.bank

    @property
    def kappa(self) -> Tensor:
        """Concentration of every class, (C,), 0 until vMF-Sim has begun; RuntimeError without ``"vmf"``."""
        if not isinstance(self.scores, VmfSimilarity):
            raise RuntimeError(f'similarity="{self.similarity}" has no kappa')
        return self.scores.vmf.kappa

    @torch.no_grad()
    def forward(
        self, embeddings: Tensor, labels: Tensor, sample_ids: Tensor | None = None, proxies: Tensor | None = None
    ) -> PRISMResult:
        """Judge the batch of a training step: this advances windows, rings and the count of iterations, once a call.

        Parameters
        ----------
        embeddings : Tensor
            (B, D), floating point, any scale; detached.
        labels : Tensor
            (B,), integers in 0 … C−1.
        sample_ids : Tensor, optional
            (B,), integers not below 0; in 0 … num_samples − 1 and required if that is given.
        proxies : Tensor, optional
            (C, D) or (C, H, D), any scale, detached: required with similarity "proxy", and refused otherwise.

        Returns
        -------
        PRISMResult
            ``keep`` (B,) bool; ``log_p_clean`` (B,), 0 for new samples (for the ablations the mean cosine, and 1);
            ``threshold`` on the same scale, (), or (B,) with "per-class" and "otsu", −∞ where nothing is rejected;
            ``rejected_ids`` (B,) int64, the ids of the rejected and −1 behind them, None without ``sample_ids``.

        Raises
        ------
        ValueError, TypeError
            Shapes, types or devices that do not fit, no sample ids or proxies where they are needed, on the CPU NaN or
            inf. Nothing has changed then.
        IndexError
            A label or sample id out of range (on a GPU a device-side assertion).
        """
        X, labels, sample_ids = self._check(embeddings, labels, sample_ids)
        scores = self._score(X, labels, sample_ids, proxies)
        threshold = self.threshold(scores, labels)
        self.scores.advance(labels)
        keep = (scores.values > threshold) | ~scores.known
        return PRISMResult(keep, scores.values, threshold, _rejected(keep, sample_ids))

    @torch.no_grad()
    def log_p_clean(
        self, embeddings: Tensor, labels: Tensor, sample_ids: Tensor | None = None, proxies: Tensor | None = None
    ) -> Tensor:
        """Scores alone, (B,): changes no state. Parameters and errors as in `forward`."""
        X, labels, sample_ids = self._check(embeddings, labels, sample_ids)
        return self._score(X, labels, sample_ids, proxies).values

    @torch.no_grad()
    def enqueue(self, embeddings: Tensor, labels: Tensor, keep: Tensor, sample_ids: Tensor | None = None) -> None:
        """Remember what was kept, after the loss; without effect for similarities that have no bank.

        Parameters
        ----------
        embeddings, labels, sample_ids : Tensor
            As given to `forward`.
        keep : Tensor
            (B,) bool, as it came out. Nothing kept: nothing changes.

        Raises
        ------
        ValueError, TypeError, IndexError
            As `forward`, and for a ``keep`` of another shape or type. Nothing has changed then.
        """
        X, labels, sample_ids = self._check(embeddings, labels, sample_ids)
        if not isinstance(keep, Tensor) or keep.shape != labels.shape or keep.dtype != torch.bool:
            found = f"{tuple(keep.shape)} of {keep.dtype}" if isinstance(keep, Tensor) else type(keep).__name__
            raise ValueError(f"keep must be bool of shape ({len(labels)},), as in result.keep, got {found}")
        self.scores.enqueue(X, labels, keep, sample_ids)

    def extra_repr(self) -> str:
        """Return the settings, for ``repr``."""
        return f"num_classes={self.num_classes}, embedding_size={self.embedding_size}, similarity={self.similarity!r}"

    def _score(self, X: Tensor, labels: Tensor, sample_ids: Tensor | None, proxies: Tensor | None) -> Scores:
        if self.similarity == "proxy":
            self._check_proxies(proxies)
            check_same_device(embeddings=X, proxies=proxies)
        elif proxies is not None:
            raise ValueError(f'proxies are of no use to similarity="{self.similarity}": leave them out')
        # Cosines in bfloat16 would be 2⁻⁹/√D off, and a hundred κ make more of that than classes differ by.
        with torch.autocast(X.device.type, enabled=False):
            return self.scores.score(X, labels, sample_ids, proxies)

    def _check(
        self, embeddings: Tensor, labels: Tensor, sample_ids: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Unit rows in the compute type, int64 labels and ids."""
        check_matrix("embeddings", embeddings, columns=self.embedding_size)
        check_same_device(embeddings=embeddings, state=next(self.buffers(), None))
        labels = check_labels(labels, embeddings)
        check_label_range(labels, self.num_classes)
        check_finite_embeddings(embeddings)
        dtype = torch.promote_types(embeddings.dtype, torch.float32)
        if sample_ids is not None:
            sample_ids = check_sample_ids(sample_ids, len(labels)).to(labels.device, non_blocking=True)
        return unit_rows(embeddings.detach().to(dtype)), labels, sample_ids

    def _check_proxies(self, proxies: object) -> None:
        if proxies is None:
            raise ValueError('proxies are missing, and similarity="proxy" needs them: pass (C, D) or (C, H, D)')
        check_local("proxies", proxies)
        if not isinstance(proxies, Tensor):
            raise TypeError(f"proxies must be a torch.Tensor, not {type(proxies).__name__}")
        shape, expected = tuple(proxies.shape), (self.num_classes, self.embedding_size)
        if len(shape) not in (2, 3) or (shape[0], shape[-1]) != expected or not proxies.is_floating_point():
            raise ValueError(
                f"proxies must be floating point of shape ({expected[0]}, {expected[1]}) or ({expected[0]}, H, "
                f"{expected[1]}), got {shape} of {proxies.dtype}"
            )


def _rejected(keep: Tensor, sample_ids: Tensor | None) -> Tensor | None:
    if sample_ids is None:
        return None
    order = keep.byte().argsort(stable=True)
    return torch.where(keep[order], -1, sample_ids[order])


def _make_scores(settings: PRISMSettings, backend: str | None) -> ProxySimilarity | BatchPositive | MemoryPositive:
    if settings.similarity == "proxy":
        return ProxySimilarity(settings.num_classes, backend)
    if settings.similarity == "batch-positive":
        return BatchPositive()
    assert settings.memory_size is not None
    bank = MemoryBank(
        settings.num_classes,
        settings.embedding_size,
        settings.memory_size,
        settings.memory_dtype,
        settings.num_samples,
    )
    copies = settings.copies_to_find()
    if settings.similarity == "memory-positive":
        return MemoryPositive(bank, copies)
    if settings.vmf_start is None:
        return AverageSimilarity(bank, copies, settings.resolved("unseen"), backend)
    estimator, bias_correction = settings.resolved("estimator"), settings.resolved("bias_correction")
    return VmfSimilarity(bank, copies, settings.vmf_start, estimator, bias_correction, backend)


def _make_threshold(settings: PRISMSettings) -> FixedThreshold | TopR | SmoothTopR | PerClassThreshold:
    logarithmic = settings.similarity not in ABLATIONS
    if settings.fixed_threshold is not None:
        m = settings.fixed_threshold
        return FixedThreshold(m if not logarithmic else math.log(m) if m > 0 else -math.inf)
    share = settings.share_rejected
    if settings.threshold == "top-r":
        return TopR(share)
    if settings.threshold == "smooth-top-r":
        return SmoothTopR(share, settings.window, logarithmic)
    per_class = OtsuCut if settings.threshold == "otsu" else PerClassThreshold
    dtype = torch.promote_types(settings.memory_dtype, torch.float32)
    return per_class(share, settings.window, settings.num_classes, dtype)
