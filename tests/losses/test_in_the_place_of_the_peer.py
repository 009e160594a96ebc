"""The losses with other settings in the place of pytorch-metric-learning's; tests/compatibility has the defaults."""

import pytest
import torch
from cases import make_case
from pytorch_metric_learning import distances, miners
from pytorch_metric_learning import losses as pml
from pytorch_metric_learning.regularizers import SparseCentersRegularizer

from robustdml_ops.losses import (
    ArcFaceLoss,
    ContrastiveLoss,
    CosFaceLoss,
    MultiSimilarityLoss,
    ProxyAnchorLoss,
    ProxyNCALoss,
    SoftTripleLoss,
    SubCenterArcFaceLoss,
)
from robustdml_ops.ops import ABSENT

REGULARIZER = SparseCentersRegularizer(30, 4)
PEERS = {
    "proxy-anchor": (
        ProxyAnchorLoss(30, 12, margin=0.2, alpha=20),
        pml.ProxyAnchorLoss(30, 12, margin=0.2, alpha=20),
    ),
    "proxy-nca scaled": (ProxyNCALoss(30, 12, softmax_scale=9), pml.ProxyNCALoss(30, 12, softmax_scale=9)),
    "cosface settings": (CosFaceLoss(30, 12, 0.1, 9), pml.CosFaceLoss(30, 12, margin=0.1, scale=9)),
    "arcface settings": (ArcFaceLoss(30, 12, 90, 9), pml.ArcFaceLoss(30, 12, 90, 9)),
    "arcface, half a turn and more": (ArcFaceLoss(30, 12, 200, 9), pml.ArcFaceLoss(30, 12, 200, 9)),
    "arcface, a negative margin": (ArcFaceLoss(30, 12, -20, 9), pml.ArcFaceLoss(30, 12, -20, 9)),
    "subcenter-arcface settings": (
        SubCenterArcFaceLoss(30, 12, 40, 9, 5),
        pml.SubCenterArcFaceLoss(num_classes=30, embedding_size=12, margin=40, scale=9, sub_centers=5),
    ),
    "soft-triple settings": (
        SoftTripleLoss(30, 12, 4, 10, 0.3, 0.2, regularizer_weight=0.2),
        pml.SoftTripleLoss(30, 12, 4, 10, 0.3, 0.2, weight_regularizer=REGULARIZER, weight_reg_weight=0.2),
    ),
}


@pytest.mark.parametrize("peer", PEERS)
def test_a_loss_with_a_class_matrix(peer):
    """Same constructor, state_dict, values, gradients and logits."""
    ours, theirs = (module.double() for module in PEERS[peer])
    ours.load_state_dict(theirs.state_dict())
    torch.manual_seed(0)
    embeddings, labels = torch.randn(17, 12, dtype=torch.float64, requires_grad=True), torch.randint(30, (17,))
    results = []
    for loss_function in (ours, theirs):
        loss = loss_function(embeddings, labels)
        parameter = next(iter(loss_function.parameters()))
        gradients = torch.autograd.grad(loss, (embeddings, parameter))
        results.append([loss, *gradients, loss_function.get_logits(embeddings)])
    torch.testing.assert_close(*results, rtol=1e-9, atol=1e-11)
    theirs.load_state_dict(ours.state_dict())


def test_the_least_likely_sample_is_not_dropped():
    """Its probability is 0 in float32; pytorch-metric-learning's mean is over the other sample alone."""
    X = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    settings = {"num_classes": 2, "embedding_size": 2, "softmax_scale": 30}
    ours, theirs = ProxyNCALoss(**settings), pml.ProxyNCALoss(**settings)
    for loss_function in (ours, theirs):
        loss_function.proxies.data = X.clone()
    labels = torch.tensor([0, 0])
    torch.testing.assert_close(ours(X, labels), torch.tensor(60.0))  # (0 + 120) / 2
    assert theirs(X, labels) == 0


PAIRS = {
    "ms": (MultiSimilarityLoss(alpha=3, beta=40, base=0.4), pml.MultiSimilarityLoss(alpha=3, beta=40, base=0.4), None),
    "ms-mined": (MultiSimilarityLoss(epsilon=0.1), pml.MultiSimilarityLoss(), miners.MultiSimilarityMiner(epsilon=0.1)),
    "contrastive": (ContrastiveLoss(), pml.ContrastiveLoss(), None),
    "contrastive-margins": (ContrastiveLoss(0.3, 1.2), pml.ContrastiveLoss(0.3, 1.2), None),
    "contrastive-cosine": (
        ContrastiveLoss(1, 0.5, distance="cosine"),
        pml.ContrastiveLoss(1, 0.5, distance=distances.CosineSimilarity()),
        None,
    ),
}


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("bank", [False, True])
@pytest.mark.parametrize("classes", [1, 2, 6, 300])
def test_a_loss_on_pairs(name, bank, classes):
    """Same constructor, values and gradients, −1 a class; of 300 most samples have no positive, of one no negative."""
    torch.use_deterministic_algorithms(False)  # its miner has no deterministic sort of its own
    ours, theirs, miner = PAIRS[name]
    case = make_case("ms, a bank" if bank else "ms", 31, classes, 9, m=50)
    case.labels = case.labels - 1
    reference = (case.bank, torch.where(case.bank_labels == ABSENT, 1, case.bank_labels) - 1) if bank else (None, None)
    pairs = None if miner is None else miner(case.embeddings, case.labels, *reference)
    results = []
    for loss in (
        ours(case.embeddings, case.labels, None, *reference),
        theirs(case.embeddings, case.labels, pairs, *reference),
    ):
        results.append([loss, *torch.autograd.grad(loss, case.inputs)])
    torch.testing.assert_close(*results, rtol=1e-9, atol=1e-12)
