"""The class log-sum-exp in native CUDA against eager: on the GPU where there is one, in emulation everywhere."""

import pytest
import torch

from robustdml_ops.ops.classes.sweep import BACKENDS
from tests.classes.cases import Case


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize(("pooling", "H"), [("none", 1), ("max", 3), ("softmax", 3)])
@pytest.mark.parametrize("shape", [(1, 1, 1), (33, 30, 5), (65, 11, 4)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_against_eager(device, dtype, shape, pooling, H, monkeypatch):
    monkeypatch.setattr("robustdml_ops.engine.lanes.matrix_product", lambda _: 0)  # lanes are the CPU's
    options = {"exclude": shape[0] == 33, "scale": "one" if shape[0] == 65 else "vector"}
    Case(shape, pooling, H, **options).check(BACKENDS["native"], device, dtype)
