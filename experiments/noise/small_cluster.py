"""Small-cluster noise: similar samples of a class get the same wrong label."""

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import KMeans
from sklearn.preprocessing import normalize

from experiments.noise.checks import check_labels
from robustdml.arrays import Labels
from robustdml.data.dataset import members_of_classes
from robustdml.errors import UsageError
from robustdml.noise import NoisyLabels, round_half_up


def small_cluster(
    labels: Labels,
    rate: float,
    seed: int,
    num_classes: int,
    features: NDArray[np.floating],
    cluster_size: float = 2.0,
) -> NoisyLabels:
    """Dissolve whole classes: cluster their samples, and merge each cluster into a random other class.

    The noise is open-set: no label of a dissolved class remains. All other classes keep their samples.

    References
    ----------
    Liu et al., "Noise-Resistant Deep Metric Learning with Probabilistic Instance Filtering" (PRISM), section IV-A.

    Examples
    --------
    >>> features = np.random.default_rng(0).normal(size=(40, 3))
    >>> noisy, changed = small_cluster(np.repeat(np.arange(4), 10), 0.5, seed=0, num_classes=4, features=features)
    >>> int(changed.sum()), len(np.unique(noisy))
    (20, 2)
    """
    check_labels(labels, rate, num_classes)
    if features.ndim != 2 or len(features) != len(labels):
        raise UsageError(f"features of shape {features.shape}: expected ({len(labels)}, F), a row for each label")
    if not cluster_size >= 1:
        raise UsageError(f"cluster_size={cluster_size}: expected at least 1 sample")
    random = np.random.default_rng(seed)
    noisy, wanted = labels.astype(np.int64), round_half_up(rate * len(labels))
    members = members_of_classes(labels, num_classes)
    order = random.permutation([label for label in range(num_classes) if len(members[label])])
    sizes = np.array([len(members[label]) for label in order])
    num_sources = int(np.searchsorted(np.cumsum(sizes), wanted)) + 1 if wanted else 0
    sources, targets = order[:num_sources], order[num_sources:]
    if wanted and not len(targets):
        raise UsageError(
            f"rate={rate}: {wanted} wrong labels dissolve all {len(order)} classes, and none is left to merge into"
        )
    for source in sources:
        for cluster in _clusters(members[source], features, cluster_size, random):
            taken = cluster[:wanted]
            noisy[taken] = random.choice(targets)
            wanted -= len(taken)
    return noisy, noisy != labels


def _clusters(
    members: NDArray[np.int64], features: NDArray[np.floating], cluster_size: float, random: np.random.Generator
) -> list[NDArray[np.int64]]:
    """Numbers of the samples of each cluster, clusters in random order."""
    unit = normalize(features[members].astype(np.float32))
    count = min(round_half_up(len(members) / cluster_size), len(np.unique(unit, axis=0)))
    of_member = KMeans(max(count, 1), n_init=1, random_state=int(random.integers(2**31))).fit_predict(unit)
    return [members[of_member == cluster] for cluster in random.permutation(max(count, 1))]
