"""Rows of every length in Triton's kernels, the fused ones included: on the GPU, or in Triton's interpreter."""

import pytest
import scales
import torch

from robustdml_ops.engine.rows.backends import TritonRows
from tests.triton_here import DEVICE, MARKS

pytestmark = [
    *MARKS,
    pytest.mark.filterwarnings("ignore:(overflow|underflow|divide|invalid value):RuntimeWarning"),  # the interpreter's
]
SCALES = [(torch.float32, scale) for scale in scales.FLOAT32]
# The sweeps; that they take float64 is seen where they are the only way.
DOUBLE = [(torch.float64, scale) for scale in scales.FLOAT64[::3]]


@pytest.mark.parametrize(("dtype", "scale"), [*SCALES[::2], *DOUBLE], ids=str)
@pytest.mark.parametrize("name", scales.OPS)
def test_values_and_gradients(name, dtype, scale):
    for which in ("both", "some"):
        scales.check(name, dtype, scale, which, "triton", DEVICE)


@pytest.mark.parametrize(("dtype", "scale"), SCALES, ids=str)
def test_fused_without_gradients(dtype, scale):
    """Similarities and log-sum-exps of classes in one launch, which reads the rows as they are."""
    for which in ("proxies", "some"):
        for name in ("similarity", "classes", "centers"):
            with torch.no_grad():
                scales.check_value(name, dtype, scale, which, "triton", DEVICE)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(0,), (7,), (3, 5000), (5000, 3)], ids=str)
@pytest.mark.parametrize("value", [1.0, 0.5, -3.0, float("inf"), float("nan")])
def test_scale(value, shape, dtype):
    """By an upstream gradient; with 1 not a bit changes, a NaN's included."""
    G = torch.randn(shape, device=DEVICE).to(dtype)
    factor = torch.tensor(value, dtype=torch.float64 if dtype == torch.float64 else torch.float32, device=DEVICE)
    for matrix in [G] if G.dim() == 1 else [G, G.t()]:
        ours, expected = matrix.clone(memory_format=torch.preserve_format), matrix.clone().mul_(factor)
        TritonRows().scale(ours, factor)
        # The interpreter cuts off what a GPU rounds.
        tolerance = 2.0**-7 if dtype == torch.bfloat16 and DEVICE.type == "cpu" else 0
        torch.testing.assert_close(ours, expected, rtol=tolerance, atol=0, equal_nan=True)


def test_scale_of_columns_leaves_their_neighbours_alone():
    whole = torch.randn(6, 10, device=DEVICE)
    expected = whole.clone()
    expected[:, 2:5] *= 3
    TritonRows().scale(whole[:, 2:5], torch.tensor(3.0, device=DEVICE))
    torch.testing.assert_close(whole, expected, rtol=0, atol=0)
