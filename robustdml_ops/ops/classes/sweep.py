"""The two sweeps of the class log-sum-exp: one for its value, one that recomputes similarities to differentiate it.

Each is one call of the native module (lanes), one Triton launch (without gradients), or a loop over chunks.
"""

import torch
from torch import Tensor

from robustdml_ops.backends.dispatch import without_autocast
from robustdml_ops.backends.native_module import lanes_serve
from robustdml_ops.engine.labels import ELSEWHERE
from robustdml_ops.engine.proxy_update import ProxyUpdate
from robustdml_ops.engine.similarity_chunks import Similarities, count_selected, gradients_without_samples
from robustdml_ops.ops.classes.backends import (
    EagerClasses,
    NativeClasses,
    TritonClasses,
    call,
    fused_forward,
    fused_forward_serves,
)
from robustdml_ops.ops.classes.problem import ClassBackend, ClassProblem, ClassSums, ClassUpstream

BACKENDS: dict[str, ClassBackend] = {"native": NativeClasses(), "triton": TritonClasses(), "eager": EagerClasses()}


def class_sweep(
    embeddings: Tensor,
    proxies: Tensor,
    problem: ClassProblem,
    backend: ClassBackend,
    operand: torch.dtype,
    differentiable: bool,
    selected: Tensor | None = None,
    E: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Log-sum-exp over the classes (B,) and logits of the labels: 2·B·C·D flops; ``E`` (C, B) takes the terms."""
    B, compute = len(embeddings), problem.scale.dtype
    labels = problem.labels.labels
    shift = embeddings.new_full((B,), -torch.inf, dtype=torch.float64)
    sums = ClassSums(shift, torch.zeros_like(shift), embeddings.new_zeros(labels.shape, dtype=compute))
    if B and count_selected(proxies, selected):
        with without_autocast(embeddings.device):
            similarities = Similarities(embeddings, problem.swept(proxies, selected), compute, operand, backend, E)
            fused = isinstance(backend, TritonClasses) and not differentiable
            if fused and fused_forward_serves(similarities.X, problem):
                fused_forward(similarities.X, proxies, problem, sums)
            elif isinstance(backend, NativeClasses) and lanes_serve(proxies, similarities.X.dtype, compute):
                _sweep_by_lanes("class_sweep", similarities, problem, sums)
            else:
                for chunk in similarities:
                    backend.class_lse(chunk, problem, sums)
    target = sums.target + problem.target_bias
    if problem.labels.elsewhere:
        target = target.masked_fill(labels == ELSEWHERE, -torch.inf)
    lse = sums.shift + sums.total.log()  # −inf where no class counts
    if not problem.exclude_target:
        own = target.double()
        lse = torch.logaddexp(lse, own if own.dim() == 1 else own.logsumexp(1))
    return lse.to(compute), target


def class_sweep_backward(
    embeddings: Tensor,
    proxies: Tensor,
    problem: ClassProblem,
    results: tuple[Tensor, Tensor],
    upstream: tuple[Tensor, Tensor],
    backend: ClassBackend,
    operand: torch.dtype,
    want: tuple[bool, bool],
    update: ProxyUpdate | None = None,
    E: Tensor | None = None,
) -> tuple[Tensor | None, Tensor | None]:
    """dL/dembeddings, compute type, and dL/dproxies (C·H, D): 6·B·C·D flops, or 4 with the saved terms ``E``."""
    selected, compute = None if update is None else update.rows, problem.scale.dtype
    if len(embeddings) == 0 or count_selected(proxies, selected) == 0:
        return gradients_without_samples(embeddings, proxies, compute, want, update)
    (lse, target), (dlse, dtarget) = results, upstream
    lse = lse.masked_fill(lse == -torch.inf, torch.inf)
    dlogit = dtarget
    if not problem.exclude_target:
        of_sample = (dlse, lse) if target.dim() == 1 else (dlse[:, None], lse[:, None])
        dlogit = dtarget + of_sample[0] * (target - of_sample[1]).exp()
    gradient = ClassUpstream(lse, dlse.contiguous(), dlogit.contiguous())
    with without_autocast(embeddings.device):
        similarities = Similarities(embeddings, problem.swept(proxies, selected), compute, operand, backend, E)
        similarities.want_gradients(*want, update)
        if isinstance(backend, NativeClasses) and lanes_serve(proxies, similarities.X.dtype, compute):
            _sweep_by_lanes("class_sweep_backward", similarities, problem, gradient)
        elif E is not None:
            # By way of .data: autograd would refuse a second backward, which writes the labels' elements anew.
            similarities.X_inverse_norm, similarities.weighted = backend.complete_terms(
                similarities, E.data, problem, gradient
            )
            for chunk in similarities:
                similarities.backward(chunk)
        else:
            for chunk in similarities:
                backend.class_lse_backward(chunk, problem, gradient)
                similarities.backward(chunk)
        return similarities.gradients()


def _sweep_by_lanes(
    name: str, similarities: Similarities, problem: ClassProblem, given: ClassSums | ClassUpstream
) -> None:
    """One call of the native module: each thread of the CPU takes chunks of classes on its own."""
    if call(name, problem, (0, similarities.count // problem.centers), vars(given), **similarities.native_fields()):
        similarities.check_proxy_gradients()
