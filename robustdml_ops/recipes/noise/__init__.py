"""Wrong labels made on purpose: pure functions of labels, rate and seed that also return what they changed.

A noise is asked for by a text such as ``symmetric:0.5``: a key of `NOISES`, and the share of the samples that get a
wrong label.
"""

from robustdml_ops.recipes.noise.class_conditional import class_conditional
from robustdml_ops.recipes.noise.long_tailed import long_tailed
from robustdml_ops.recipes.noise.registry import NOISES, NoiseSources, apply_noise, noise_rate, parse_noise
from robustdml_ops.recipes.noise.semantic import semantic
from robustdml_ops.recipes.noise.small_cluster import small_cluster
from robustdml_ops.recipes.noise.symmetric import symmetric

__all__ = [
    "NOISES",
    "NoiseSources",
    "apply_noise",
    "class_conditional",
    "long_tailed",
    "noise_rate",
    "parse_noise",
    "semantic",
    "small_cluster",
    "symmetric",
]
