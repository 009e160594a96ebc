"""The sweep over pairs a chunk of anchors at a time, on any backend: product, epilogue, gradients of the chunk."""

from robustdml_ops.engine.similarity_chunks import Chunk, Similarities, slice_of
from robustdml_ops.ops.pairs.problem import PairBackend, PairBuffers, PairChunk, PairLSEProblem, PairProblem


def sweep_by_chunks(
    similarities: Similarities, problem: PairProblem, buffers: PairBuffers, backend: PairBackend
) -> None:
    """Fill ``buffers`` and the gradients that ``similarities`` has."""
    for chunk in similarities:
        run_chunk(chunk, problem, buffers, backend)
        similarities.backward(chunk)


def run_chunk(chunk: Chunk, problem: PairProblem, buffers: PairBuffers, backend: PairBackend) -> None:
    """The epilogue of one chunk: its sums into ``buffers``, and dL/dS."""
    first, last = chunk.first, chunk.last
    upstream = (buffers.upstream_positive, buffers.upstream_negative)
    positive, negative = (None if factor is None else slice_of(factor, first, last) for factor in upstream)
    pairs = PairChunk(
        S=chunk.S,
        first=first,
        upstream_positive=positive,
        upstream_negative=negative,
        positive=buffers.positive[first:last],
        negative=buffers.negative[first:last],
        counts=None if buffers.counts is None else buffers.counts[:, first:last],
        rows=buffers.rows,
        V=chunk.V,
        scale=chunk.scale,
        dS=chunk.dS,
    )
    if isinstance(problem, PairLSEProblem):
        backend.pair_lse(pairs, problem)
    else:
        backend.pair_hinge(pairs, problem)
