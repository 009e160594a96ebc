"""The labels' part in the gradient of the proxies, exact beside terms that are kept in bfloat16 or float16."""

from torch import Tensor

from robustdml_ops.backends import triton_device as device
from robustdml_ops.backends.triton_launch import Launch


def exact_labels(of_samples: tuple[Tensor, ...], G: Tensor, E: Tensor, first: int) -> None:
    """Make the labels' part of G = E·(f ∘ X) of a chunk exact; ``of_samples`` and ``first`` as add_labels has them."""
    with device.current(G):
        labels_launch(of_samples[1], G.stride())(G, E, *of_samples, first, len(G))


def labels_launch(X: Tensor, strides: tuple[int, ...]) -> Launch:
    """The launch of ``add_labels`` for embeddings X (B, D) and gradients of rows of these ``strides``."""
    from robustdml_ops.ops.classes.label_kernels import add_labels as kernel

    (B, D), tile = X.shape, device.launch(BLOCK_B=32, BLOCK_D=32, num_warps=2, num_stages=1)
    names = ("G_row_stride", "G_column_stride", "X_row_stride", "X_column_stride")
    fixed = {"B": B, "D": D, **dict(zip(names, (*strides, *X.stride()), strict=True)), **tile}
    tensors = ("G", "E", "weighted", "X", "labels", "inverse_norm", "slopes", "first", "n")
    return Launch(kernel, (B, -(-D // 32)), tensors, fixed)
