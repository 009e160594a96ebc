"""Correction of labels in training, an outlook of Liu et al. (section VII); the rule is an extension."""

from torch import Tensor


def corrected_labels(
    similarity: Tensor, labels: Tensor, keep: Tensor, confidence: float, before: list[Tensor]
) -> tuple[Tensor, Tensor]:
    """Labels and samples to train on.

    A rejected sample gets the label k* = argmax_k T(x, k), if softmax_k T(x, k)[k*] is at least the confidence and the
    earlier judgements proposed k*, too.

    Parameters
    ----------
    similarity : Tensor, (B, C)
        T; −∞ marks a class that is not in the bank.
    labels : Tensor, (B,)
        The given labels.
    keep : Tensor, (B,), bool
        The filter's verdict.
    confidence : float
        In [0, 1].
    before : list of Tensor, (B,)
        k* of the earlier judgements of the same samples.

    Returns
    -------
    labels : Tensor, (B,)
        To train with.
    keep : Tensor, (B,), bool
        Samples to train on.

    Examples
    --------
    >>> import torch
    >>> similarity = torch.tensor([[9.0, 0.0], [0.5, 0.0], [9.0, 0.0]])
    >>> rejected = torch.zeros(3, dtype=torch.bool)
    >>> corrected_labels(similarity, torch.tensor([1, 1, 0]), rejected, 0.9, [torch.tensor([0, 0, 0])])
    (tensor([0, 1, 0]), tensor([ True, False, False]))
    """
    labels, keep = labels.clone(), keep.clone()
    for i, row in enumerate(similarity):
        proposed = int(row.argmax())
        sure = float(row.softmax(0)[proposed]) >= confidence and all(int(b[i]) == proposed for b in before)
        if not keep[i] and sure and proposed != labels[i]:
            labels[i], keep[i] = proposed, True
    return labels, keep
