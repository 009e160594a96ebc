"""Native von Mises–Fisher functions, on the CPU and in CUDA, which is emulated where there is no GPU, against eager."""

import pytest
import torch

from robustdml_ops.ops.vmf.backends import BACKENDS
from tests.vmf.against_eager import FUNCTIONS, compare_fit, compare_function


@pytest.mark.parametrize("function", FUNCTIONS)
def test_against_eager(function, device):
    compare_function("native", function, device)


def test_the_fit_against_eager(device):
    assert compare_fit("native", device) == 102


@pytest.mark.parametrize("count", [1, 7, 300, 10_001])
def test_elements_do_not_depend_on_their_neighbours(device, count, threads):
    threads(2)
    kappa = torch.linspace(0, 200, count, dtype=torch.float64, device=device)
    whole = BACKENDS["native"].evaluate_vmf("ratio", 9.5, kappa)
    each = [BACKENDS["native"].evaluate_vmf("ratio", 9.5, one) for one in kappa[::97].split(1)]
    torch.testing.assert_close(whole[::97], torch.cat(each), rtol=1e-14, atol=0)


def test_lengths_that_are_not_compiled_are_refused(native):
    numbers = {"v": 3.0, "base": 3.0, "constant": 0.0, "log_scale": 0.0, "series_below": 1.0}
    order = native.VmfOrder_f64(**numbers, debye_terms=7, series_terms=48)
    with pytest.raises(ValueError, match="not compiled"):
        native.vmf_ratio_f64(order, 0, 0, 1, 1)
