"""Settings do what they do in pytorch-metric-learning, by place as by name."""

import copy

import pytest
import torch
from peers import CLASS_NAMES, NAMES, PAIR_NAMES, C, D, assert_same, batch, both, values
from pytorch_metric_learning import distances, miners, reducers, regularizers

import robustdml_ops.losses as ours
from robustdml_ops.losses.peer.package import peer_losses

SETTINGS = [
    ("ProxyAnchorLoss", {"margin": 0.2, "alpha": 20}),
    ("ProxyNCALoss", {"softmax_scale": 9}),
    ("CosFaceLoss", {"margin": 0.1, "scale": 9}),
    *(("ArcFaceLoss", {"margin": margin, "scale": 9}) for margin in (90, 200, -20)),  # half a turn and more
    ("SubCenterArcFaceLoss", {"margin": 40, "scale": 9, "sub_centers": 5}),
    ("SoftTripleLoss", {"centers_per_class": 4, "la": 10, "gamma": 0.3, "margin": 0.2}),
    ("MultiSimilarityLoss", {"alpha": 3, "beta": 40, "base": 0.4}),
    ("ContrastiveLoss", {"pos_margin": 0.3, "neg_margin": 1.2}),
    ("ContrastiveLoss", {"pos_margin": 1, "neg_margin": 0.5, "distance": distances.CosineSimilarity}),
]


@pytest.mark.parametrize(("name", "options"), SETTINGS)
def test_settings(name, options):
    """By place as by name, each with states of the other; of one class, and of classes of one sample."""
    pair = both(name, **options)
    theirs = copy.deepcopy(pair[1])
    pair[0].load_state_dict(theirs.state_dict())
    X, y = batch()
    for labels in (y, y % 2, *((y * 0, torch.arange(len(y))) if name in PAIR_NAMES else ())):
        assert_same(pair, X, labels)
        if name in PAIR_NAMES:
            assert_same(pair, X, labels - 1, None, *batch(1, 40))
    theirs.load_state_dict(pair[0].state_dict())
    if name in CLASS_NAMES:
        torch.testing.assert_close(pair[0].get_logits(X), theirs.get_logits(X))
    if "distance" not in options:
        by_place = getattr(ours, name)(*NAMES[name].values(), *options.values())
        assert all(getattr(by_place, key) == getattr(pair[0], key) for key in options)


def test_mining_within_the_loss():
    X, y = batch()
    Z, z = batch(1, 40)
    loss, other = ours.MultiSimilarityLoss(epsilon=0.1), both("MultiSimilarityLoss")[1]
    miner = miners.MultiSimilarityMiner(epsilon=0.1)
    for given in ((X, y), (X, y, Z, z)):
        expected = values(other, X, y, miner(*given), *given[2:])
        torch.testing.assert_close(values(loss, X, y, None, *given[2:]), expected, rtol=1e-9, atol=1e-11)


def test_the_least_likely_sample_is_not_dropped():
    """Its probability is 0 in float32; pytorch-metric-learning's mean is over the other sample alone."""
    X = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    mine, other = (module.ProxyNCALoss(2, 2, softmax_scale=30) for module in (ours, peer_losses))
    for loss in (mine, other):
        loss.proxies.data = X.clone()
    labels = torch.tensor([0, 0])
    torch.testing.assert_close(mine(X, labels), torch.tensor(60.0))  # (0 + 120) / 2
    assert other(X, labels) == 0


def test_regularizer_of_centers():
    mine, other = (module.SoftTripleLoss for module in (ours, peer_losses))
    theirs = {"weight_regularizer": regularizers.SparseCentersRegularizer(C, 4), "weight_reg_weight": 0.2}
    pair = [mine(C, D, 4, regularizer_weight=0.2).double(), other(C, D, 4, **theirs).double()]
    pair[1].load_state_dict(pair[0].state_dict())
    assert_same(pair, *batch())


@pytest.mark.parametrize("ignored", [False, True])
@pytest.mark.parametrize("statistics", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_absent_samples_are_as_if_they_were_not_there(name, statistics, ignored):
    """By their label or weight. Statistics do not change the mean, which is over the other samples."""
    if statistics and name == "ContrastiveLoss":
        pytest.skip("it is dense with statistics")
    X, y = batch()
    loss = both(name, **({"reducer": lambda: reducers.MeanReducer(collect_stats=True)} if statistics else {}))[0]
    kept = y != 2 if ignored else torch.arange(len(y)) % 4 > 0
    expected = values(loss, X[kept].detach().requires_grad_(), y[kept])
    loss.ignore_index = 2 if ignored else None
    found = values(loss, X, y, sample_weights=None if ignored else kept)
    assert not found[1][~kept].any()
    found[1] = found[1][kept]
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("ContrastiveLoss", {"pos_loss": reducers.MeanReducer(), "neg_loss": reducers.ThresholdReducer(low=0.2)}),
        ("ContrastiveLoss", {"pos_loss": reducers.AvgNonZeroReducer()}),
        *((name, {"pos_loss": reducers.SumReducer()}) for name in ("ContrastiveLoss", "ProxyAnchorLoss")),
        *((name, {}) for name in ("SupConLoss", "ProxyAnchorLoss")),
    ],
)
def test_reducers_of_each_part(name, parts):
    """A part without one has the common one, theirs a mean over all pairs or proxies."""
    assert_same(both(name, reducer=lambda: reducers.MultipleReducers(copy.deepcopy(parts))), *batch())
