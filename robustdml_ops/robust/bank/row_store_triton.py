"""Storing a batch in three launches, in four with sample ids to link."""

import torch
from torch import Tensor

from robustdml_ops.backends.triton_device import block_of, current, grid_of, launch
from robustdml_ops.robust.bank.row_store import RowStore, StoreProblem

_BLOCK_R = 4
_BLOCK_B = 512
_BLOCK_M = 256


class TritonRowStore(RowStore):
    """On CUDA devices; in Triton's interpreter also on the CPU."""

    def store(self, problem: StoreProblem) -> Tensor:
        """Store by Triton kernels."""
        from robustdml_ops.robust.bank.row_store_kernels import assign_slots, exchange_rows, keep_finite, link_copies

        (B, D), M, capacity = problem.X.shape, problem.most, problem.capacity
        X, new_labels = (_separate(given, problem) for given in (problem.X, problem.new_labels))
        new_ids = None if problem.new_ids is None else _separate(problem.new_ids, problem)
        kept = torch.empty_like(problem.keep, dtype=torch.uint8, memory_format=torch.contiguous_format)
        touched = new_labels.new_empty(2 * M)
        source, serials = new_labels.new_empty(2, M).unbind(0)
        BLOCK_D = block_of(D, 512)
        with current(X):
            keep_finite[grid_of(B, _BLOCK_R)](
                X=X,
                keep=problem.keep.contiguous().view(torch.uint8),
                kept=kept,
                B=B,
                D=D,
                **launch(BLOCK_R=_BLOCK_R, BLOCK_D=BLOCK_D, num_warps=4, num_stages=1),
            )
            assign_slots[(1,)](
                kept=kept,
                new_labels=new_labels,
                new_ids=new_ids,
                labels=problem.labels,
                sample_ids=problem.sample_ids,
                enqueued=problem.enqueued,
                source=source,
                serials=serials,
                touched=touched,
                B=B,
                M=M,
                capacity=capacity,
                **launch(BLOCK=_BLOCK_B, num_warps=8, num_stages=1),
            )
            touched = problem.here(touched)
            exchange_rows[(2 * M,)](
                X=X,
                features=problem.features,
                sums=problem.classes.sums,
                counts=problem.classes.counts,
                touched=touched,
                source=source,
                serials=serials,
                M=M,
                capacity=capacity,
                D=D,
                **launch(BLOCK_M=_BLOCK_M, BLOCK_D=BLOCK_D, num_warps=4, num_stages=1),
            )
            if problem.copies is not None:
                link_copies[(M,)](
                    new_ids=new_ids,
                    source=source,
                    serials=serials,
                    latest=problem.copies.latest,
                    earlier=problem.copies.earlier,
                    M=M,
                    capacity=problem.copies.capacity,
                    **launch(BLOCK_M=_BLOCK_M, num_warps=4, num_stages=1),
                )
        return touched


def _separate(given: Tensor, problem: StoreProblem) -> Tensor:
    """Contiguous memory that does not overlap the bank's, which changes while the batch is read."""
    address = given.untyped_storage().data_ptr()
    buffers = (problem.features, problem.labels, problem.sample_ids)
    if address and any(address == buffer.untyped_storage().data_ptr() for buffer in buffers):
        return given.clone(memory_format=torch.contiguous_format)
    return given.contiguous()
