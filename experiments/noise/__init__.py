"""Noise models beyond the symmetric one, by name."""

from experiments.noise.class_conditional import class_conditional
from experiments.noise.long_tailed import long_tailed
from experiments.noise.semantic import semantic
from experiments.noise.small_cluster import small_cluster
from robustdml.noise import NOISES

NOISES |= {
    "small-cluster": lambda labels, rate, seed, classes, sources: small_cluster(
        labels, rate, seed, classes, sources.features()
    ),
    "semantic": lambda labels, rate, seed, _, sources: semantic(labels, rate, seed, sources.tree()),
    "long-tailed": lambda labels, rate, seed, classes, _: long_tailed(labels, rate, seed, classes),
    "class-conditional": lambda labels, rate, seed, classes, sources: class_conditional(
        labels, rate, seed, classes, sources.features()
    ),
}
