"""The sets of a chunk of anchors in plain PyTorch."""

from torch import Tensor

from robustdml_ops.engine.pairs import PairChunk, PairSets


def members(chunk: PairChunk, sets: PairSets) -> tuple[Tensor, Tensor]:
    """Positives and negatives of each row, (c, m) bool."""
    labels = sets.labels[chunk.first : chunk.last, None]
    same = labels == sets.candidate_labels
    present = (labels >= 0) & (sets.candidate_labels >= 0)
    positive, negative = same & present, present & ~same
    if sets.itself:
        positive.diagonal(chunk.first).fill_(False)
    return positive, negative
