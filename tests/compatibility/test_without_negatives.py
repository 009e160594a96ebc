"""Batches without a negative pair, of the losses that contrast positives with negatives."""

import pytest
import torch
from peers import assert_same, batch, both
from pytorch_metric_learning import reducers


@pytest.mark.parametrize("name", ["SupConLoss", "NTXentLoss"])
def test_without_a_negative_pair(name):
    """Of labels, of a reference set, and of a list: the loss is 0, whatever the positives are."""
    X, Z = batch()[0], batch(1)[0]
    one, none = torch.zeros(len(X), dtype=torch.int64), torch.empty(0, dtype=torch.int64)
    positives = torch.arange(8), torch.arange(8) + 8
    for arguments in ((one,), (torch.arange(len(X)),), (one, None, Z, one), (None, (*positives, none, none))):
        for options in ({}, {"reducer": reducers.MeanReducer}):
            pair = both(name, **options)
            assert_same(pair, X, *arguments)
            assert pair[0](X, *arguments) == 0
    two = torch.arange(len(X)) % 2  # half of the anchors have negatives alone, the others none
    assert_same(both(name), X, two, None, Z, one)
