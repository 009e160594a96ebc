"""Labels put right in training, the outlook of Liu et al., section VII; the rule itself is an extension."""

from torch import Tensor


def corrected_labels(
    similarity: Tensor, labels: Tensor, keep: Tensor, confidence: float, before: list[Tensor]
) -> tuple[Tensor, Tensor]:
    """Correction of labels, the outlook of section VII; the rule is an extension.

    A rejected sample takes part under k* = argmax_k T(x, k), if its softmax is at least the confidence and k* was
    proposed in each of the judgements before, too.

    Parameters
    ----------
    similarity : Tensor, (B, C)
        T; −∞ marks a class that is not in the bank.
    labels : Tensor, (B,)
        As they were given.
    keep : Tensor, (B,), bool
        What the filter kept.
    confidence : float
        In [0, 1].
    before : list of Tensor, (B,)
        k* of the earlier judgements of the same samples that count.

    Returns
    -------
    labels : Tensor, (B,)
        To train with.
    keep : Tensor, (B,), bool
        What takes part.

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
