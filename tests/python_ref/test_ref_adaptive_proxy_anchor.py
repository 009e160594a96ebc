import math

import loop_losses
import pytest
import torch
from ref_cases import Case, assert_same

from python_ref import adaptive_proxy_anchor_loss


@pytest.mark.parametrize(
    ("margins", "whose", "error", "message"),
    [
        *(
            ([*margins], "sample", ValueError, "positive mean")
            for margins in ([0.0], [-0.2], [0.1, -0.3, 0.2], [math.nan])
        ),
        ([1.0, 1.0], "sample", RuntimeError, "expanded size"),
        ([1.0], "both", ValueError, "'both'"),
    ],
)
def test_margins_that_are_refused(margins, whose, error, message):
    with pytest.raises(error, match=message):
        adaptive_proxy_anchor_loss(
            torch.ones(2, 2), torch.ones(3, 2), torch.tensor([0, 1]), torch.tensor(margins), negative_margin=whose
        )


def test_single_negative_margin_is_allowed_while_the_mean_is_positive():
    case = Case(B=4, C=3, D=2, seed=1, zero_weights=False)
    m = torch.tensor([0.4, -0.1, 0.3], dtype=torch.float64)
    X, P, y = case.X.tolist(), case.P.tolist(), case.y.tolist()
    ours = adaptive_proxy_anchor_loss(case.X, case.P, case.y, m, 8.0)
    assert_same(ours.item(), loop_losses.adaptive_proxy_anchor(X, P, y, m.tolist(), 8.0, 1.0, "sample", [1.0] * 4))
