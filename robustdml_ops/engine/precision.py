"""The types in which a sweep sums and multiplies."""

import torch
from torch import Tensor

from robustdml_ops.engine.older_torch import float32_setting


def compute_dtype(embeddings: Tensor, proxies: Tensor) -> torch.dtype:
    """float64 where either input is, else float32: bfloat16 cosines would cost 2⁻⁹·α in the exponent."""
    return torch.float64 if torch.float64 in (embeddings.dtype, proxies.dtype) else torch.float32


def operand_dtype(compute: torch.dtype, *matrices: Tensor) -> torch.dtype:
    """Type of the products' operands: bfloat16 where a GPU is given half precision alone, else ``compute``.

    float16, too, becomes bfloat16: gradients of similarities are of size α/C, with 10⁶ classes below float16's range.
    """
    return _operand_dtype(compute, matrices, all(m.dtype in (torch.bfloat16, torch.float16) for m in matrices))


def autocast_operand_dtype(compute: torch.dtype, *matrices: Tensor) -> torch.dtype:
    """As :func:`operand_dtype`, and bfloat16 under autocast; decided in forward, as backward runs outside autocast."""
    # There is no autocast of the meta device.
    if matrices[0].device.type != "meta" and torch.is_autocast_enabled(matrices[0].device.type):
        return _operand_dtype(compute, matrices, True)
    return operand_dtype(compute, *matrices)


def _operand_dtype(compute: torch.dtype, matrices: tuple[Tensor, ...], half: bool) -> torch.dtype:
    narrow = half and compute == torch.float32 and multiplies_bfloat16(matrices[0].device)
    return torch.bfloat16 if narrow else compute


def multiplies_bfloat16(device: torch.device) -> bool:
    """Whether bfloat16 operands pay there: on CUDA devices whose tensor cores take them."""
    return device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)


def exact_float32_products(device: torch.device) -> bool:
    """Whether products of float32 matrices multiply all of their digits there, by PyTorch's setting in force."""
    return float32_setting(device) in ("none", "ieee")


_FLOAT32_PRODUCTS = ("ieee", "tf32x3")
_float32_products = "ieee"


def set_float32_products(products: str) -> None:
    """How the fused Triton kernels multiply float32 matrices where PyTorch does not allow TF32. For the whole process.

    They serve what needs no gradient: log-sum-exps over batch or classes, P_clean, and similarities. Products of a
    training step are exact or of TF32, as PyTorch's own, which has nothing between the two.

    Examples
    --------
    >>> from robustdml_ops.engine.precision import set_float32_products
    >>> set_float32_products("tf32x3")
    >>> set_float32_products("ieee")
    """
    global _float32_products
    if products not in _FLOAT32_PRODUCTS:
        raise ValueError(
            f"products={products!r}: expected one of {', '.join(_FLOAT32_PRODUCTS)}; TF32 is allowed by "
            'torch.set_float32_matmul_precision("high")'
        )
    _float32_products = products


def input_precision(device: torch.device) -> str:
    """How a fused Triton kernel multiplies float32 there, by its name in Triton: "ieee", "tf32x3" or "tf32"."""
    return _float32_products if exact_float32_products(device) else "tf32"
