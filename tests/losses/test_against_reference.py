"""Values and all gradients of the fused losses against the dense references."""

import pytest
import torch
from cases import (
    ANCHOR_NAMES,
    ANY_PAIRS,
    BANK_NAMES,
    MATRIX_NAMES,
    NAMES,
    assert_close,
    assert_same,
    bspml_loss,
    make_case,
)

import python_ref
from python_ref.prism_losses import memory_contrastive_loss
from robustdml_ops.losses import (
    AdaFaceLoss,
    AdaptiveProxyAnchorLoss,
    BSPMLLoss,
    SmoothProxyAnchorLoss,
    SoftTripleLoss,
    SupConLoss,
)
from robustdml_ops.ops import ABSENT, similarity

SHAPES = [(1, 2, 1), (2, 3, 2), (5, 2, 3), (17, 33, 7), (64, 65, 16), (3, 500, 31)]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.usefixtures("small_chunks")
def test_float64_matches_reference(name, backend):
    for shape, (reduction, weighted) in zip(SHAPES, 2 * [("mean", False), ("mean", True), ("none", True)], strict=True):
        assert_same(make_case(name, *shape, weighted=weighted, reduction=reduction, backend=backend), 1e-11)


@pytest.mark.parametrize("name", NAMES)
def test_a_sum_is_that_of_the_losses(name, backend):
    """For Proxy-Anchor losses, whose terms are divided already, also their mean."""
    found = []
    for reduction in ("sum", "none", "mean"):
        case = make_case(name, 17, 33, 7, weighted=True, reduction=reduction, backend=backend)
        loss = case.ours()
        if name == "soft-triple" and reduction == "none":
            loss = loss.sum() + case.module.regularizer()
        total = loss.sum()
        found.append((loss.dim(), total, torch.autograd.grad(total, case.embeddings)[0]))
    assert found[0][0] == 0
    assert_close(found[0][1], found[1][1])
    assert_close(found[0][2], found[1][2])
    if name in ANCHOR_NAMES:
        assert_close(found[0][1], found[2][1])


@pytest.mark.parametrize("name", NAMES)
def test_float32_is_as_good_as_the_reference_in_float32(name, backend):
    B, C = (70, 900 if name in ANCHOR_NAMES else 300) if name in MATRIX_NAMES else (130, 30)
    options = {"m": 900} if name in BANK_NAMES else {}
    case = make_case(name, B, C, 48, dtype=torch.float32, backend=backend, **options)
    exact, theirs, ours = case.reference(torch.float64), case.reference(), case.ours()
    pairs = [(ours, theirs, exact), *zip(*map(case.gradients, (ours, theirs, exact)), strict=True)]
    for mine, dense, truth in pairs:
        allowed = 4 * (dense - truth).abs().max() + 1e-6 * truth.abs().max()
        assert (mine - truth).abs().max() <= allowed


def away_from_cosines(case):
    """A limit for similar negatives in the widest gap of the cosines from 0.2 to 0.4: rounding moves none across it."""
    cosines = similarity(case.embeddings.detach().double(), case.by_rows(case.parameter.detach()).double()).flatten()
    near = cosines[(cosines > 0.2) & (cosines < 0.4)].sort().values
    widest = int(near.diff().argmax())
    assert near[widest + 1] - near[widest] > torch.finfo(torch.bfloat16).eps / 2
    return float(near[widest : widest + 2].mean())


@pytest.mark.filterwarnings("ignore:.* loses steps below")  # which tells of optimisers
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_inputs_are_summed_in_float32(name, dtype):
    case = make_case(name, 19, 53 if name in MATRIX_NAMES else 4, 24, dtype=dtype)
    if "drop_similar_negatives" in case.settings:
        limit = {"drop_similar_negatives": away_from_cosines(case)}
        case = make_case(name, 19, 53, 24, dtype=dtype, changed=limit)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=name not in MATRIX_NAMES):
        ours = case.ours()
    assert ours.dtype == torch.float32
    exact = case.reference(torch.float32)
    rounded = name in MATRIX_NAMES and dtype == torch.bfloat16  # lanes round operands to bfloat16
    torch.testing.assert_close(ours, exact, rtol=5e-4 if rounded else 2e-5, atol=2e-5)
    for mine, theirs, tensor in zip(case.gradients(ours), case.gradients(exact), case.inputs, strict=True):
        assert mine.dtype == tensor.dtype
        # Both are rounded to dtype once at the end.
        share = 4e-3 if rounded else 1e-3
        torch.testing.assert_close(
            mine, theirs, rtol=4 * torch.finfo(dtype).eps, atol=share * float(theirs.abs().max())
        )


@pytest.mark.parametrize("name", ANY_PAIRS + BANK_NAMES)
def test_weights_of_pair_losses_have_gradients(name):
    case = make_case(name, 12, 4, 5, weighted=True)
    case.weights.requires_grad_()
    ours, theirs = case.ours(), case.reference()
    assert_close(ours, theirs)
    with torch.no_grad():
        assert_close(case.ours(), theirs)
    gradient, expected = (torch.autograd.grad(loss, case.weights)[0] for loss in (ours, theirs))
    present = case.weights > 0
    torch.testing.assert_close(gradient[present], expected[present])


def test_regularizer_where_centers_coincide_or_vanish():
    """The root has no derivative at 0: no NaN, and no force between centers that are one already."""
    loss_function = SoftTripleLoss(2, 3, 3, regularizer_weight=1.0)
    centers = torch.tensor([[[1.0, 2, 3], [2, 4, 6], [1, 0, 0]], [[0, 0, 0], [0, 1, 0], [1, 1, 1]]])
    loss_function.fc.data = centers.reshape(6, 3).t()
    value = loss_function.regularizer()
    cosines = torch.tensor([14**-0.5, 14**-0.5, 0, 0, 3**-0.5], dtype=torch.float64)
    torch.testing.assert_close(value.double(), (2 - 2 * cosines).sqrt().sum() / 12, rtol=1e-6, atol=0)
    value.backward()
    gradient = loss_function.fc.grad.t().reshape(2, 3, 3)
    assert torch.isfinite(gradient).all()
    assert not gradient[1, 0].any()
    assert gradient[0, 0].abs().max() > 0  # from the third center


@pytest.mark.parametrize("filtered", [False, True])
@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("variant", ["paper", "xbm", "authors"])
def test_a_memory_is_that_of_the_equations(variant, reduction, filtered):
    """A mask for weights divides by the number kept, or as the authors of PRISM the bank's term by that of all."""
    case = make_case(f"memory-{variant}, a bank", 12, 4, 5, reduction=reduction)
    bank_labels = case.bank_labels = torch.where(case.bank_labels == ABSENT, 1, case.bank_labels)  # there is no ABSENT
    keep = torch.arange(12) % 3 != 1 if filtered else torch.ones(12, dtype=torch.bool)
    case.weights = keep.double() if filtered else None
    expected = memory_contrastive_loss(case.embeddings, case.labels, case.bank, bank_labels, 0.2, variant, keep)
    expected, ours = expected * (keep.sum() if variant != "paper" else 1), case.ours()
    ours = ours.sum() if reduction == "none" else ours * keep.sum()
    torch.testing.assert_close(ours, expected)
    torch.testing.assert_close(
        *(torch.autograd.grad(loss, case.embeddings)[0] for loss in (ours, expected)), rtol=1e-9, atol=1e-12
    )


def test_settings_that_the_cases_leave_at_their_defaults():
    """Loss and equation have the same names for them."""
    X, y, c, weights = (
        torch.randn(9, 4).double(),
        torch.arange(9) % 5,
        torch.rand(9, 5).double(),
        torch.rand(9).double(),
    )
    settings = {"margin": 0.3, "alpha": 5.0, "beta": 4.0, "threshold": 0.4}
    loss = SmoothProxyAnchorLoss(5, 4, **settings).double()
    assert_close(loss(X, c), python_ref.smooth_proxy_anchor_loss(X, loss.proxies, c, **settings))
    settings = {"alpha": 5.0, "regularization": 0.3}
    loss = AdaptiveProxyAnchorLoss(5, 4, 0.25, **settings).double()
    assert_close(
        loss(X, y), python_ref.adaptive_proxy_anchor_loss(X, loss.proxies, y, c.new_tensor([0.25]), **settings)
    )
    settings = {"margin": 0.2, "scale": 9.0, "concentration": 7.0}
    loss = AdaFaceLoss(5, 4, **settings).double().eval()
    lengths = loss.mean_length.double(), loss.length_deviation.double()
    assert_close(loss(X, y), python_ref.adaface_loss(X, y, loss.W.t(), *lengths, **settings))
    settings = {"alpha": 3.0, "beta": 20.0, "base": 0.6, "epsilon": 0.3}
    loss = BSPMLLoss(**settings)
    assert_close(loss(X, y, sample_weights=weights), bspml_loss(X, y, None, None, weights, "mean", **settings))
    assert_close(SupConLoss(temperature=0.4)(X, y), python_ref.supcon_loss(X, y, temperature=0.4))
