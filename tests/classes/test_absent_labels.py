"""Labels of one class for each sample that are no class: no term is touched, and their target is −∞."""

import pytest
import torch

from robustdml_ops.ops import ABSENT, ELSEWHERE, class_lse

C = 6


@pytest.mark.parametrize("exclude_target", [False, True])
@pytest.mark.parametrize("label", [ABSENT, ELSEWHERE, C, 2**32, -(2**32)])
def test_the_target_of_a_label_that_is_no_class(label, exclude_target, backend):
    X, P = torch.randn(4, 16), torch.randn(C, 16)
    settings = {"scale": 4.0, "exclude_target": exclude_target, "elsewhere": True, "backend": backend}
    found = []
    for first in (label, ELSEWHERE):
        leaves = X.clone().requires_grad_(), P.clone().requires_grad_()
        lse, target = class_lse(*leaves, torch.tensor([first, 1, 2, 3]), **settings)
        assert target[0] == -torch.inf
        assert torch.isfinite(target[1:]).all()
        found.append([lse.detach(), *torch.autograd.grad(lse.sum() + target[1:].sum(), leaves)])
    torch.testing.assert_close(*found, rtol=0, atol=0)
