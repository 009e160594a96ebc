"""Every argument of the shared losses does what it does in pytorch-metric-learning."""

import copy
import warnings

import pytest
import torch
from peers import CLASS_NAMES, MARGIN_NAMES, NAMES, PAIR_NAMES, SIZES, C, D, assert_same, batch, both
from pytorch_metric_learning import distances, miners, reducers, regularizers
from pytorch_metric_learning.losses import BaseMetricLossFunction

import robustdml_ops.losses as ours
from robustdml_ops.losses.peer.package import peer_losses

MINERS = {
    "multi-similarity": lambda: miners.MultiSimilarityMiner(epsilon=0.1),
    "pair margin": lambda: miners.PairMarginMiner(pos_margin=0.2, neg_margin=1.1),
    "triplets": lambda: miners.TripletMarginMiner(margin=0.3),
    "batch hard": miners.BatchHardMiner,
    "nothing found": lambda: lambda X, y, *_: (torch.zeros(0, dtype=torch.int64),) * 4,
}


pytestmark = pytest.mark.usefixtures("as_in_training")  # theirs is not deterministic


@pytest.mark.parametrize("name", NAMES)
def test_same_seed(name):
    """The same initial values, and the generator is left in the same state."""
    states = []
    for module in (ours, peer_losses):
        torch.manual_seed(3)
        loss = getattr(module, name)(**NAMES[name])
        states.append((list(loss.parameters()), torch.get_rng_state()))
    (mine, my_state), (others, other_state) = states
    assert torch.equal(my_state, other_state)
    assert all(torch.equal(a, b) and a.stride() == b.stride() for a, b in zip(mine, others, strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_attributes(name):
    mine, other = both(name)
    assert isinstance(mine, BaseMetricLossFunction)
    assert mine.sub_loss_names() == other.sub_loss_names()
    for attribute in other._record_these:
        # Theirs is 0 where the constructor sets none.
        assert getattr(mine, attribute) == (getattr(other, attribute) or getattr(mine, attribute)), attribute
    assert mine._record_these == other._record_these
    assert repr(mine.distance) == repr(other.distance)
    assert repr(mine.reducer) == repr(other.reducer)
    assert mine.collect_stats == other.collect_stats
    assert set(mine.state_dict()) == set(other.state_dict())
    assert_same((copy.deepcopy(mine), other), *batch())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("miner", MINERS)
def test_pairs_of_a_miner(name, miner):
    X, y = batch()
    found = MINERS[miner]()(X, y)
    assert len(found[0]) > 2 or miner == "nothing found"
    assert_same(both(name), X, y, found)
    assert_same(both(name), X, y, indices_tuple=found)


@pytest.mark.parametrize("name", PAIR_NAMES)
@pytest.mark.parametrize("miner", MINERS)
def test_pairs_with_a_reference_set(name, miner):
    X, y = batch()
    Z, z = batch(1, 40)
    found = MINERS[miner]()(X, y, Z, z)
    assert_same(both(name), X, y, found, Z, z)
    assert_same(both(name), X, None, found, Z, None)


@pytest.mark.parametrize("name", PAIR_NAMES)
def test_pairs_without_labels_given_twice(name):
    X, _ = batch()
    a, p, n = torch.tensor([0, 0, 3]), torch.tensor([1, 1, 2]), torch.tensor([5, 6, 5])
    assert_same(both(name), X, None, (a, p, n))
    with pytest.raises(ValueError, match="labels are missing"):
        both(name)[0](X)


def test_a_pair_is_positive_or_negative():
    X, _ = batch()
    a, p, n = torch.tensor([0, 3]), torch.tensor([1, 2]), torch.tensor([5, 2])
    with pytest.raises(ValueError, match=r"indices_tuple has pair \(3, 2\) as positive and as negative"):
        both("MultiSimilarityLoss")[0](X, None, (a, p, n))


@pytest.mark.parametrize("name", PAIR_NAMES)
def test_few_pairs_of_a_large_batch_are_gathered(name):
    """2,000 pairs of 1,000 × 1,000: a matrix of them would be 500 times as large."""
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(1000, D, generator=generator, dtype=torch.float64, requires_grad=True)
    anchors = torch.randint(500, (2, 1000), generator=generator)
    partners = torch.randint(1000, (2, 1000), generator=generator)
    # Positives have anchors of their own: no pair is both.
    assert_same(both(name), X, None, (anchors[0], partners[0], anchors[1] + 500, partners[1]))


@pytest.mark.parametrize("name", PAIR_NAMES)
def test_a_second_view_of_the_batch(name):
    """Where the labels are the same tensor, row i of the reference set is no pair of sample i."""
    X, y = batch()
    Z = (X + 0.1 * torch.randn_like(X)).detach().requires_grad_()
    pair = both(name)
    assert_same(pair, X, y, ref_emb=Z, ref_labels=y)
    assert_same(pair, X, y, ref_emb=Z)
    assert_same(pair, X, y, ref_emb=Z, ref_labels=y.clone())
    assert not torch.allclose(pair[0](X, y, ref_emb=Z, ref_labels=y), pair[0](X, y, ref_emb=Z, ref_labels=y.clone()))


@pytest.mark.parametrize("name", PAIR_NAMES)
@pytest.mark.parametrize(
    "relabel",
    [lambda y: y - 4, lambda y: y.double() / 7, lambda y: y.float(), lambda y: y % 2 == 0, lambda y: y * 2**40],
    ids=["below 0", "fractions", "float32", "bool", "large"],
)
def test_labels_of_any_kind(name, relabel):
    X, y = batch()
    Z, z = batch(1, 40)
    assert_same(both(name), X, relabel(y))
    assert_same(both(name), X, relabel(y), None, Z, relabel(z))


def test_labels_of_classes():
    X, y = batch()
    for name in CLASS_NAMES:
        loss = getattr(ours, name)(C, D)
        for given, numbers in ((y.float(), y), (y.int(), y), (y % 2 == 0, (y % 2 == 0).long())):
            torch.testing.assert_close(loss(X, given), loss(X, numbers))


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


WEIGHTS = torch.linspace(0.5, 2, C)
REDUCERS = {
    "mean": reducers.MeanReducer,
    "sum": reducers.SumReducer,
    "above": lambda: reducers.ThresholdReducer(low=0.3),
    "below": lambda: reducers.ThresholdReducer(high=1.5),
    "between": lambda: reducers.ThresholdReducer(low=0.1, high=1.2),
    "not zero": reducers.AvgNonZeroReducer,
    "by class": lambda: reducers.ClassWeightedReducer(WEIGHTS),
    "by anchor": reducers.PerAnchorReducer,
}
DENSE_ON_PAIRS = ("below", "between", "by anchor")  # of the losses that a reducer sees one for each pair


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("reducer", REDUCERS)
def test_reducers(name, reducer):
    X, y = batch()
    pair = both(name, reducer=REDUCERS[reducer])
    if name == "ContrastiveLoss" and reducer in DENSE_ON_PAIRS:
        with pytest.warns(UserWarning, match=r"ContrastiveLoss with reducer=.* dense code.*matrices of batch × cand"):
            assert_same(pair, X, y)
    if name == "ProxyAnchorLoss" and reducer == "by class":
        return  # it would take the labels of samples at the places of proxies
    if name == "MultiSimilarityLoss" and reducer == "by class":
        # Theirs are (B, 1), of which the product with B weights is B × B.
        losses = both(name)[1].compute_loss(X, y, None, X, y)["loss"]["losses"].squeeze(1)
        torch.testing.assert_close(pair[0](X, y), (losses * WEIGHTS[y]).mean())
        return
    assert_same(pair, X, y)
    if name in PAIR_NAMES and reducer != "by anchor":  # theirs takes the batch alone
        assert_same(pair, X, y, None, *batch(1, 40))
    assert_same(pair, X, y, miners.MultiSimilarityMiner()(X, y))


def test_class_weights_beside_samples_that_are_absent():
    """A sample of weight 0 has no class of its own in the sums, but its label still has a weight."""
    X, y = batch()
    kept = torch.arange(len(y)) % 4 > 0
    loss = both("ContrastiveLoss", reducer=REDUCERS["by class"])[0]
    masked, without = loss(X, y, sample_weights=kept.double()), loss(X[kept], y[kept])
    torch.testing.assert_close(masked, without)
    with pytest.raises(ValueError, match="ClassWeightedReducer weighs by labels, and there are none"):
        loss(X, None, (torch.tensor([0, 1]), torch.tensor([1, 0]), torch.tensor([2, 3]), torch.tensor([5, 6])))


@pytest.mark.parametrize("reducer", REDUCERS)
@pytest.mark.parametrize(("name", "count"), [("MultiSimilarityLoss", 0), ("NTXentLoss", 3), ("SupConLoss", 0)])
def test_a_reducer_of_no_samples_or_no_pairs_gives_0(name, count, reducer):
    assert getattr(ours, name)(reducer=REDUCERS[reducer]())(torch.randn(count, D), torch.arange(count)) == 0


@pytest.mark.parametrize("name", NAMES)
def test_losses_before_they_are_reduced(name):
    X, y = batch()
    pair = both(name, reducer=reducers.DoNothingReducer)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore" if name == "ContrastiveLoss" else "error")
        mine, other = (loss(X, y) for loss in pair)
    assert mine.keys() == other.keys()
    for part in mine:
        torch.testing.assert_close(mine[part]["losses"], other[part]["losses"].squeeze())  # (B, 1) of one loss
        assert mine[part]["reduction_type"] == other[part]["reduction_type"]


DISTANCES = {
    "cosine": distances.CosineSimilarity,
    "dot product": distances.DotProductSimilarity,
    "squared cosine": lambda: distances.CosineSimilarity(power=2),
    "long dot product": lambda: distances.DotProductSimilarity(normalize_embeddings=False),
    "euclidean": distances.LpDistance,
    "squared": lambda: distances.LpDistance(power=2),
    "long euclidean": lambda: distances.LpDistance(normalize_embeddings=False),
    "taxicab": lambda: distances.LpDistance(p=1),
    "signal to noise": distances.SNRDistance,
}
FUSED = {
    "ProxyAnchorLoss": ("cosine", "dot product"),
    "ProxyNCALoss": ("cosine", "dot product", "squared"),
    "NormalizedSoftmaxLoss": ("cosine", "dot product", "squared"),
    "SoftTripleLoss": ("cosine", "dot product"),
    **dict.fromkeys(MARGIN_NAMES, ("cosine",)),
    "MultiSimilarityLoss": ("cosine", "dot product", "squared"),
    "ContrastiveLoss": ("cosine", "dot product", "squared", "euclidean"),
    **dict.fromkeys(("SupConLoss", "NTXentLoss"), ("cosine", "dot product", "squared")),
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("distance", DISTANCES)
def test_distances(name, distance):
    X, y = batch()
    of_cosines = isinstance(DISTANCES[distance](), distances.CosineSimilarity)
    if not (of_cosines if name in MARGIN_NAMES else name != "SoftTripleLoss" or DISTANCES[distance]().is_inverted):
        for module in (ours, peer_losses):
            with pytest.raises((AssertionError, ValueError)):
                getattr(module, name)(**SIZES, distance=DISTANCES[distance]())
        return
    pair = both(name, distance=DISTANCES[distance])
    if distance in FUSED[name]:
        assert_same(pair, X, y, rtol=1e-6)
    else:
        with pytest.warns(UserWarning, match=rf"{name} with distance=.* runs in pytorch-metric-learning's dense code"):
            assert_same(pair, X, y)
        assert_same(pair, X, y, miners.MultiSimilarityMiner()(X, y))  # warns once
        with pytest.raises(ValueError, match="sample_weights is of the fused sums, and distance="):
            pair[0](X, y, sample_weights=torch.ones(len(y)))
    if name in CLASS_NAMES:
        torch.testing.assert_close(pair[0].get_logits(X), pair[1].get_logits(X))


@pytest.mark.parametrize("name", NAMES)
def test_regularisers(name):
    X, y = batch()
    options = {"embedding_regularizer": regularizers.LpRegularizer, "embedding_reg_weight": 0.3}
    if name in CLASS_NAMES:
        options |= {"weight_regularizer": regularizers.RegularFaceRegularizer, "weight_reg_weight": 0.2}
    pair = both(name, **options)
    assert pair[0].sub_loss_names() == pair[1].sub_loss_names()
    assert_same(pair, X, y)
    assert_same(both(name, reducer=reducers.MeanReducer, **options), X, y)
    with pytest.warns(UserWarning, match="dense code"):
        assert_same(both(name, distance=lambda: distances.CosineSimilarity(power=2), **options), X, y)


@pytest.mark.parametrize("name", CLASS_NAMES)
def test_initialisation(name):
    def constant(weights):
        torch.nn.init.constant_(weights, 0.25)

    pair = both(name, weight_init_func=lambda: constant)
    assert all(torch.equal(mine, other) for mine, other in zip(*(loss.parameters() for loss in pair), strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_statistics(name):
    X, y = batch()
    options = {
        "distance": lambda: type(both(name)[1].distance)(collect_stats=True, power=both(name)[1].distance.power),
        "reducer": lambda: reducers.MeanReducer(collect_stats=True),
        "collect_stats": True,
    }
    pair = both(name, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore" if name == "ContrastiveLoss" else "error")
        assert_same(pair, X, y)
    norms = ["initial_avg_query_norm", "final_avg_query_norm", "initial_avg_ref_norm", "final_avg_ref_norm"]
    if name == "NormalizedSoftmaxLoss":
        norms.remove("initial_avg_ref_norm")  # theirs normalises the weights before it asks
    for part in norms:
        assert getattr(pair[0].distance, part) == pytest.approx(getattr(pair[1].distance, part)), part
    sizes = [
        [part.losses_size for part in getattr(loss.reducer, "reducers", {"loss": loss.reducer}).values()]
        for loss in pair
    ]
    assert sizes[0] == sizes[1]


@pytest.mark.parametrize("name", CLASS_NAMES)
def test_float64_embeddings_widen_the_parameters(name):
    """As theirs do; half-precision embeddings leave them as they are, where theirs are half precision from then on."""
    X, y = batch()
    loss = getattr(ours, name)(C, D)
    loss(X.half(), y).backward()
    assert next(loss.parameters()).dtype == torch.float32
    loss.zero_grad(set_to_none=True)
    loss(X, y).backward()
    assert next(loss.parameters()).dtype == next(loss.parameters()).grad.dtype == torch.float64


@pytest.mark.parametrize("name", NAMES)
def test_subclasses(name):
    kind = getattr(ours, name)

    class Doubled(kind):
        def compute_loss(self, *arguments):
            parts = super().compute_loss(*arguments)
            return {key: {**part, "losses": 2 * part["losses"]} for key, part in parts.items()}

    X, y = batch()
    plain = both(name)[0]
    torch.manual_seed(0)
    doubled = Doubled(**NAMES[name]).double()
    torch.testing.assert_close(doubled(X, y), 2 * plain(X, y))
    with pytest.raises(TypeError, match=r"Wrong._compute_loss is a step of pytorch-metric-learning's dense code"):
        type("Wrong", (kind,), {"_compute_loss": lambda self: None})


@pytest.mark.parametrize(
    ("wrong", "right"), [("reducerr", "reducer"), ("weight_inif_func", "weight_init_func"), ("marign", "margin")]
)
def test_unknown_arguments(wrong, right):
    with pytest.raises(TypeError, match=f"has no argument '{wrong}': did you mean {right}"):
        ours.ProxyAnchorLoss(C, D, **{wrong: None})
    X, y = batch()
    for name in ("sample_weight", "weight", "weights"):
        with pytest.raises(TypeError, match=f"has no argument '{name}': did you mean sample_weights"):
            ours.ProxyAnchorLoss(C, D)(X, y, **{name: torch.ones(len(y))})


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
