"""Epilogues of the native module.

On the CPU (``csrc/cpu``): vector code for the widest registers of the machine, all cores, no GIL. On a GPU
(``csrc/cuda``): kernels in the current stream that nothing waits for.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from robustdml_ops.engine.problem import AnchorChunk, AnchorProblem, ConfidenceSets, LabelSets

try:
    from robustdml_ops import _native  # type: ignore[attr-defined]
except ImportError as error:  # the install found no compiler, or the module was built for another Python
    _native = None
    _REASON = f"the native module is not installed ({error}); reinstall where a C++17 compiler is found"

_SUFFIX = {torch.float32: "f32", torch.float64: "f64", torch.bfloat16: "bf16", torch.float16: "f16"}
_COMPUTE = (torch.float32, torch.float64)


def unavailable(device: torch.device, dtype: torch.dtype) -> str | None:
    """Why this backend can't serve ``device`` in the compute type ``dtype``, or None."""
    if _native is None:
        return _REASON
    if dtype not in _COMPUTE:
        return f"the native epilogues compute in float32 or float64, not {dtype}"
    if device.type == "cuda":
        return _cuda_unavailable(_native.cuda_architectures, torch.cuda.get_device_capability(device))
    return None if device.type == "cpu" else f"the native epilogues know CPU and CUDA, and the tensors are on {device}"


def normalize_rows(P: Tensor, U: Tensor, inverse_norm: Tensor) -> None:
    """U = P / |P| by rows and inverse_norm = 1 / |P|; zero rows give zeros."""
    if _on_gpu(U):
        with _current_stream(U.device) as stream:
            _normalize_rows_cuda(P, U, inverse_norm, stream)
        return
    rows = P.to(U.dtype).contiguous()
    kernel = getattr(_native, f"normalize_rows_{_SUFFIX[U.dtype]}")
    kernel(rows.data_ptr(), U.data_ptr(), inverse_norm.data_ptr(), *U.shape, torch.get_num_threads())


def normalize_rows_backward(G: Tensor, U: Tensor, inverse_norm: Tensor) -> None:
    """G ← (G − (G·U) U) · inverse_norm by rows: the Jacobian of the normalisation, in place."""
    if _on_gpu(U):
        with _current_stream(U.device) as stream:
            _normalize_rows_backward_cuda(G, U, inverse_norm, stream)
        return
    kernel = getattr(_native, f"normalize_rows_backward_{_SUFFIX[U.dtype]}")
    kernel(G.data_ptr(), U.data_ptr(), inverse_norm.data_ptr(), *U.shape, torch.get_num_threads())


def operand(P: Tensor, U: Tensor, inverse_norm: Tensor) -> Tensor:
    """What enters the products for the anchors P: on a GPU unit rows in ``U``, on the CPU P itself.

    A CPU reads P from memory while it multiplies, at no cost in time; a pass before that would cost one. Norms are
    taken in :func:`anchor_lse`, while P is warm.
    """
    if U.is_cuda:
        normalize_rows(P, U, inverse_norm)
        return U
    return P.to(U.dtype).contiguous()


def finish(G: Tensor, V: Tensor, inverse_norm: Tensor) -> None:
    """G ← dL/dP, where G = dL/dSᵀ·X and V came from :func:`operand`."""
    if G.is_cuda:
        normalize_rows_backward(G, V, inverse_norm)
        return
    kernel = getattr(_native, f"project_rows_{_SUFFIX[G.dtype]}")
    kernel(G.data_ptr(), V.data_ptr(), inverse_norm.data_ptr(), *G.shape, torch.get_num_threads())


def forward_only(X: Tensor, P: Tensor, problem: AnchorProblem) -> tuple[Tensor, Tensor] | None:
    """None: without gradients, too, the sweep is what this backend has."""
    return None


def anchor_lse(chunk: AnchorChunk, problem: AnchorProblem) -> None:
    """Two log-sum-exps per row of ``chunk.S``, and S ← dL/dS."""
    if _on_gpu(chunk.S):
        with _current_stream(chunk.S.device) as stream:
            _anchor_lse_cuda(chunk, problem, stream)
        return
    suffix = _SUFFIX[chunk.S.dtype]
    arguments = _arguments(
        chunk,
        problem,
        row_max=problem.needs_row_max,
        P=chunk.V.data_ptr(),
        inverse_norm=chunk.inverse_norm.data_ptr(),
        D=chunk.V.shape[1],
    )
    sets = problem.sets
    if isinstance(sets, LabelSets):
        getattr(_native, f"anchor_lse_labels_{suffix}")(
            arguments,
            sorted_labels=sets.sorted_labels.data_ptr(),
            order=sets.order.data_ptr(),
            first_label=chunk.first,
            threads=torch.get_num_threads(),
        )
        return
    values = sets.values(chunk.first, chunk.last, chunk.S.dtype)
    getattr(_native, f"anchor_lse_confidences_{suffix}")(
        arguments,
        **_confidences(sets, values),
        threads=torch.get_num_threads(),
    )


def _arguments(chunk: AnchorChunk, problem: AnchorProblem, row_max: bool, **anchors: int) -> Any:
    """``chunk`` as the native module reads it."""
    anchor_bias = None if problem.anchor_bias is None else problem.anchor_bias[chunk.first : chunk.last]
    return getattr(_native, f"AnchorChunk_{_SUFFIX[chunk.S.dtype]}")(
        S=chunk.S.data_ptr(),
        rows=chunk.S.shape[0],
        B=chunk.S.shape[1],
        alpha=problem.alpha,
        positive_bias=problem.positive_bias.data_ptr(),
        negative_bias=problem.negative_bias.data_ptr(),
        anchor_bias=_address(anchor_bias),
        row_max=row_max,
        upstream_positive=_address(chunk.upstream_positive),
        upstream_negative=_address(chunk.upstream_negative),
        upstream_positive_stride=_row_stride(chunk.upstream_positive),
        upstream_negative_stride=_row_stride(chunk.upstream_negative),
        lse_positive=chunk.lse_positive.data_ptr(),
        lse_negative=chunk.lse_negative.data_ptr(),
        dpositive_bias=_address(chunk.dpositive_bias),
        dnegative_bias=_address(chunk.dnegative_bias),
        **anchors,
    )


def _confidences(sets: ConfidenceSets, values: Tensor) -> dict[str, Any]:
    """``values`` of ``sets`` as the native module reads them."""
    return {
        "values": values.data_ptr(),
        "anchor_stride": values.stride(0),
        "candidate_stride": values.stride(1),
        "logits": sets.are_logits,
        "beta": sets.beta,
        "threshold": sets.threshold,
    }


def _address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def _row_stride(upstream: Tensor | None) -> int:
    return 0 if upstream is None or upstream.dim() == 0 else upstream.stride(0)


def _on_gpu(tensor: Tensor) -> bool:
    return tensor.is_cuda


@contextmanager
def _current_stream(device: torch.device) -> Iterator[int]:
    """Address of the current stream of ``device``, with ``device`` current: kernels are launched on the current one."""
    with torch.cuda.device(device):
        yield torch.cuda.current_stream(device).cuda_stream


def _cuda_unavailable(architectures: str | None, capability: tuple[int, int]) -> str | None:
    """Why kernels built for ``architectures`` (CMake's names) can't run on a device of ``capability``, or None."""
    if architectures is None:
        return "the native module was built without its CUDA part; reinstall with ROBUSTDML_CUDA=ON where nvcc is found"
    for major, minor, feature, kind in re.findall(r"(\d+)(\d)([af]?)-(real|virtual)", architectures):
        built = (int(major), int(minor))
        if built == capability:
            return None
        # A binary serves later minors of its major, PTX all later devices; an architecture's own features it alone.
        if not feature and built <= capability and (kind == "virtual" or built[0] == capability[0]):
            return None
    return (
        f"the native module was built for {architectures}, and the device has compute capability "
        f"{'.'.join(map(str, capability))}; reinstall with it in TORCH_CUDA_ARCH_LIST"
    )


# Temporaries of the functions below may be freed while their kernels still wait: PyTorch's allocator hands memory to
# later work of the same stream only.


def _normalize_rows_cuda(P: Tensor, U: Tensor, inverse_norm: Tensor, stream: int) -> None:
    rows = P.contiguous()
    kernel = getattr(_native, f"normalize_rows_cuda_{_SUFFIX[P.dtype]}_{_SUFFIX[U.dtype]}")
    kernel(rows.data_ptr(), U.data_ptr(), inverse_norm.data_ptr(), *U.shape, stream)


def _normalize_rows_backward_cuda(G: Tensor, U: Tensor, inverse_norm: Tensor, stream: int) -> None:
    kernel = getattr(_native, f"normalize_rows_backward_cuda_{_SUFFIX[U.dtype]}")
    kernel(G.data_ptr(), U.data_ptr(), inverse_norm.data_ptr(), *U.shape, stream)


def _anchor_lse_cuda(chunk: AnchorChunk, problem: AnchorProblem, stream: int) -> None:
    suffix = _SUFFIX[chunk.S.dtype]
    # Whether a row needs its maximum is a question to the device: the kernels always take it, and nothing waits.
    arguments = _arguments(chunk, problem, row_max=True)
    B = chunk.S.shape[1]
    # Enough parts of the rows to fill a device, whatever the number of columns, in 256 Ki elements at most.
    parts = max(1, min(64, 131072 // max(B, 1)))
    partials = None if chunk.dpositive_bias is None else chunk.S.new_empty((parts, 2, B))
    sets = problem.sets
    if isinstance(sets, LabelSets):
        getattr(_native, f"anchor_lse_labels_cuda_{suffix}")(
            arguments,
            labels=sets.labels.data_ptr(),
            first_label=chunk.first,
            partials=_address(partials),
            parts=parts,
            stream=stream,
        )
        return
    # Both readings of a row want neighbours in the batch side by side; a matrix (B, C) has classes there.
    values = sets.values(chunk.first, chunk.last, chunk.S.dtype).contiguous()
    getattr(_native, f"anchor_lse_confidences_cuda_{suffix}")(
        arguments,
        **_confidences(sets, values),
        partials=_address(partials),
        parts=parts,
        stream=stream,
    )
