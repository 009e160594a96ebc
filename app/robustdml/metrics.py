"""Metrics of embeddings in arrays of any size."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from robustdml.arrays import Array
from robustdml.errors import UsageError
from robustdml.retrieval import METRICS, Vectors, retrieval_by_query
from robustdml.verification import FALSE_ACCEPTS, verify

Numbers = Array | torch.Tensor | Sequence[int]  # Labels, (N,)


def evaluate_embeddings(
    embeddings: Vectors,
    labels: Numbers,
    *,
    gallery: tuple[Vectors, Numbers] | None = None,
    device: torch.device | str | None = None,
) -> dict[str, Any]:
    """Compute Recall@k, R-precision, MAP@R and TAR at FAR of embeddings, by the cosine.

    Neither all similarities nor all neighbours are ever in memory, so N may be millions.

    Parameters
    ----------
    embeddings, labels : array or Tensor
        (N, D), floating point, any scale; (N,) integers, of which equal ones are of one class.
    gallery : (embeddings, labels), optional
        (M, D) and (M,): what is searched. None: each sample searches all others.
    device : torch.device or str, optional
        Where the similarities are computed. None: where the embeddings are.

    Returns
    -------
    dict
        ``"Recall@1"``, ``"Recall@2"``, ``"Recall@4"``, ``"Recall@8"``, ``"R-precision"`` and ``"MAP@R"``: means over
        the samples that have another one of their class. ``"TAR at FAR"``: for each false accept rate of 1e-1 … 1e-6
        that at least 10 pairs stand for, the share of pairs of one class that are more similar than that share of
        pairs of two classes; of more than 2¹⁴ samples, pairs of two classes are those of 2¹⁴ drawn ones.

    Raises
    ------
    UsageError
        Shapes that do not fit, labels that are no integers, no two samples of one class, NaN or inf.

    Examples
    --------
    >>> import torch
    >>> from robustdml import evaluate_embeddings
    >>> labels = torch.arange(50).repeat(4)
    >>> found = evaluate_embeddings(torch.eye(50)[labels] + 0.01, labels)
    >>> found["Recall@1"], found["TAR at FAR"][1e-3]
    (1.0, 1.0)
    """
    sides = [(embeddings, labels)] if gallery is None else [(embeddings, labels), gallery]
    names = ("embeddings", "labels"), ("gallery[0]", "gallery[1]")
    rows, numbers = zip(*(_checked(*side, *name) for side, name in zip(sides, names, strict=False)), strict=True)
    if len({one.shape[1] for one in rows}) > 1:
        raise UsageError(f"gallery[0] has {rows[1].shape[1]} columns and embeddings {rows[0].shape[1]}: give the same")
    # Classes from 0 on, the same on both sides.
    every = np.unique(np.concatenate(numbers), return_inverse=True)[1].astype(np.int64)
    labelled = list(zip(rows, np.split(every, [len(numbers[0])]), strict=False))
    other = None if gallery is None else labelled[1]
    device = None if device is None else torch.device(device)
    by_query = retrieval_by_query(*labelled[0], other, device)
    if np.isnan(by_query).all():
        raise UsageError("no sample has another one of its class to find: give classes of at least 2 samples")
    found: dict[str, Any] = dict(zip(METRICS.values(), np.nanmean(by_query, axis=0).tolist(), strict=True))
    verified = verify(rows[0].to(device), labelled[0][1], None if other is None else (other[0].to(device), other[1]))
    at = [] if verified is None else verified.at
    tars = {one["far"]: one["tar"] for one in at}
    return {**found, "TAR at FAR": {far: tars[far] for far in FALSE_ACCEPTS if far in tars}}


def _checked(rows: Vectors, labels: Numbers, rows_name: str, labels_name: str) -> tuple[torch.Tensor, Array]:
    """Rows as a tensor, and labels as an array."""
    tensor = rows.detach() if isinstance(rows, torch.Tensor) else torch.from_numpy(np.array(rows))
    numbers = labels.cpu().numpy() if isinstance(labels, torch.Tensor) else np.asarray(labels)
    if tensor.dim() != 2 or not tensor.is_floating_point() or not len(tensor):
        raise UsageError(
            f"{rows_name} must be floating-point numbers (N, D), N ≥ 1, got {tensor.dtype} of {tuple(tensor.shape)}"
        )
    if numbers.shape != (len(tensor),) or not np.issubdtype(numbers.dtype, np.integer):
        raise UsageError(
            f"{labels_name} must be integers of shape ({len(tensor)},), one for each of {rows_name}, got "
            f"{numbers.dtype} of {numbers.shape}"
        )
    return tensor, numbers
