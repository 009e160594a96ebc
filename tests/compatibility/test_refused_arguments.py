"""Arguments that no loss has, and those that exclude each other, are refused by name."""

import pytest
import torch
from peers import C, D, batch
from pytorch_metric_learning import distances, reducers, regularizers

import robustdml_ops.losses as ours


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"reducerr": None}, "has no argument 'reducerr': did you mean reducer"),
        ({"weight_inif_func": None}, "has no argument 'weight_inif_func': did you mean weight_init_func"),
        ({"marign": 0.1}, "has no argument 'marign': did you mean margin"),
    ],
)
def test_unknown_arguments(options, message):
    with pytest.raises(TypeError, match=message):
        ours.ProxyAnchorLoss(C, D, **options)
    X, y = batch()
    with pytest.raises(TypeError, match="has no argument 'sample_weight': did you mean sample_weights"):
        ours.ProxyAnchorLoss(C, D)(X, y, sample_weight=torch.ones(len(y)))


def test_arguments_that_exclude_each_other():
    with pytest.raises(ValueError, match="reducer with reduction='none', which gives the losses before"):
        ours.ContrastiveLoss(reduction="none", reducer=reducers.MeanReducer())
    with pytest.raises(ValueError, match="weight_regularizer with reduction='none'"):
        ours.SoftTripleLoss(C, D, reduction="none", weight_regularizer=regularizers.LpRegularizer())
    with pytest.raises(TypeError, match="has no argument 'weight_regularizer'"):
        ours.ContrastiveLoss(weight_regularizer=regularizers.LpRegularizer())
    X, y = batch()
    with pytest.raises(ValueError, match=r"reduction='none' is of the fused sums, and distance=LpDistance"):
        ours.ProxyAnchorLoss(C, D, reduction="none", distance=distances.LpDistance())(X, y)
    with pytest.raises(ValueError, match=r"epsilon=0.1 mines by cosines, not by distance=LpDistance"):
        ours.MultiSimilarityLoss(epsilon=0.1, distance=distances.LpDistance(power=2))(X, y)
