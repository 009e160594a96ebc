"""Algorithm 3 of self-paced metric learning in the native module (``csrc/self_paced/cpu.cpp``)."""

from torch import Tensor

from robustdml_ops.backends import native_module as module
from robustdml_ops.ops.self_paced.eager import EagerSelfPaced
from robustdml_ops.ops.self_paced.problem import CoordinateDescent, SelfPacedTerms


class NativeSelfPaced(EagerSelfPaced):
    """On the CPU."""

    def coordinate_descent(self, terms: SelfPacedTerms, weights: Tensor, settings: CoordinateDescent) -> None:
        getattr(module.library, f"self_paced_sweep_{module.SUFFIX[weights.dtype]}")(
            weights=weights.data_ptr(),
            positive=terms.positive.data_ptr(),
            negative=terms.negative.data_ptr(),
            classes=terms.classes.data_ptr(),
            starts=terms.starts.data_ptr(),
            rates=settings.rates.data_ptr(),
            N=len(weights),
            C=len(terms.names),
            **{name: value for name, value in vars(settings).items() if name != "rates"},
        )
