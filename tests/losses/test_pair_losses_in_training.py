"""The losses on pairs in a training loop, and with inputs that leave them little to do."""

import pytest
import torch
from pair_cases import CPU_BACKENDS, NAMES, PairCase
from test_pair_losses_against_reference import assert_close

from robustdml_ops.losses import ContrastiveLoss, MemoryContrastiveLoss, MultiSimilarityLoss
from robustdml_ops.ops import ABSENT
from robustdml_ops.robust import MemoryBank

X, Y = torch.randn(4, 3), torch.tensor([0, 1, 2, 1])


@pytest.mark.parametrize("name", NAMES)
def test_upstream_scale_and_a_second_backward(name):
    case = PairCase(name, 12, 5, 20)
    loss = case.ours()
    for _ in range(2):
        (3 * loss).backward(retain_graph=True)
    for tensor, truth in zip(case.inputs, torch.autograd.grad(6 * case.reference(), case.inputs), strict=True):
        torch.testing.assert_close(tensor.grad, truth, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_only_what_requires_a_gradient_gets_one(name):
    case = PairCase(name, 12, 5, 20)
    case.bank.requires_grad_(False)
    case.ours().backward()
    torch.testing.assert_close(case.embeddings.grad, torch.autograd.grad(case.reference(), case.embeddings)[0])
    case.embeddings.requires_grad_(False)
    case.bank.requires_grad_()
    case.ours().backward()
    torch.testing.assert_close(case.bank.grad, torch.autograd.grad(case.reference(), case.bank)[0])
    with torch.no_grad():
        assert not case.ours().requires_grad


@pytest.mark.parametrize(
    ("name", "reduction", "m"),
    [
        ("ms-mined", "mean", None),
        ("ms", "none", 20),
        ("contrastive", "mean", 20),
        ("contrastive-cosine", "none", None),
        ("memory-paper", "mean", 20),
        ("memory-xbm", "none", 20),
    ],
)
def test_compiles_without_a_graph_break(name, reduction, m):
    case, plain = (PairCase(name, 12, 5, m, reduction=reduction, weighted=True) for _ in range(2))
    torch._dynamo.reset()
    case.module = torch.compile(case.module, fullgraph=True, backend="aot_eager")
    ours, theirs = case.ours(), plain.ours()
    torch.testing.assert_close(ours, theirs)
    for mine, other in zip(case.gradients(ours), plain.gradients(theirs), strict=True):
        torch.testing.assert_close(mine, other)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("backend", CPU_BACKENDS)
def test_same_bits_twice(name, backend):
    def bits():
        case = PairCase(name, 130, 32, 300, dtype=torch.float32, weighted=True, backend=backend)
        loss = case.ours()
        return [loss, *case.gradients(loss)]

    assert all(torch.equal(a, b) for a, b in zip(bits(), bits(), strict=True))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_inputs_are_computed_in_float32(name, dtype):
    case = PairCase(name, 19, 24, 30, dtype=dtype)
    case.module.epsilon = case.options.get("epsilon") and 0.0517
    case.options |= {"epsilon": 0.0517} if name == "ms-mined" else {}
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ours = case.ours()
    assert ours.dtype == torch.float32
    exact = case.reference(torch.float32)
    torch.testing.assert_close(ours, exact, rtol=2e-5, atol=2e-5)
    for mine, theirs in zip(case.gradients(ours), case.gradients(exact), strict=True):
        assert mine.dtype == dtype
        torch.testing.assert_close(mine, theirs, rtol=4 * torch.finfo(dtype).eps, atol=1e-3 * float(theirs.abs().max()))


def test_fp16_gradients_are_scaled_before_they_are_rounded():
    """With a GradScaler the loss is multiplied first; unscaled float16 gradients would have been flushed to zero."""
    case = PairCase("ms", 8, 16, dtype=torch.float16)
    scaled = torch.autograd.grad(case.ours() * 1e-7 * 2.0**24, case.embeddings)[0]
    truth = torch.autograd.grad(case.reference(torch.float64) * 1e-7 * 2.0**24, case.embeddings)[0]
    torch.testing.assert_close(scaled, truth, rtol=1e-2, atol=1e-2 * float(truth.abs().max()))


@pytest.mark.parametrize("name", NAMES)
def test_weights_have_gradients(name):
    case, other = (PairCase(name, 12, 5, 20, weighted=True) for _ in range(2))
    for each in (case, other):
        each.weights.requires_grad_()
    ours, theirs = case.ours(), other.reference()
    assert_close(ours, theirs)
    gradient, expected = (torch.autograd.grad(r, c.weights)[0] for r, c in ((ours, case), (theirs, other)))
    present = case.weights > 0
    torch.testing.assert_close(gradient[present], expected[present])


@pytest.mark.parametrize("name", [name for name in NAMES if name != "memory-authors"])  # which divides by all of them
@pytest.mark.parametrize("m", [None, 20])
def test_a_mask_of_weights_is_the_batch_without_the_others(name, m):
    whole, part = (PairCase(name, 24, 6, m) for _ in range(2))
    keep = torch.arange(24) % 3 > 0
    whole.weights = keep.double()
    part.embeddings, part.labels = part.embeddings.detach()[keep].requires_grad_(), part.labels[keep]
    ours, theirs = whole.ours(), part.ours()
    assert_close(ours, theirs)
    first, second = whole.gradients(ours), part.gradients(theirs)
    assert_close(first[0][keep], second[0])
    assert not first[0][~keep].any()


# The variants of a loss share their code up to the settings of its op.
@pytest.mark.parametrize("name", ["ms-mined", "contrastive", "memory-authors"])
@pytest.mark.parametrize(("reduction", "backend"), [("mean", "native"), ("mean", "eager"), ("none", "native")])
@pytest.mark.parametrize("situation", ["empty batch", "one sample", "all rejected", "no labels", "empty bank"])
def test_no_pairs_give_a_connected_zero(name, reduction, situation, backend):
    B = {"empty batch": 0, "one sample": 1}.get(situation, 6)
    case = PairCase(name, B, 3, 8 if situation == "empty bank" else None, reduction=reduction, backend=backend)
    if situation == "all rejected":
        case.weights = torch.zeros(6, dtype=torch.float64)
    if situation in ("no labels", "empty bank"):
        case.labels = torch.full((6,), ABSENT)
    if situation == "empty bank":
        case.bank_labels = torch.full((8,), ABSENT)
    loss = case.ours()
    assert not loss.any() and loss.shape == (() if reduction == "mean" else (B,))
    loss.sum().backward()
    assert not case.embeddings.grad.any()


@pytest.mark.parametrize("backend", CPU_BACKENDS)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("labels", [[0] * 6, [*range(6)], [0, 0, 1, 1, 2, 2]])
def test_one_class_no_positives_and_zero_vectors(name, labels, backend):
    case = PairCase(name, 6, 3, backend=backend)
    case.labels = torch.tensor(labels)
    with torch.no_grad():
        case.embeddings[2] = 0
    loss = case.ours()
    torch.testing.assert_close(loss, case.reference())
    loss.backward()
    assert torch.isfinite(case.embeddings.grad).all()
    assert not case.embeddings.grad[2].any()


@pytest.mark.parametrize("rows", [0, 3, 8])
def test_memory_bank_as_it_fills(rows):
    bank = MemoryBank(num_classes=4, embedding_size=3, capacity=8)
    stored, labels = torch.randn(rows, 3), torch.arange(rows) % 4
    if rows:
        bank.enqueue(stored, labels)
    loss_function = MemoryContrastiveLoss()
    with_bank = loss_function(X, Y, None, bank.features, bank.labels)
    torch.testing.assert_close(with_bank, loss_function(X, Y, None, stored, labels))
    if rows == 0:
        assert torch.equal(with_bank, loss_function(X, Y))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (((Y, Y, Y, Y),), TypeError, "ref_emb must be a torch.Tensor, not tuple"),
        ((X[:2],), ValueError, r"ref_labels must have shape \(2,\), one for each row of ref_emb"),
        ((None, Y.clone()), ValueError, "ref_labels without ref_emb"),
        ((X, (0, 1)), TypeError, "ref_labels must be a torch.Tensor, not tuple"),
        ((X, Y[:2]), ValueError, r"ref_labels must have shape \(4,\), one for each row of ref_emb"),
        ((torch.randn(4, 5), Y), ValueError, "ref_emb must have 3 columns"),
        ((torch.full((4, 3), torch.nan), Y), ValueError, r"candidates\[0\] \(ref_emb of a loss\) has NaN"),
    ],
)
@pytest.mark.parametrize("kind", [MultiSimilarityLoss, ContrastiveLoss, MemoryContrastiveLoss])
def test_bad_input(kind, arguments, error, message):
    with pytest.raises(error, match=message):
        kind()(X, Y, None, *arguments)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (torch.ones(3), "sample_weights must be a floating-point vector of length 4"),
        (-torch.ones(4), "sample_weights must be finite and not negative"),
    ],
)
@pytest.mark.parametrize("kind", [MultiSimilarityLoss, ContrastiveLoss, MemoryContrastiveLoss])
def test_bad_weights(kind, weights, message):
    with pytest.raises(ValueError, match=message):
        kind()(X, Y, sample_weights=weights)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: MultiSimilarityLoss(alpha=0), "alpha must be positive and finite, got 0"),
        (lambda: MultiSimilarityLoss(beta=-2), "beta must be positive and finite, got -2"),
        (lambda: MultiSimilarityLoss(epsilon=float("nan")), "epsilon must be finite"),
        (lambda: MultiSimilarityLoss(reduction="sum"), "reduction='sum': expected one of mean, none"),
        (lambda: ContrastiveLoss(neg_margin=float("inf")), "neg_margin must be finite"),
        (
            lambda: ContrastiveLoss(distance="manhattan"),
            "distance='manhattan': expected one of euclidean, cosine, squared",
        ),
        (lambda: MemoryContrastiveLoss(variant="code"), "variant='code': expected one of paper, xbm, authors"),
    ],
)
def test_settings(build, message):
    with pytest.raises(ValueError, match=message):
        build()


@pytest.mark.parametrize("kind", [MultiSimilarityLoss, ContrastiveLoss])
@pytest.mark.parametrize("n", [0, 3])
def test_a_list_without_pairs_of_no_candidates(kind, n):
    """A miner that found nothing, in an empty batch or beside an empty reference set."""
    embeddings, none = torch.randn(n, 3, requires_grad=True), torch.zeros(0, dtype=torch.int64)
    loss = kind()(embeddings, None, (none, none, none, none), torch.zeros(0, 3) if n else None, none if n else None)
    assert loss.item() == 0
    assert torch.autograd.grad(loss, embeddings)[0].shape == (n, 3)
