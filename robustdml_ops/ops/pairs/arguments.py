"""The sets and the problem of checked arguments."""

import torch
from torch import Tensor

from robustdml_ops.engine.labels import check_distinct, check_labels
from robustdml_ops.engine.validation import INTEGERS, check_matrix, check_same_device, check_tensor, check_vector
from robustdml_ops.ops.pairs.autograd import check_weights, pair_dtype
from robustdml_ops.ops.pairs.backends import PairOptions, PairProblem
from robustdml_ops.ops.pairs.sets import PairSets


def pair_sets(
    embeddings: Tensor,
    labels: Tensor,
    candidates: Tensor | None,
    candidate_labels: Tensor | None,
    anchors_first: bool = False,
    ids: tuple[Tensor | None, Tensor | None] = (None, None),
    ids_keep_positives: bool = False,
) -> PairSets:
    """Sets of checked matrices and labels; ``ids`` of both sides, see :func:`check_ids`."""
    check_matrix("embeddings", embeddings)
    # Asked before labels of another type or device become new tensors.
    same = candidates is None or candidate_labels is labels
    labels, n = check_labels(labels, embeddings, several=True), len(embeddings)
    if candidates is None:
        if candidate_labels is not None:
            raise ValueError("candidate_labels without candidates: give both, or neither, for the batch itself")
        if anchors_first:
            raise ValueError("anchors_first without candidates, which are the anchors then: leave it out")
    else:
        check_matrix("candidates", candidates, columns=embeddings.shape[1])
        check_same_device(embeddings=embeddings, candidates=candidates)
        candidate_labels = check_labels(candidate_labels, candidates, "candidate_labels", "candidates", several=True)
        if anchors_first and len(candidates) < n:
            raise ValueError(
                f"anchors_first says that the first candidates are the {n} anchors, and there are "
                f"{len(candidates)} candidates"
            )
    for name, given in (("labels", labels), ("candidate_labels", candidate_labels)):
        if given is not None and given.dim() == 2:
            check_distinct(given, name)
    own_ids, candidate_ids = ids
    if candidates is None and candidate_ids is not None:
        raise ValueError("candidate_ids without candidates: give both, or neither, for the batch itself")
    if candidates is not None and (own_ids is None) != (candidate_ids is None):
        raise ValueError("sample_ids and candidate_ids are compared with each other: give both, or neither")
    checked = (
        None if own_ids is None else check_ids("sample_ids", own_ids, embeddings, "embeddings"),
        None if candidate_ids is None else check_ids("candidate_ids", candidate_ids, candidates, "candidates"),
    )
    return PairSets.of(labels, None if same else candidate_labels, anchors_first, checked, ids_keep_positives)


def check_ids(name: str, ids: object, rows: Tensor | None, of: str) -> Tensor:
    """Ids (n,), or (n, I) in I columns, as int64 (n, I) on the device of the rows (n, D); negative ones are none."""
    found = check_tensor(name, ids)
    assert rows is not None
    if found.dtype not in INTEGERS:
        raise ValueError(f"{name} must be integers, got {found.dtype}: number the samples, or hash what they hold")
    if found.dim() not in (1, 2) or len(found) != len(rows):
        raise ValueError(
            f"{name} must have shape ({len(rows)},), one for each row of {of}, got {tuple(found.shape)}; a negative "
            "number stands for none"
        )
    found = found.to(rows.device, torch.int64, non_blocking=True)
    return found[:, None] if found.dim() == 1 else found


def pair_problem(
    options: PairOptions,
    sets: PairSets,
    embeddings: Tensor,
    candidates: Tensor | None,
    weights: Tensor | None,
    hardest: Tensor | None,
) -> PairProblem:
    """The problem with checked weights of the candidates; values of the matrices are checked in the sweep."""
    if weights is not None:
        check_vector("candidate_weights", weights, len(sets.candidate_labels))
        check_same_device(embeddings=embeddings, candidate_weights=weights)
        if weights.requires_grad:
            raise ValueError("candidate_weights are constants of this op: pass candidate_weights.detach()")
        weights = weights.to(pair_dtype(embeddings, candidates)).contiguous()
        check_weights(candidate_weights=weights)
    return PairProblem(options, sets, weights, hardest=hardest)
