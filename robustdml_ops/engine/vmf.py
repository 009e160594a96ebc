"""The special functions of the von Mises–Fisher distribution: what depends on the order alone, and who computes them.

With order v = D/2 − 1, r = √(v² + κ²) and q = (v/r)² the backends evaluate, elementwise in κ,

==================== ============================================================
``log_0f1``          g = log ₀F₁(; v+1; κ²/4) = log C_D(0) − log C_D(κ)
``peak``             h = κ − g
``log_i``            log I_v(κ), in float64 alone: it crosses zero
``ratio``            A = I_{v+1}(κ)/I_v(κ) = g′
``ratio_derivative`` A′
==================== ============================================================

below ``VmfOrder.series_below`` by the power series of ₀F₁, from there on by the logarithm of Debye's series,
Σ_k c_k(q)/r^k. ``docs/vmf.md`` derives both.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from types import ModuleType

import torch
from torch import Tensor

from robustdml_ops.engine import (
    dispatch,
    epilogue_eager,
    epilogue_native,
    epilogue_triton,
    vmf_eager,
    vmf_native,
    vmf_triton,
)
from robustdml_ops.engine.vmf_order import vmf_order
