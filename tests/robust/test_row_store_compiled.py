"""The Triton kernels that store a batch, compiled ahead of time."""

import pytest
import torch

from robustdml_ops.robust.class_sums import ClassStatistics
from robustdml_ops.robust.row_store import StoreProblem
from robustdml_ops.robust.row_store_triton import TritonRowStore
from robustdml_ops.robust.sample_copies import SampleCopies
from tests.ahead_of_time import ARCHITECTURES, check_elementwise

B, C, CAPACITY = 256, 1000, 4000


def problem_of(D, dtype, with_ids):
    labels, slots = torch.zeros(B, dtype=torch.int64), torch.zeros(CAPACITY, dtype=torch.int64)
    sums = torch.zeros(C, D, dtype=torch.promote_types(dtype, torch.float32))
    return StoreProblem(
        X=torch.zeros(B, D, dtype=dtype),
        new_labels=labels,
        new_ids=labels.clone() if with_ids else None,
        keep=labels == 0,
        features=torch.zeros(CAPACITY, D, dtype=dtype),
        labels=slots,
        sample_ids=slots.clone(),
        classes=ClassStatistics(sums, torch.zeros(C, dtype=torch.int64)),
        enqueued=torch.zeros((), dtype=torch.int64),
        copies=SampleCopies(50_000, CAPACITY) if with_ids else None,
        here=lambda labels: labels,
    )


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize(
    ("D", "dtype", "with_ids"),
    [(128, torch.float32, False), (512, torch.bfloat16, True), (600, torch.float64, True)],
    ids=str,
)
def test_compiles_without_spills(D, dtype, with_ids, architecture, tmp_path):
    problem = problem_of(D, dtype, with_ids)
    check_elementwise(lambda: TritonRowStore().store(problem), architecture, tmp_path)
