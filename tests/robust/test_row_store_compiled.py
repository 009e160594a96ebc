"""The Triton kernels that store a batch and update its classes, compiled ahead of time."""

from dataclasses import replace

import pytest
import torch

from robustdml_ops.ops.vmf.problem import Fitted
from robustdml_ops.robust.bank.row_store import ClassStatistics, SampleCopies, StoreProblem, store_in_triton
from robustdml_ops.robust.prism.class_logits import LogitUpdate, write_in_triton
from tests.ahead_of_time import ARCHITECTURES, check_elementwise, compiling
from tests.nightly import nightly_but

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


SHAPES = ((128, torch.float32, False), (512, torch.bfloat16, True), (600, torch.float64, True))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("shape", nightly_but(SHAPES[1:2], SHAPES), ids=str)
def test_compiles_without_spills(shape, architecture, tmp_path):
    problem = problem_of(*shape)
    check_elementwise(lambda: store_in_triton(problem), architecture, tmp_path)


def test_a_slot_is_read_before_any_thread_writes_it():
    with compiling(90) as compiled:
        store_in_triton(problem_of(*SHAPES[1]))
    (code,) = [kernel.asm["ttgir"] for name, kernel in compiled if name == "assign_slots"]
    before, _ = code.split("barrier")
    assert "%old_label" in before
    assert before.count("tt.store") == 4  # touched, of both labels, source and serials; then come the slots'


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("fits", [False, True])
def test_logits_compile_without_spills(fits, dtype, architecture, tmp_path):
    counts, classes = torch.zeros(C, dtype=torch.int64), torch.zeros(2 * B, dtype=torch.int64)
    scale, bias, kappa, log_peak = torch.zeros(4, C, dtype=dtype)
    problem = LogitUpdate(classes, counts, scale, bias, -torch.inf)
    if fits:
        fitted = Fitted(*torch.zeros(2, 2 * B, dtype=dtype), torch.zeros(2 * B, dtype=torch.float64))
        problem = replace(problem, fitted=fitted, kappa=kappa, log_peak=log_peak)
    check_elementwise(lambda: write_in_triton(problem), architecture, tmp_path)
