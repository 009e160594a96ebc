"""Values and gradients of the losses on pairs against the dense references and against pytorch-metric-learning."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pair_cases import CPU_BACKENDS, NAMES, PairCase
from pytorch_metric_learning import distances, miners
from pytorch_metric_learning import losses as pml

from python_ref.prism_losses import memory_contrastive_loss
from robustdml_ops.losses import ContrastiveLoss, MemoryContrastiveLoss, MultiSimilarityLoss
from robustdml_ops.ops import ABSENT

SHAPES = [(1, 1, None), (1, 3, 4), (2, 3, None), (5, 2, 1), (17, 7, None), (17, 7, 33), (40, 16, 65), (65, 31, None)]


def assert_close(ours, reference, tolerance=1e-12):
    assert torch.isfinite(ours).all()
    scale = 1 + reference.abs().max()
    torch.testing.assert_close(ours / scale, reference / scale, rtol=0, atol=tolerance)


@pytest.mark.parametrize("backend", CPU_BACKENDS)
@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.usefixtures("small_chunks")
def test_float64_matches_reference(name, weighted, reduction, backend):
    for B, D, m in SHAPES:
        case = PairCase(name, B, D, m, weighted=weighted, reduction=reduction, backend=backend)
        ours, reference = case.ours(), case.reference()
        assert ours.shape == reference.shape
        assert_close(ours, reference)
        for mine, theirs in zip(case.gradients(ours), case.gradients(reference), strict=True):
            assert_close(mine, theirs)


@given(data=st.data())
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_random_cases(data):
    name = data.draw(st.sampled_from(NAMES))
    case = PairCase(
        name=name,
        B=data.draw(st.integers(1, 40)),
        # On a line all vectors are equal or opposite, and √(2 − 2s) of equal ones is the root of what rounding left.
        D=data.draw(st.integers(2 if name == "contrastive" else 1, 40)),
        m=data.draw(st.none() | st.integers(1, 90)),
        classes=data.draw(st.integers(1, 20)),
        weighted=data.draw(st.booleans()),
        reduction=data.draw(st.sampled_from(["mean", "none"])),
        backend=data.draw(st.sampled_from(CPU_BACKENDS)),
        seed=data.draw(st.integers(0, 2**16)),
    )
    ours, reference = case.ours(), case.reference()
    assert_close(ours, reference)
    for mine, theirs in zip(case.gradients(ours), case.gradients(reference), strict=True):
        assert_close(mine, theirs, 1e-11)


@pytest.mark.parametrize("backend", CPU_BACKENDS)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("m", [None, 900])
def test_float32_is_as_good_as_the_reference_in_float32(name, m, backend):
    case = PairCase(name, 130, 48, m, classes=30, dtype=torch.float32, backend=backend)
    if name == "ms-mined":
        case.module.epsilon = case.options["epsilon"] = 0.0517  # no pair within rounding of the edge
    exact = case.reference(torch.float64)
    theirs, ours = case.reference(), case.ours()
    pairs = [(ours, theirs, exact), *zip(*map(case.gradients, (ours, theirs, exact)), strict=True)]
    for mine, dense, truth in pairs:
        allowed = 4 * (dense - truth).abs().max() + 1e-6 * truth.abs().max()
        assert (mine - truth).abs().max() <= allowed


@pytest.mark.parametrize("variant", ["paper", "xbm", "authors"])
def test_memory_loss_is_that_of_the_paper(variant):
    """The reference by sample, to which the others are compared, sums to the reference of the equations."""
    case = PairCase(f"memory-{variant}", 12, 5, 20, reduction="none")
    case.bank_labels = torch.where(case.bank_labels == ABSENT, 1, case.bank_labels)  # that one has no absent rows
    total = memory_contrastive_loss(case.embeddings, case.labels, case.bank, case.bank_labels, 0.2, variant)
    torch.testing.assert_close(case.ours().sum() / (1 if variant == "paper" else 12), total)


PML = {
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


@pytest.mark.parametrize("name", PML)
@pytest.mark.parametrize("bank", [False, True])
@pytest.mark.parametrize("classes", [1, 2, 6, 300])
def test_takes_the_place_of_pytorch_metric_learning(name, bank, classes):
    """Same constructor, values and gradients, −1 a class; of 300 most samples have no positive, of one no negative."""
    torch.use_deterministic_algorithms(False)  # its miner has no deterministic sort of its own
    ours, theirs, miner = PML[name]
    case = PairCase("ms", 31, 9, 50 if bank else None, classes=classes)
    case.labels = case.labels - 1
    reference = (case.bank, torch.where(case.bank_labels == ABSENT, 1, case.bank_labels) - 1) if bank else (None, None)
    pairs = None if miner is None else miner(case.embeddings, case.labels, *reference)
    results = []
    for loss in (
        ours(case.embeddings, case.labels, None, *reference),
        theirs(case.embeddings, case.labels, pairs, *reference),
    ):
        results.append([loss, *torch.autograd.grad(loss, case.inputs)])
    for mine, other in zip(*results, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("variant", ["paper", "xbm", "authors"])
def test_a_filtered_batch_with_a_memory(variant, reduction):
    """With a mask for weights: by the number kept, or as the authors of PRISM the bank's term by that of all."""
    case = PairCase(f"memory-{variant}", 12, 5, 20, reduction=reduction)
    case.bank_labels = torch.where(case.bank_labels == ABSENT, 1, case.bank_labels)
    keep = torch.arange(12) % 3 != 1
    case.weights = keep.double()
    expected = memory_contrastive_loss(
        case.embeddings, case.labels, case.bank, case.bank_labels, 0.2, variant, keep
    ) * (8 if variant != "paper" else 1)
    ours = case.ours()
    ours = ours.sum() if reduction == "none" else ours * 8
    torch.testing.assert_close(ours, expected)
    torch.testing.assert_close(
        *(torch.autograd.grad(loss, case.embeddings)[0] for loss in (ours, expected)), rtol=1e-9, atol=1e-12
    )


def test_the_weight_of_the_memory_by_hand():
    """Two of three samples kept; a negative pair of the batch at s = 0.8, and two with the bank at 0.6 and 0.96."""
    X = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]], dtype=torch.float64)
    y, bank = torch.tensor([0, 1, 0]), torch.tensor([[0.6, 0.8]], dtype=torch.float64)
    keep = torch.tensor([1.0, 1.0, 0.0], dtype=torch.float64)
    for variant, expected in (("xbm", (0.8 + 0.8 + 0.4 + 0.96) / 2), ("authors", (0.8 + 0.8) / 2 + (0.4 + 0.96) / 3)):
        loss = MemoryContrastiveLoss(0.5, variant=variant)(X, y, None, bank, torch.tensor([0]), sample_weights=keep)
        assert float(loss) == pytest.approx(expected, rel=1e-12)
