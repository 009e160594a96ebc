"""The shared checks that look at values."""

import math

import pytest
import torch

from robustdml_ops.engine.validation import all_finite, check_finite_embeddings, check_range


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_one_bad_value_is_found(dtype, bad):
    values = torch.ones(3, 4, dtype=dtype)
    assert all_finite(values)
    values[1, 2] = bad
    assert not all_finite(values)
    values[2, 0] = -bad  # two that cancel
    assert not all_finite(values)
    with pytest.raises(ValueError, match=r"embeddings\[1\] has NaN or inf"):
        check_finite_embeddings(values)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_a_sum_that_overflows_is_no_error(dtype):
    values = torch.full((300, 2), torch.finfo(dtype).max, dtype=dtype)
    assert not values.sum().isfinite()
    assert all_finite(values)
    assert all_finite(values[:0])


def test_ids_out_of_range():
    check_range(torch.tensor([0, 8]), 9, "sample id", "sample_ids", "num_samples")
    check_range(torch.tensor([], dtype=torch.int64), 9, "sample id", "sample_ids", "num_samples")
    for ids in ([0, 9], [0, -1]):
        with pytest.raises(IndexError, match=rf"sample_ids\[1\] = {ids[1]} is outside 0 … 8 \(num_samples = 9\)"):
            check_range(torch.tensor(ids), 9, "sample id", "sample_ids", "num_samples")
