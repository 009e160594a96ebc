"""Algorithm 3 of self-paced metric learning in the native module (``csrc/cpu/self_paced.cpp``)."""

from torch import Tensor

from robustdml_ops.engine.native import module
from robustdml_ops.engine.self_paced import SelfPacedSweep, SelfPacedTerms


def self_paced_sweep(terms: SelfPacedTerms, weights: Tensor, settings: SelfPacedSweep) -> None:
    """Descend from ``weights`` (N,), sorted as the terms, in place."""
    getattr(module.library, f"self_paced_sweep_{module.SUFFIX[weights.dtype]}")(
        weights=weights.data_ptr(),
        positive=terms.positive.data_ptr(),
        negative=terms.negative.data_ptr(),
        classes=terms.classes.data_ptr(),
        starts=terms.starts.data_ptr(),
        rates=settings.rates.data_ptr(),
        N=len(weights),
        C=len(terms.names),
        lam=settings.lam,
        mu=settings.mu,
        decay=settings.decay,
        classes_per_step=settings.classes_per_step,
        samples_per_class=settings.samples_per_class,
        seed=settings.seed,
        steps=settings.steps,
    )
