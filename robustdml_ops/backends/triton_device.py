"""Where the Triton kernels can run, and how they are launched."""

import importlib.util
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import TypeAlias

import torch
from torch import Tensor

from robustdml_ops.backends.cards import card

# Before it tuples of constants can't be indexed, and Blackwell's tensor cores are unknown.
OLDEST = (3, 6)
Launch: TypeAlias = dict[str, int | bool | str]


def unavailable(device: torch.device, dtype: torch.dtype) -> str | None:
    """Why this backend can't serve ``device`` in the compute type ``dtype``, or None."""
    reason = missing()
    if reason is not None:
        return reason
    if dtype not in (torch.float32, torch.float64):
        return f"the Triton epilogues compute in float32 or float64, not {dtype}"
    if device.type == "cpu":
        return None if interpreted() else "the tensors are on the CPU, where Triton runs under TRITON_INTERPRET=1 alone"
    if device.type != "cuda":
        return f"the Triton epilogues run on CUDA devices, and the tensors are on {device}"
    if torch.version.cuda is not None and torch.cuda.get_device_capability(device) < (8, 0):
        return f"the Triton epilogues need compute capability 8.0, and {device} has less"
    return None


def missing() -> str | None:
    """Why there is no Triton here that knows the kernels' language, or None."""
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed"
    version = _version()
    if version >= OLDEST:
        return None
    oldest, found = (".".join(map(str, one)) for one in (OLDEST, version))
    return f"the kernels need Triton {oldest}, which PyTorch 2.10 and later have, and this is {found}"


@cache
def _version() -> tuple[int, int]:
    import triton

    major, minor = triton.__version__.split(".")[:2]
    return int(major), int(minor)


def grid_of(rows: int, block: int | bool | str) -> tuple[int]:
    """Programs that take ``block`` of ``rows`` each."""
    return (-(-rows // int(block)),)


def current(tensor: Tensor) -> AbstractContextManager[None]:
    """Make the tensor's device the current one: Triton launches there and nowhere else."""
    return torch.cuda.device(tensor.device) if tensor.is_cuda else nullcontext()


def block_of(size: int, largest: int) -> int:
    """Return the power of two that holds ``size``, from 16 (the shortest side of a matrix product) to ``largest``."""
    return min(largest, max(16, 1 << (size - 1).bit_length()))


def rows_are_vectors(matrix: Tensor) -> bool:
    """Whether Triton reads rows several elements at a time: 16, 32, … side by side, from places that are multiples."""
    whole = matrix.shape[1] % 16 == 0 and matrix.stride(0) % 16 == 0
    return whole and matrix.stride(1) == 1 and matrix.data_ptr() % 16 == 0


def tile_of(kernel: str, tensor: Tensor) -> Mapping[str, int]:
    """Tile of a kernel on the device of ``tensor``, from ``cards.json``."""
    return card(tensor.device).tiles[kernel]


def fused_pays(X: Tensor) -> bool:
    """Whether rows as long as those of ``X`` take the fused forward on its device, by the table of cards."""
    columns = card(X.device).fused_columns
    return columns is None or X.shape[1] <= columns


def launch(**parameters: int | bool | str) -> Launch:
    """Launch parameters; fused multiply-adds are set explicitly, as Triton's default, and with it the bits, changes."""
    return {**parameters, "enable_fp_fusion": True}


def interpreted() -> bool:
    """Whether kernels run in Triton's interpreter."""
    import triton

    return bool(triton.knobs.runtime.interpret)


def exact_float32_products(device: torch.device) -> bool:
    """Whether products of float32 matrices multiply all of their digits there, by PyTorch's setting in force."""
    # Since 2.9 each backend has its own setting; the getter of the older one raises where that was set.
    backend = torch.backends.cuda if device.type == "cuda" else torch.backends.mkldnn
    setting = getattr(getattr(backend, "matmul", None), "fp32_precision", None)
    return setting in ("none", "ieee") if setting else torch.get_float32_matmul_precision() == "highest"


def input_precision(device: torch.device) -> str:
    """How a fused Triton kernel multiplies float32 there, by its name in Triton: "ieee" or "tf32"."""
    return "ieee" if exact_float32_products(device) else "tf32"
