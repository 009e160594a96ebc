"""Classes that may be one, and classes that may be two, by how their samples mix among their neighbours.

Every sample of class i asks its nearest neighbours for their classes. With n_ij answers j from the N_i samples of i,

    r_ij = n_ij / (N_i N_j),    r_ii = n_ii / (N_i (N_i − 1)),    mixing(i, j) = sqrt(r_ij r_ji / (r_ii r_jj)).

It is about 1 for two halves of a class that were drawn at random, and 0 where none has a neighbour of the other. Two
classes that mix may be one, unless a classifier tells them apart by features that have not learnt from the labels:
letters that look alike mix in learnt embeddings, and differ in a stroke.

Few samples mix by chance. So the mixing counts less its error, where a sample that asks is one observation, which its
answers share:

    error of log mixing = ½ sqrt(1/m_ij + 1/m_ji + 1/m_ii + 1/m_jj),    m_ij = n_ij / (answers of a sample of class i).

A class is cut in two by 2-means, without the samples that lie alone, whose labels may be wrong; where the halves hardly
mix, and are further apart than those of other classes, it may be two.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor

from robustdml.arrays import Array, Ints, Labels, Rows, evenly
from robustdml.audit.experts import FOLDS, regress
from robustdml.data.dataset import members_of_classes
from robustdml.networks.models import unit_rows
from robustdml_ops.ops import nearest

# Neighbours that a sample asks; in a small class a quarter more than its size: two halves of one class, which training
# has drawn apart, meet there.
NEIGHBOURS = 40
# Two classes may be one from this mixing on, less CHANCE standard errors of its logarithm.
ONE, CHANCE = 0.3, 1.64
# A classifier tells two classes apart if its area under the ROC curve is this, less three standard errors.
TOLD_APART = 0.55
# Pairs that it is asked about, samples of a class that it sees, and the mean length of their centred rows.
MOST_PAIRS, MOST_SEEN, LENGTH = 1000, 500, 10.0
# A class may be two if its halves mix at most TWO, and 1 minus the cosine of their means is APART times the median.
TWO, APART = 0.1, 2.5
# A pair mixes more than each of the two with all others: features that tell nothing apart say nothing.
MORE = 5
# Smaller classes are not cut, and no half is a smaller share of its class.
SMALLEST, LEAST_SHARE = 16, 0.2
# A sample lies alone where it is less like its class than the median by so many median deviations.
ALONE = 4
# Cosines that are taken at most: of more than 100,000 samples only some ask.
MOST_COSINES = 10**10


@dataclass(frozen=True)
class ClassDoubts:
    """Classes in doubt, the clearest first."""

    one: list[tuple[int, int, float]]  # Two classes, and how much they mix at least
    two: list[tuple[int, float]]  # A class, and how much its halves mix
    halves: Ints  # Half of each sample in a class of `two`, 1 or 2, int64, (N,); 0 elsewhere


@torch.no_grad()
def doubt_classes(features: Array, labels: Labels, num_classes: int, untouched: Array) -> ClassDoubts:
    """Find the classes in doubt by features (N, F), labels (N,), and features that know no label, (N, G)."""
    X, members = unit_rows(features), members_of_classes(labels, num_classes)
    pairs = sorted((pair for pair in _mixing(X, labels, num_classes) if pair[2] >= ONE), key=lambda pair: -pair[2])
    one = [pair for pair in pairs[:MOST_PAIRS] if not _told_apart(untouched, members[pair[0]], members[pair[1]])]
    two, halves = [], np.zeros(len(X), dtype=np.int64)
    large = [rows for rows in members if len(rows) >= SMALLEST]
    cuts = [_cut(X[rows]) for rows in large]
    usual = float(np.median([apart for *_, apart in cuts] or [0.0]))
    for rows, (second, mixing, apart) in zip(large, cuts, strict=True):
        if mixing <= TWO and apart >= APART * usual:
            two.append((int(labels[rows[0]]), mixing))
            halves[rows] = 1 + second.numpy()
    return ClassDoubts(one, sorted(two, key=lambda pair: pair[1]), halves)


def _mixing(X: Tensor, labels: Labels, num_classes: int) -> list[tuple[int, int, float]]:
    """Pairs of classes that have neighbours in each other, and how much they mix at least."""
    asking = evenly(len(X), max(MOST_COSINES // len(X), 1))
    found = nearest(X[asking], X, min(NEIGHBOURS + 1, len(X))).indices.numpy()
    sizes, own = np.bincount(labels, minlength=num_classes), labels[asking]
    asked = np.arange(found.shape[1]) <= np.maximum(5 * sizes[own] // 4, 2)[:, None]
    # A sample is no neighbour of its own.
    asked &= found != asking[:, None]
    pairs, counts = np.unique((own[:, None] * num_classes + labels[found])[asked], return_counts=True)
    i, j = pairs // num_classes, pairs % num_classes
    answers = dict(zip(zip(i.tolist(), j.tolist(), strict=True), counts.tolist(), strict=True))
    given, asking_of = np.bincount(i, weights=counts, minlength=num_classes), np.bincount(own, minlength=num_classes)

    def rate(i: int, j: int) -> float:
        return float(answers.get((i, j), 0) / (sizes[i] * max(sizes[j] - (i == j), 1)))

    def of_others(i: int, j: int) -> float:
        left = given[i] - answers.get((i, i), 0) - answers.get((i, j), 0)
        return float(left / (sizes[i] * max(len(X) - sizes[i] - sizes[j], 1)))

    out = []
    for i, j in answers:
        there, back, within = rate(i, j), rate(j, i), rate(i, i) * rate(j, j)
        if i < j and within and there > MORE * of_others(i, j) and back > MORE * of_others(j, i):
            few = sum(given[k] / (asking_of[k] * answers[k, other]) for k, other in ((i, j), (j, i), (i, i), (j, j)))
            out.append((i, j, float(np.sqrt(there * back / within) * np.exp(-CHANCE / 2 * np.sqrt(few)))))
    return out


def _told_apart(features: Array, first: Rows, second: Rows) -> bool:
    """Whether a logistic regression, each sample left out of its training, tells two classes apart."""
    some = [rows[:: -(-len(rows) // MOST_SEEN)] for rows in (first, second)]
    X = unit_rows(features, np.concatenate(some))
    X = X - X.mean(0)
    X *= LENGTH / X.norm(dim=1).mean().clamp(min=1e-6)
    classes = torch.arange(len(X)) >= len(some[0])
    logits, _ = regress(X, classes.long()[:, None], torch.ones(len(X), 1), torch.arange(len(X)) % FOLDS, 2, None)
    error = math.sqrt((len(X) + 1) / (12 * len(some[0]) * len(some[1])))
    return bool(roc_auc_score(classes, logits[:, 1] - logits[:, 0]) - 3 * error >= TOLD_APART)


def _cut(X: Tensor) -> tuple[Tensor, float, float]:
    """The samples of the second half, bool, (n,); how much the halves mix, and how far apart their means are."""
    like = (X @ X.T).fill_diagonal_(-2)
    least = like.topk(_asked(len(X)), 1).values[:, -1]
    members = least >= least.median() - ALONE * (least - least.median()).abs().median()
    means = _two_means(X[members])
    second = torch.cdist(X, means).argmin(1).bool()
    like, inner = like[members][:, members], second[members]
    share, apart = float(inner.float().mean()), 1 - float(torch.cosine_similarity(means[0], means[1], dim=0))
    if not LEAST_SHARE <= share <= 1 - LEAST_SHARE:
        return second, 1.0, apart
    answers = inner[like.topk(_asked(len(inner)), 1).indices]
    return second, float((answers != inner[:, None]).float().mean()) / (2 * share * (1 - share)), apart


def _asked(size: int) -> int:
    """Neighbours that a sample asks within its class: fewer than half of it."""
    return max(min(10, size // 4), 1)


def _two_means(X: Tensor) -> Tensor:
    """2-means, (2, F), from the two sides of the longest axis."""
    centred = X - X.mean(0)
    second = centred @ torch.linalg.svd(centred, full_matrices=False).Vh[0] > 0
    means = X[:2]
    for _ in range(20):
        if second.all() or not second.any():
            break
        means = torch.stack([X[~second].mean(0), X[second].mean(0)])
        second = torch.cdist(X, means).argmin(1).bool()
    return means
