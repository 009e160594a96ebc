"""The types in which a sweep sums and multiplies."""

import torch
from torch import Tensor

# Whether ``addmm`` adds a product of half-precision operands to a float32 matrix. Up to 2.7 there is no ``out_dtype``;
# 2.8 and 2.9 take it and raise "self and mat2 must have the same dtype".
ADDS_HALF_PRODUCTS = torch.__version__ >= "2.10"  # compared as versions


def compute_dtype(embeddings: Tensor, proxies: Tensor) -> torch.dtype:
    """float64 where either input is, else float32: bfloat16 cosines would cost 2⁻⁹·α in the exponent."""
    return torch.float64 if torch.float64 in (embeddings.dtype, proxies.dtype) else torch.float32


def operand_dtype(compute: torch.dtype, *matrices: Tensor, autocast: bool = False, lanes: bool = False) -> torch.dtype:
    """Type of the products' operands: bfloat16 where a GPU is given half precision alone, else ``compute``.

    float16, too, becomes bfloat16: gradients of similarities are of size α/C, with 10⁶ classes below float16's range.
    ``autocast``: bfloat16 under autocast, too. Decided in forward, as backward runs outside autocast.
    ``lanes``: bfloat16 on a CPU, too, whose lanes then multiply it if the processor does.
    """
    device = matrices[0].device
    half = all(m.dtype in (torch.bfloat16, torch.float16) for m in matrices)
    if autocast and device.type != "meta":  # which has no autocast
        half = half or torch.is_autocast_enabled(device.type)
    can = (lanes and device.type == "cpu") or multiplies_bfloat16(device)
    return torch.bfloat16 if half and compute == torch.float32 and can else compute


def product_dtype(operand: torch.dtype, compute: torch.dtype, device: torch.device) -> torch.dtype:
    """Type in which PyTorch and Triton multiply: ``compute`` on a CPU, whose lanes alone multiply bfloat16."""
    return operand if operand == compute or multiplies_bfloat16(device) else compute


def multiplies_bfloat16(device: torch.device) -> bool:
    """Whether operands may be bfloat16: on CUDA devices whose tensor cores take them, from PyTorch 2.10 on."""
    if device.type != "cuda" or not ADDS_HALF_PRODUCTS:
        return False
    return torch.version.hip is not None or torch.cuda.get_device_properties(device).major >= 8


def exact_float32_products(device: torch.device) -> bool:
    """Whether products of float32 matrices multiply all of their digits there, by PyTorch's setting in force."""
    # Since 2.9 each backend has its own setting; the getter of the older one raises where that was set.
    backend = torch.backends.cuda if device.type == "cuda" else torch.backends.mkldnn
    setting = getattr(getattr(backend, "matmul", None), "fp32_precision", None)
    return setting in ("none", "ieee") if setting else torch.get_float32_matmul_precision() == "highest"


_FLOAT32_PRODUCTS = ("ieee", "tf32x3")
_float32_products = "ieee"


def set_float32_products(products: str) -> None:
    """How the fused Triton kernels multiply float32 matrices where PyTorch does not allow TF32. For the whole process.

    They serve what needs no gradient: log-sum-exps over batch or classes, P_clean, and similarities. Products of a
    training step are exact or of TF32, as PyTorch's own, which has nothing between the two.
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
