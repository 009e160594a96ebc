import math

import pytest
import torch
from ref_cases import assert_same

from python_ref import log_one_plus_sum_exp, mean_over_samples
from python_ref.anchor import log_sample_weights, reduce_proxies


def test_empty_sets_are_exactly_zero_with_zero_gradient():
    z = torch.tensor([[5.0, math.inf], [1.0, 2.0]], requires_grad=True)
    terms = log_one_plus_sum_exp(z, torch.tensor([[False, False], [True, False]]))
    assert terms[0] == 0
    terms.sum().backward()
    assert z.grad[0].tolist() == [0, 0]
    assert z.grad[1, 1] == 0
    assert_same(z.grad[1, 0], torch.tensor(1.0).sigmoid(), 1e-6)


@pytest.mark.parametrize("exponent", [-700.0, -80.0, -1.0, 0.0, 1.0, 30.0, 88.0, 1000.0, 1e6])
def test_log_sum_exp_of_one_term_is_softplus(exponent):
    z = torch.tensor([[exponent]], dtype=torch.float64, requires_grad=True)
    term = log_one_plus_sum_exp(z, torch.tensor([[True]]))
    expected = max(exponent, 0) + math.log1p(math.exp(-abs(exponent)))
    # Relative, with no absolute part: a tiny sum must not be rounded away against the 1.
    torch.testing.assert_close(term.item(), expected, rtol=1e-14, atol=0)
    term.backward()
    assert_same(z.grad.item(), torch.tensor(exponent, dtype=torch.float64).sigmoid().item())


@pytest.mark.parametrize("bad", [-0.5, math.nan])
def test_bad_weights_are_refused(bad):
    with pytest.raises(ValueError, match="sample_weights"):
        log_sample_weights(torch.tensor([1.0, bad]), torch.zeros(2, 1))


@pytest.mark.parametrize("reduce", [reduce_proxies, lambda losses, how: mean_over_samples(losses, reduction=how)])
def test_unknown_reduction_is_refused(reduce):
    with pytest.raises(ValueError, match=r"'max'|reduction"):
        reduce(torch.zeros(2), "max")
