"""The auditor as a scikit-learn estimator, with verdicts and rates of wrong labels."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.stats import binom
from sklearn.base import BaseEstimator
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import validate_data

from robustdml.arrays import Doubles, Floats, Ints, Labels, Mask
from robustdml.audit.features import ALIKE, distinct_rows, duplicate_groups, standard_order
from robustdml.audit.rounds import Judgement, judge, taken, with_checked, with_margins
from robustdml.errors import UsageError, quiet
from robustdml.networks.models import unit_rows
from robustdml_ops.ops import nearest

RIGHT, WRONG, NOT_SURE, NO_CLASS = "right", "wrong", "not sure", "belongs to no class"
# What an audit says of a label.
VERDICTS = (RIGHT, WRONG, NOT_SURE, NO_CLASS)
# A class of fewer samples has no likeness to judge by.
FEWEST_SAMPLES = 3

# Of the normal distribution, for 95 %.
_Z = 1.959964
# Error of the rate per unit of overlap: of nine values the least whose intervals held 95 % of the rates of the choosing
# sets of experiments/bench/audit_sets.py.
_OVERLAP_ERROR = 0.08


def wrong_share(wrong: Floats, explained: Floats, overlap: Floats, labels: Labels, num_classes: int) -> Doubles:
    """Rate of wrong labels of each class with its 95 % interval, (C, 3).

    Probabilities that labels are wrong are `wrong` (N,), and `explained` (E, N) under each explanation. The interval
    covers those of all explanations. `overlap` (N,) widens it: where classes overlap, right samples far in another
    class look like wrong labels under every explanation.
    """
    intervals = np.stack([_interval(one, labels, num_classes) for one in explained])
    counts = np.bincount(labels, minlength=num_classes)
    with np.errstate(invalid="ignore"):
        share = np.bincount(labels, weights=wrong, minlength=num_classes) / counts
        error = _OVERLAP_ERROR * np.bincount(labels, weights=overlap, minlength=num_classes) / counts
        # Outwards to whole samples.
        low = np.floor(np.maximum(intervals[:, :, 0].min(0) - error, 0) * counts) / counts
        high = np.ceil(np.minimum(intervals[:, :, 1].max(0) + error, 1) * counts) / counts
    return np.stack([share, low, high], 1)


def _interval(wrong: Floats, labels: Labels, num_classes: int) -> Doubles:
    """Wilson's 95 % interval of each class, (C, 2); its variance has Σ p(1 − p) added."""
    counts = np.bincount(labels, minlength=num_classes).astype(np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        share = np.bincount(labels, weights=wrong, minlength=num_classes) / counts
        unknown = np.bincount(labels, weights=wrong * (1 - wrong), minlength=num_classes) / counts**2
        shrunk = 1 + _Z**2 / counts
        middle = (share + _Z**2 / (2 * counts)) / shrunk
        half = _Z * np.sqrt(share * (1 - share) / counts + unknown + _Z**2 / (4 * counts**2)) / shrunk
    return np.stack([np.maximum(middle - half, 0), np.minimum(middle + half, 1)], 1)


def _known(checked: ArrayLike | None, count: int) -> Doubles:
    """Checked labels as float64, (N,): 1 for right, 0 for wrong, NaN for unknown; raise if other values are given."""
    try:
        given = np.full(count, np.nan) if checked is None else np.asarray(checked, np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"checked: {error}; expected 1 (right), 0 (wrong) or NaN") from error
    if given.shape != (count,):
        raise ValueError(f"checked must have {count} values, one for each label, got shape {given.shape}")
    other = ~np.isnan(given) & (given != 0) & (given != 1)
    if other.any():
        raise ValueError(f"checked[{other.argmax()}] = {given[other.argmax()]}: expected 1 (right), 0 (wrong) or NaN")
    return given


# A label is called wrong where its sample is clear, and its probability of being right is below MOST_RIGHT, and below
# MOST_EXPLAINED under every explanation. Clear: r / e(u) of `robustdml.audit.clear` is above ALL_BELIEVED, or above
# LEAST_BELIEVED for a rate r halfway between the estimate and the lower end of its interval. A sample may be of no
# class where "no class" has LEAST_STRANGE of what "no class" and the proposal have together. Chosen on the choosing
# sets of experiments/bench/audit_sets.py and diverse_sets.py.
ALL_BELIEVED, LEAST_BELIEVED, MOST_RIGHT, MOST_EXPLAINED, LEAST_STRANGE = 0.9, 0.6, 0.15, 0.8, 0.85
# Nearest samples whose labels test a proposal, and the significance level of that test.
NEAREST, CHANCE = 5, 0.005


def _distinct(features: NDArray[Any], labels: Labels, num_classes: int, learnt: bool) -> Judgement:
    """Judge each distinct row once; the order of rows and the numbers of classes do not matter."""
    firsts, which = distinct_rows(features, labels)
    order = firsts[standard_order(features[firsts])]
    place = np.empty(len(order), dtype=np.int64)
    place[np.searchsorted(firsts, order)] = np.arange(len(order))
    # Classes are numbered by their first samples in that order.
    _, first, number = np.unique(labels[order], return_index=True, return_inverse=True)
    used = np.unique(labels)
    rank = np.argsort(np.argsort(first))
    names = torch.from_numpy(np.append(used[np.argsort(first)], num_classes))
    judged = judge(features[order], torch.from_numpy(rank[number]), num_classes, learnt)
    judged = replace(judged, proposed=names[judged.proposed], nearest=names[judged.nearest])
    return taken(judged, torch.from_numpy(place[which]))


def equal_groups(features: NDArray[Any]) -> Ints:
    """Number the sets of equal rows, (N,)."""
    groups: Ints = np.unique(np.asarray(features), axis=0, return_inverse=True)[1].reshape(-1)
    return groups


def _one_right(right: Doubles, groups: Ints, labels: Labels, known: Mask) -> Doubles:
    """Lower the probabilities of equal rows whose labels differ, as at most one of these labels is right.

    Each label has its share of the sum of the probabilities, times the greatest of them. Rows with a checked label
    stay as they are.
    """
    out: Doubles = right.copy()
    order = np.argsort(groups, kind="stable")
    for rows in np.split(order, np.flatnonzero(np.diff(groups[order])) + 1):
        if len(rows) > 1 and len(set(labels[rows].tolist())) > 1 and not known[rows].any():
            total = sum(right[rows[labels[rows] == label]].sum() for label in set(labels[rows].tolist()))
            for label in set(labels[rows].tolist()):
                same = rows[labels[rows] == label]
                out[same] = np.minimum(right[same], right[same].sum() / max(total, 1e-12) * right[rows].max())
    return out


def _better_than_chance(features: NDArray[Any], rows: Ints, proposed: Ints, labels: Labels) -> Mask:
    """Test for each row (n,) whether its neighbours have the proposed label (n,) more often than chance explains."""
    count = min(NEAREST, len(labels) - 1)
    if not len(rows):
        return np.zeros(0, dtype=bool)
    unit = unit_rows(features)
    found = nearest(unit[rows], unit, count + 1).indices.numpy()
    # A sample is no neighbour of its own, wherever copies of it put it.
    agreeing = ((labels[found] == proposed[:, None]) & (found != rows[:, None])).sum(1)
    share = np.bincount(labels)[proposed] / len(labels)
    better: Mask = binom.sf(agreeing - 1, count, share) < CHANCE
    return better


def _bounded(share: Doubles, bounds: tuple[float, float, float]) -> Doubles:
    """Clip the rate of wrong labels and its interval, (3,), to the bounds that the clear samples give."""
    rate, low, high = share.tolist()
    least, estimate, most = bounds
    if low > estimate:
        low = min(low, least)
    if rate > most:
        rate = most
    # Half of the way: the bound supposes that wrong labels come as often among clear samples as elsewhere.
    high = min(high, max(most, (rate + high) / 2)) if share[0] <= most else most
    return np.array([max(rate, min(low, rate)), min(low, rate), high])


class LabelAuditor(BaseEstimator):  # type: ignore[misc]
    """Find wrong labels among samples with features.

    Each sample is scored by the other samples of the classes. Neither the rate of wrong labels is needed nor any label
    known to be right.

    Parameters
    ----------
    duplicate_similarity : float
        Cosine from which on two samples are near duplicates, in (0, 1].
    features_learnt : bool
        Whether the features were learnt from these labels, as the embeddings of a network trained on them. Near such
        a sample of a wrong label lie others of that label, so that class densities judge alone.

    Attributes
    ----------
    classes_ : ndarray
        The labels that there are, (C,).
    label_quality_ : ndarray
        Probability that each label is right, float64, (N,).
    issues_ : ndarray
        Labels that are more likely wrong than right, bool, (N,).
    proposed_labels_ : ndarray
        The likeliest class of each sample, (N,); the label itself if that is the likeliest.
    proposal_probability_ : ndarray
        Probability of that, float64, (N,).
    no_class_probability_ : ndarray
        Probability that the sample is of none of the classes, float64, (N,).
    verdicts_ : ndarray
        ``right``, ``wrong``, ``not sure`` or ``belongs to no class``, (N,). A label is right where all explanations
        agree that chance does not exclude, and wrong where none of them contradicts strongly. A sample is of no class
        where neighbours do not speak for the proposal either. A class of fewer than three samples is not judged.
    duplicate_groups_ : ndarray
        Number of the group of near duplicates, −1 where there is none, int64, (N,).
    wrong_share_ : ndarray
        Estimated rate of wrong labels, and an interval that covers the 95 % intervals of these explanations, wider
        where classes overlap, (3,).
    class_wrong_share_ : ndarray
        The same for each class, (C, 3).
    n_features_in_ : int
        F.

    Raises
    ------
    ValueError
        From `fit`: features that are not finite, labels that are no classes, one class alone, other numbers in
        `checked`, infinite `margins`.

    Notes
    -----
    A class most of whose labels are wrong in the same way looks like a right one, and two names for one thing look like
    labels that are mixed up at random.

    Rows are scaled to length 1. The result is deterministic. Memory: N×min(F, 256) floats beside the features, and some
    2 KB a sample. Up to 100,000 samples their neighbours are asked, which takes N² cosines. Where samples × classes
    exceed 5·10⁸, each sample is compared with its 32 nearest classes, and 256 drawn ones stand for all others.

    Source of the method: `robustdml.audit.rounds`.

    Examples
    --------
    >>> import numpy as np
    >>> random = np.random.default_rng(0)
    >>> y = np.repeat(["cat", "dog", "eel"], 30)
    >>> X = np.eye(3)[np.unique(y, return_inverse=True)[1]] + 0.1 * random.normal(size=(90, 3))
    >>> y[7] = "eel"
    >>> auditor = LabelAuditor().fit(X, y)
    >>> np.flatnonzero(auditor.issues_), auditor.proposed_labels_[7]
    (array([7]), np.str_('cat'))
    """

    def __init__(self, duplicate_similarity: float = ALIKE, features_learnt: bool = False) -> None:
        self.duplicate_similarity = duplicate_similarity
        self.features_learnt = features_learnt

    def fit(
        self, X: ArrayLike, y: ArrayLike, checked: ArrayLike | None = None, margins: ArrayLike | None = None
    ) -> "LabelAuditor":
        """Judge every label, and return itself.

        Parameters
        ----------
        X : array-like
            Features, (N, F).
        y : array-like
            Labels, (N,), of any kind that can be sorted.
        checked : array-like, optional
            Of labels that a person has checked, such as suspects of an earlier audit, (N,): 1 for right ones, 0 for
            wrong ones, NaN for the others. They are believed, and all probabilities and the share learn from them.
        margins : array-like, optional
            Margins of the labels while a network was trained on them, averaged over its epochs, (N,): large ones speak
            for a label as far as they agree with what the features say. NaN says nothing.
        """
        if not 0 < self.duplicate_similarity <= 1:
            raise ValueError(f"duplicate_similarity={self.duplicate_similarity}: expected a cosine above 0, up to 1")
        with quiet("sklearn"):  # It warns of many classes, and of features whose sum is infinite.
            features, given = validate_data(self, X, y, dtype="numeric", ensure_min_samples=2, ensure_min_features=1)
            check_classification_targets(given)
        self.classes_, labels = np.unique(given, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"all labels are of 1 class, {self.classes_[0]!r}: labels are judged beside others")
        if (features == features[0]).all():
            raise UsageError("all rows of the features are equal: nothing tells which label is right")
        of_labels = np.full(len(labels), np.nan) if margins is None else np.asarray(margins, np.float64)
        if of_labels.shape != (len(labels),):
            raise ValueError(f"margins must have {len(labels)} values, one for each label, got shape {of_labels.shape}")
        if np.isinf(of_labels).any():
            raise ValueError(f"margins[{np.isinf(of_labels).argmax()}] is infinite: expected numbers, or NaN for none")
        self._judge(features, labels.astype(np.int64), _known(checked, len(labels)), of_labels)
        return self

    @torch.no_grad()
    def _judge(self, features: NDArray[Any], labels: Labels, checked: Doubles, margins: Doubles) -> None:
        num_classes = len(self.classes_)
        judged = _distinct(features, labels, num_classes, self.features_learnt)
        judged = with_checked(with_margins(judged, torch.from_numpy(margins)), torch.from_numpy(checked))
        groups = duplicate_groups(features, self.duplicate_similarity, labels, judged.nearest.numpy())
        self.duplicate_groups_ = groups
        right, proposed = judged.right.double().numpy(), judged.proposed_right.double().numpy()
        right = _one_right(right, equal_groups(features), labels, ~np.isnan(checked))
        self.label_quality_, self.issues_ = right, right < 0.5
        self.proposed_labels_ = self.classes_[np.where(right >= proposed, labels, judged.proposed.numpy())]
        self.proposal_probability_ = np.maximum(right, proposed)
        self.no_class_probability_ = judged.no_class.double().numpy()
        qualities, overlap = judged.qualities.double().numpy(), judged.overlap.double().numpy()
        share = wrong_share(1 - right, 1 - qualities, overlap, np.zeros_like(labels), 1)[0]
        self.wrong_share_ = _bounded(share, judged.bounds) if np.isnan(checked).all() else share
        self.class_wrong_share_ = wrong_share(1 - right, 1 - qualities, overlap, labels, num_classes)
        lowest, highest = qualities.min(0), qualities.max(0)
        sizes = np.bincount(labels, minlength=num_classes)[labels]
        out = self.verdicts_ = np.full(len(labels), NOT_SURE, dtype=f"<U{max(map(len, VERDICTS))}")
        out[(lowest >= 0.5) & (right > 0.5)] = RIGHT
        explained, none = highest < MOST_EXPLAINED, self.no_class_probability_
        if judged.disagreement is None:
            wrong = (highest < 0.5) & (right < 0.5)
        else:
            # Where many right labels disagree with the features, nobody can tell which of them are wrong.
            rate, low, _ = self.wrong_share_
            most = max(rate / ALL_BELIEVED, (rate + low) / 2 / LEAST_BELIEVED)
            clear = judged.disagreement.numpy() < most
            wrong = clear & explained & (right < MOST_RIGHT) | (~np.isnan(checked) & (right < 0.5))
        out[wrong] = WRONG
        # The features name no class clearly, and neighbours do not speak for the proposal.
        far = none > LEAST_STRANGE * (none + proposed)
        rows = np.flatnonzero(far & (wrong | explained & (right < 0.5)))
        out[rows[~_better_than_chance(features, rows, judged.proposed.numpy()[rows], labels)]] = NO_CLASS
        out[(sizes < FEWEST_SAMPLES) & np.isnan(checked)] = NOT_SURE
        self.small_classes_ = np.flatnonzero(np.bincount(labels, minlength=num_classes) < FEWEST_SAMPLES)

    def __sklearn_tags__(self) -> Any:
        """Tell scikit-learn that labels are needed."""
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        return tags
