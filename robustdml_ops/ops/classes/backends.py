"""The class log-sum-exp on each backend: of a chunk, and in Triton without gradients of all classes in one launch."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from robustdml_ops.backends import native_module as module
from robustdml_ops.backends import triton_device as device
from robustdml_ops.engine.rows.backends import NativeRows, TritonRows, rows_launch
from robustdml_ops.engine.similarity_chunks import Chunk, Similarities
from robustdml_ops.ops.classes import sweep
from robustdml_ops.ops.classes.eager import EagerClasses, class_logits, leave_out, pooled_similarities
from robustdml_ops.ops.classes.labels_part import exact_labels
from robustdml_ops.ops.classes.sweep import (
    ClassBackend,
    ClassProblem,
    ClassSums,
    ClassUpstream,
    LaneTerms,
    Request,
    Saved,
)

# Bytes of a row that the fused forward takes.
LONGEST_ROW = 512


class NativeClasses(NativeRows, ClassBackend):
    """On the CPU and on CUDA devices."""

    saves_terms = False

    def sweep(self, similarities: Similarities, problem: ClassProblem, sums: ClassSums, request: Request) -> Saved:
        """By lanes in one call; what is saved leaves backward one product where terms fit, two elsewhere."""
        if not self._by_lanes(similarities):
            return super().sweep(similarities, problem, sums, request)
        if not problem.is_bounded():
            _lanes("class_sweep", similarities, problem, vars(sums))
            return ()
        terms = LaneTerms.room(similarities, problem, request)
        similarities.want_gradients(request.want[0], False)
        given = {name: value for name, value in vars(sums).items() if name not in ("shift", "weighted")}
        _lanes("class_terms", similarities, problem, {**terms.native_fields(), **given})
        sums.shift.fill_(module.library.class_term_shift)
        G = similarities.X.new_empty(0) if similarities.dX is None else similarities.dX
        return terms._replace(G=G) if any(request.want) else ()

    def sweep_backward(
        self, similarities: Similarities, problem: ClassProblem, gradient: ClassUpstream, saved: Saved
    ) -> None:
        if not self._by_lanes(similarities):
            super().sweep_backward(similarities, problem, gradient, saved)
        elif not saved:
            _lanes("class_sweep_backward", similarities, problem, vars(gradient))
        else:
            *terms, lse = saved
            shifted = (module.library.class_term_shift - lse).exp().masked_fill(lse == -torch.inf, 0)
            fields = LaneTerms(*terms).native_fields()
            given = {"factor": (gradient.dlse * shifted).to(similarities.compute), "G": terms[-1]}
            _lanes("class_terms_backward", similarities, problem, {**fields, **given, "dlogit": gradient.dlogit})

    def _by_lanes(self, similarities: Similarities) -> bool:
        return self.lanes_serve(similarities.proxies, similarities.X.dtype, similarities.compute)

    def class_lse(self, chunk: Chunk, problem: ClassProblem, sums: ClassSums) -> None:
        if sums.own is not None and module.on_gpu(chunk.S):
            pooled = pooled_similarities(chunk, problem)
            logits = class_logits(pooled, chunk, problem)[0]
            leave_out(logits, pooled, problem, *problem.places(*problem.classes(chunk)))
            sums.see(pooled, logits > -torch.inf)
        _epilogue("class_lse", chunk, problem, vars(sums))

    def class_lse_backward(self, chunk: Chunk, problem: ClassProblem, upstream: ClassUpstream) -> None:
        _epilogue("class_lse_backward", chunk, problem, vars(upstream))


def _lanes(name: str, similarities: Similarities, problem: ClassProblem, given: Mapping[str, Any]) -> None:
    """One call of the native module: each thread of the CPU takes chunks of classes on its own."""
    if call(name, problem, (0, similarities.count // problem.centers), given, **similarities.native_fields()):
        similarities.check_proxy_gradients()


def _epilogue(name: str, chunk: Chunk, problem: ClassProblem, tensors: Mapping[str, Tensor]) -> None:
    S, classes = chunk.S, problem.classes(chunk)
    if not module.on_gpu(S):
        call(name, problem, classes, tensors, S, chunk.scale, threads=torch.get_num_threads())
        return
    # Enough slices of the classes to fill a device, whatever the number of columns.
    parts = max(1, min(64, 131072 // S.shape[1]))
    if name == "class_lse":
        rows = 2 if problem.logit_weights is None else 3
        tensors = {**tensors, "partials": S.new_empty((parts, rows, S.shape[1]))}
    with module.current_stream(S.device) as stream:
        call(f"{name}_cuda", problem, classes, tensors, S, parts=parts, stream=stream)


def call(
    name: str,
    problem: ClassProblem,
    classes: tuple[int, int],
    tensors: Mapping[str, Any],
    S: Tensor | None = None,
    scale: Tensor | None = None,
    **arguments: Any,
) -> Any:
    """The function ``name`` of the native module, of the classes from the first to before the last of ``classes``."""
    first, last = classes
    suffix, labels = module.SUFFIX[problem.scale.dtype], problem.labels
    chunk = getattr(module.library, f"ClassChunk_{suffix}")(
        classes=last - first,
        B=len(labels.labels),
        **module.addresses({"S": S, "inverse_norm": scale, **problem.arguments(first, last)}),
    )
    given: dict[str, Any] = {**tensors, "first_label": first}
    if name.endswith("_cuda"):
        given["labels"] = labels.labels
    else:
        given["sorted_labels"], given["order"] = labels.by_class()
    return getattr(module.library, f"{name}_{suffix}")(chunk, **module.addresses(given), **arguments)


class TritonClasses(TritonRows, ClassBackend):
    """On CUDA devices; in Triton's interpreter also on the CPU."""

    def class_lse(self, chunk: Chunk, problem: ClassProblem, sums: ClassSums) -> None:
        from robustdml_ops.ops.classes.kernels import class_lse as kernel

        (first, last), B = problem.classes(chunk), chunk.S.shape[1]
        parameters = epilogue_launch(B, chunk.S.dtype, device.tile_of("class_lse", chunk.S))
        parts, per_part = slices_of(last - first, int(parameters["BLOCK_C"]), 64)
        partials, weighted = chunk.S.new_empty((parts, 2, B)), weighted_parts(problem, parts)
        seen = seen_parts(sums, parts)
        with device.current(chunk.S):
            kernel[-(-B // int(parameters["BLOCK_B"])), parts](
                target=sums.target,
                partials=partials,
                weighted=weighted,
                **seen,
                per_part=per_part,
                first_part=0,
                scale_number=0.0,
                E=chunk.dS,
                **_chunk_arguments(problem, chunk),
                **parameters,
            )
            add_slices(partials, weighted, seen, sums)

    def sweep(self, similarities: Similarities, problem: ClassProblem, sums: ClassSums, request: Request) -> Saved:
        """Without gradients all classes in one launch, where that serves."""
        if request.graded or not fused_forward_serves(similarities.X, problem):
            return super().sweep(similarities, problem, sums, request)
        fused_forward(similarities.X, similarities.proxies, problem, sums)
        return ()

    def complete_terms(
        self, similarities: Similarities, E: Tensor, problem: ClassProblem, upstream: ClassUpstream
    ) -> tuple[Tensor, Tensor]:
        from robustdml_ops.ops.classes.sample_kernels import complete_terms as kernel

        X, P, (B, D) = similarities.embeddings, similarities.proxies, similarities.X.shape
        weighted, factor = torch.empty_like(similarities.X), torch.empty_like(upstream.lse)
        slopes, given = torch.empty_like(factor), (weighted, X, problem.labels.labels, similarities.X_inverse_norm)
        parameters = rows_launch(D, device.tile_of("rows", X))
        with device.current(X):
            kernel[device.grid_of(B, parameters["BLOCK_R"])](
                E=E,
                P=P if similarities.as_they_are else None,
                selected=similarities.selected,
                X=X,
                inverse_norm=similarities.X_inverse_norm,
                labels=problem.labels.labels,
                scale=problem.scale,
                lse=upstream.lse,
                dlse=upstream.dlse,
                dlogit=upstream.dlogit,
                factor=factor,
                slopes=slopes,
                weighted=weighted,
                classes=len(E),
                B=B,
                D=D,
                row_stride=P.stride(0),
                column_stride=P.stride(1),
                X_row_stride=X.stride(0),
                X_column_stride=X.stride(1),
                most=sweep.largest_sum(len(E)),
                **parameters,
            )
        if E.dtype != factor.dtype:
            similarities.exact_labels = partial(exact_labels, (*given, slopes))
        return factor, weighted

    def class_lse_backward(self, chunk: Chunk, problem: ClassProblem, upstream: ClassUpstream) -> None:
        from robustdml_ops.ops.classes.kernels import class_lse_backward as kernel

        (first, last), B = problem.classes(chunk), chunk.S.shape[1]
        parameters = epilogue_launch(B, chunk.S.dtype, device.tile_of("class_lse", chunk.S))
        with device.current(chunk.S):
            kernel[-(-(last - first) // int(parameters["BLOCK_C"])), -(-B // int(parameters["BLOCK_B"]))](
                dS=chunk.S if chunk.dS is None else chunk.dS,
                **vars(upstream),
                **_chunk_arguments(problem, chunk),
                **parameters,
            )


def fused_forward_serves(X: Tensor, problem: ClassProblem) -> bool:
    """Whether the kernel takes it: not in float64, not several labels, and not for rows longer than pay."""
    # Blocks of samples and of classes read each other's rows from L2: beyond 600 bytes that is slower than S in memory.
    served = problem.scale.dtype == torch.float32 and problem.labels.labels_each == 1
    return served and device.fused_pays(X) and X.shape[1] * X.itemsize <= LONGEST_ROW


def fused_forward(X: Tensor, P: Tensor, problem: ClassProblem, sums: ClassSums) -> None:
    """Add all classes to ``sums``, of unit rows X (B, D) in the operand type and proxies P (C·H, D)."""
    from robustdml_ops.ops.classes.kernels import fused_class_lse as kernel

    (B, D), C = X.shape, len(P) // problem.centers
    input_precision = device.input_precision(X.device)
    inverse_norm = None
    if problem.normalize:
        inverse_norm = sums.target.new_empty(len(P))
        TritonRows().normalize_rows(P, None, inverse_norm)
    pooled, tile = problem.pooling != "none", device.tile_of("fused_class_lse", X)
    parameters = fused_launch(B, D, X.dtype, pooled, input_precision, device.rows_are_vectors(P), tile)
    parts, per_part = slices_of(C, int(parameters["BLOCK_C"]), 512)
    partials, weighted = sums.target.new_empty((parts, 2, B)), weighted_parts(problem, parts)
    seen = seen_parts(sums, parts)
    arguments = _arguments(problem, 0, C)
    del arguments["K"]  # one label of each sample
    with device.current(X):
        kernel[-(-B // int(parameters["BLOCK_B"])), parts](
            X=X,
            P=P,
            inverse_norm=inverse_norm,
            target=sums.target,
            partials=partials,
            weighted=weighted,
            **seen,
            C=C,
            per_part=per_part,
            row_stride=P.stride(0),
            column_stride=P.stride(1),
            D=D,
            **arguments,
            **parameters,
        )
        add_slices(partials, weighted, seen, sums)


def slices_of(classes: int, block: int, most: int) -> tuple[int, int]:
    """How many slices the classes are divided into, ``most`` of them at most, and classes of each: whole blocks."""
    blocks = -(-classes // block)
    per_part = -(-blocks // most)
    return -(-blocks // per_part), per_part * block


def weighted_parts(problem: ClassProblem, parts: int) -> Tensor | None:
    """Memory for the weighted sums of logits of each slice, if they are wanted."""
    weights = problem.logit_weights
    return None if weights is None else weights.new_empty((parts, len(problem.labels.labels)))


def seen_parts(sums: ClassSums, parts: int) -> dict[str, Tensor | None]:
    """Arguments of the kernels that see other classes, with memory for each slice; None where nothing is seen."""
    if sums.own is None:
        return dict.fromkeys(("own_similarities", "nearest", "above"))
    shape, new = (parts, len(sums.own)), sums.own.new_empty
    return {"own_similarities": sums.own, "nearest": new(shape), "above": new(shape, dtype=torch.int32)}


def add_slices(partials: Tensor, weighted: Tensor | None, seen: Mapping[str, Tensor | None], sums: ClassSums) -> None:
    """Add the partial sums of all slices to ``sums``."""
    from robustdml_ops.ops.classes.sample_kernels import add_partials

    parts, _, B = partials.shape
    # Narrow tiles: a batch of 256 makes 16 programs, and each of them has every part at hand at once.
    parameters = device.launch(BLOCK_P=device.block_of(parts, 128), BLOCK_B=16, num_warps=4, num_stages=1)
    add_partials[(-(-B // int(parameters["BLOCK_B"])),)](partials, sums.shift, sums.total, parts, B, **parameters)
    if sums.weighted is not None and weighted is not None:
        sums.weighted += weighted.sum(0, dtype=torch.float64)
    nearest, above = seen["nearest"], seen["above"]
    if nearest is not None and above is not None and sums.nearest is not None and sums.above is not None:
        torch.maximum(sums.nearest, nearest.amax(0), out=sums.nearest)
        sums.above += above.sum(0)


def _arguments(problem: ClassProblem, first: int, last: int) -> dict[str, Any]:
    """The classes ``first:last`` as arguments of all three kernels."""
    given, labels = problem.arguments(first, last), problem.labels.labels
    short = {"H": given.pop("centers"), "K": given.pop("labels_each"), "POOLING": given.pop("pooling")}
    return {**given, **short, "labels": labels, "B": len(labels)}


def _chunk_arguments(problem: ClassProblem, chunk: Chunk) -> dict[str, Any]:
    """The classes of a chunk as arguments of both kernels that read S."""
    first, last = problem.classes(chunk)
    given = {"S": chunk.S, "inverse_norm": chunk.scale, "c": last - first, "first": first}
    return given | _arguments(problem, first, last)


def epilogue_launch(B: int, compute: torch.dtype, tile: Mapping[str, int]) -> device.Launch:
    """Tile of both epilogues: 8 elements of S a thread, 4 in float64. Beyond 64 samples softmax spills on sm_100."""
    BLOCK_B = device.block_of(B, tile["samples"])
    elements = tile["elements"] // (2 if compute == torch.float64 else 1)
    return device.launch(BLOCK_C=elements // BLOCK_B, BLOCK_B=BLOCK_B, num_warps=tile["num_warps"], num_stages=1)


def fused_launch(
    B: int, D: int, operand: torch.dtype, pooled: bool, input_precision: str, vectors: bool, tile: Mapping[str, int]
) -> device.Launch:
    """Tile of the fused forward: whole embeddings up to D = 128; fewer classes where pooling needs registers."""
    exact = operand == torch.float32 and input_precision == "ieee"
    if exact or not vectors:
        blocks = {"BLOCK_C": 64, "BLOCK_B": 32 if exact else 64, "BLOCK_D": 16}
        return device.launch(**blocks, num_warps=4 if exact else 8, num_stages=2, input_precision=input_precision)
    return device.launch(
        BLOCK_C=tile["pooled" if pooled or operand == torch.float32 else "classes"],
        BLOCK_B=device.block_of(B, tile["samples"]),
        BLOCK_D=device.block_of(D, 128) if D <= 128 else 32,
        num_warps=tile["num_warps"],
        num_stages=2,
        input_precision=input_precision,
    )


BACKENDS: dict[str, ClassBackend] = {"native": NativeClasses(), "triton": TritonClasses(), "eager": EagerClasses()}
