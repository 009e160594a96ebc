"""The papers, equation by equation: dense, in any dtype, differentiated by autograd alone, written to be read.

One file per paper, equations numbered as in the paper; ``docs/equations.md`` lists them in one notation, with errata.
These functions judge the fused operations and therefore share no code with them. They keep several (C, B) matrices, so
they are for small cases.
"""

from .adaptive_proxy_anchor import adaptive_proxy_anchor_loss
from .anchor import cosine_similarity, log_one_plus_sum_exp, own_class_limits
from .bspml import (
    average_weights,
    self_paced_gradient,
    self_paced_objective,
    self_paced_terms,
    weighted_batch_loss,
)
from .class_lse import class_log_sum_exp, pooled_similarity, soft_cross_entropy
from .contrastive import contrastive_loss
from .contrastive_softmax import info_nce_loss, nt_xent_loss, sigmoid_loss, supcon_loss
from .margin_softmax import adaface_loss, angular_margin, arcface_loss, cosface_loss
from .multi_similarity import informative_pairs, multi_similarity_loss
from .normalized_softmax import normalized_softmax_loss
from .observation import hardest_pairs, observed_classes
from .own_class import own_class_p_clean
from .prism_losses import soft_triple_loss, soft_triple_regularizer
from .procsim import (
    confidence,
    lambert_w,
    language_guidance_losses,
    otsu_threshold,
    procsim_loss,
    proxy_nca_losses,
    superloss,
)
from .proxy_anchor import proxy_anchor_loss
from .reduction import mean_over_samples
from .row_wise_adagrad import row_wise_adagrad
from .sampled_negatives import sampled_cross_entropy, sampled_proxy_anchor_loss
from .smooth_proxy_anchor import (
    confidence_head,
    smooth_proxy_anchor_loss,
    smooth_similarity_gradient,
    smooth_weights,
)
from .vmf import (
    vmf_concentration,
    vmf_log_density,
    vmf_log_normalizer,
    vmf_log_posterior,
    vmf_mean_direction,
    vmf_mean_resultant_length,
)

__all__ = [
    "adaface_loss",
    "adaptive_proxy_anchor_loss",
    "angular_margin",
    "arcface_loss",
    "average_weights",
    "class_log_sum_exp",
    "confidence",
    "confidence_head",
    "contrastive_loss",
    "cosface_loss",
    "cosine_similarity",
    "hardest_pairs",
    "info_nce_loss",
    "informative_pairs",
    "lambert_w",
    "language_guidance_losses",
    "log_one_plus_sum_exp",
    "mean_over_samples",
    "multi_similarity_loss",
    "normalized_softmax_loss",
    "nt_xent_loss",
    "observed_classes",
    "otsu_threshold",
    "own_class_limits",
    "own_class_p_clean",
    "pooled_similarity",
    "procsim_loss",
    "proxy_anchor_loss",
    "proxy_nca_losses",
    "row_wise_adagrad",
    "sampled_cross_entropy",
    "sampled_proxy_anchor_loss",
    "self_paced_gradient",
    "self_paced_objective",
    "self_paced_terms",
    "sigmoid_loss",
    "smooth_proxy_anchor_loss",
    "smooth_similarity_gradient",
    "smooth_weights",
    "soft_cross_entropy",
    "soft_triple_loss",
    "soft_triple_regularizer",
    "supcon_loss",
    "superloss",
    "vmf_concentration",
    "vmf_log_density",
    "vmf_log_normalizer",
    "vmf_log_posterior",
    "vmf_mean_direction",
    "vmf_mean_resultant_length",
    "weighted_batch_loss",
]
