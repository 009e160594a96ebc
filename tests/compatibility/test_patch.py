"""One line puts the fused losses in place of the peer's, for scripts that look them up by name."""

import pytest
import pytorch_metric_learning.losses as theirs
from peers import NAMES, batch

import robustdml_ops
import robustdml_ops.losses as ours


def test_all_are_replaced_and_put_back():
    before = dict(vars(theirs))
    X, y = batch()
    with robustdml_ops.patch_pytorch_metric_learning() as patch:
        assert patch.replaced == {name: before[name] for name in NAMES}
        assert {name for name, value in vars(theirs).items() if value is not before[name]} == set(NAMES)
        assert robustdml_ops.patch_pytorch_metric_learning().replaced == {}
        loss_function = theirs.ContrastiveLoss(distance=None)
        assert type(loss_function) is ours.ContrastiveLoss
        wrapped = theirs.CrossBatchMemory(loss_function, X.shape[1])
        assert wrapped(X, y).requires_grad
    assert dict(vars(theirs)) == before
    patch.undo()
    assert dict(vars(theirs)) == before


def test_the_dense_code_is_still_the_peers():
    """A replaced name that led back to ours would never end."""
    X, y = batch()
    expected = theirs.ProxyAnchorLoss
    with robustdml_ops.patch_pytorch_metric_learning():
        loss_function = theirs.ProxyAnchorLoss(9, 8, distance=theirs.ContrastiveLoss().distance).double()
        with pytest.warns(UserWarning, match="dense code"):
            loss_function(X, y).backward()
    assert theirs.ProxyAnchorLoss is expected


def test_names_that_are_not_here():
    with pytest.raises(AttributeError, match="'TripletMarginLoss': it stays in pytorch-metric-learning"):
        ours.TripletMarginLoss  # noqa: B018
    with pytest.raises(AttributeError, match=r"'ProxyAnkorLoss': did you mean ProxyAnchorLoss\?"):
        ours.ProxyAnkorLoss  # noqa: B018
    assert not hasattr(ours, "TripletMarginLoss")
