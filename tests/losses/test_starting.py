"""Proxies that begin as embeddings: from a pass over the samples, or when training first meets their class."""

import copy

import pytest
import torch
from torch.nn.functional import normalize

from robustdml_ops import losses
from robustdml_ops.losses import start_class_matrix
from robustdml_ops.optim import ProxyAdagrad, grow_classes

C, D = 9, 6
LOSSES = {
    "proxy-anchor": losses.ProxyAnchorLoss,
    "adaptive": losses.AdaptiveProxyAnchorLoss,
    "arcface": losses.ArcFaceLoss,
    "sampled": lambda *sizes, **more: losses.CosFaceLoss(*sizes, negative_share=0.3, **more),
}
every = pytest.mark.parametrize("name", LOSSES)


def batches(count=4, size=7, classes=C - 1):
    generator = torch.Generator().manual_seed(5)
    return [
        (torch.randn(size, D, generator=generator), torch.randint(classes, (size,), generator=generator))
        for _ in range(count)
    ]


def naive(rows, given, most):
    """Row by row, sample by sample."""
    rows, taken = rows.clone(), [0] * C
    for X, y in given:
        for x, k in zip(normalize(X.double()), y.tolist(), strict=True):
            if taken[k] < most:
                rows[k] = normalize(rows[k] + (x - rows[k]) / (taken[k] + 1), dim=0)
                taken[k] += 1
    return rows, torch.tensor(taken, dtype=torch.int32)


@every
@pytest.mark.parametrize("most", [1, 3, 50])
def test_rows_are_mean_directions_of_the_first_embeddings(name, most):
    loss_function = LOSSES[name](C, D)
    rows, taken = naive(loss_function._class_matrix().detach().double(), batches(), most)
    assert taken[-1] == 0  # a class without a sample
    assert torch.equal(start_class_matrix(loss_function, batches(), first_embeddings=most), taken)
    torch.testing.assert_close(loss_function._class_matrix().detach(), rows.float())


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_proxies_keep_their_type(dtype):
    loss_function = losses.ArcFaceLoss(C, D).to(dtype)
    rows, _ = naive(loss_function._class_matrix().detach().double(), batches(), 4)
    start_class_matrix(loss_function, batches(), first_embeddings=4)
    assert loss_function.W.dtype == dtype
    torch.testing.assert_close(
        loss_function._class_matrix().detach().double(), rows, rtol=0, atol=float(torch.finfo(dtype).eps * 4)
    )


def test_centres_begin_as_different_samples():
    loss_function = losses.SubCenterArcFaceLoss(2, 3, sub_centers=2)
    before = loss_function._class_matrix().detach().clone()
    axes = torch.eye(3)
    X = torch.stack([axes[0], axes[1], axes[1] + 0.1 * axes[2], axes[2]])
    taken = start_class_matrix(loss_function, [(X, torch.tensor([0, 0, 0, 1]))])
    assert taken.tolist() == [3, 1]
    after = loss_function._class_matrix().detach()
    torch.testing.assert_close(after[0], axes[0])
    torch.testing.assert_close(after[1], normalize(axes[1] + normalize(X[2], dim=0), dim=0))  # the nearest has moved
    torch.testing.assert_close(after[2], axes[2])
    assert torch.equal(after[3], before[3])


@every
def test_training_begins_with_the_embeddings_of_each_class(name):
    """The loss of each step is that of a loss whose rows were filled before it; a sample of weight 0 fills nothing."""
    loss_function = LOSSES[name](C, D, first_embeddings=2)
    twin = LOSSES[name](C, D)
    twin._class_matrix().data.copy_(loss_function._class_matrix().data)
    given = batches()
    for number, (X, y) in enumerate(given):
        weights = torch.ones(len(X))
        weights[0] = 0
        seen = [(a[1:], b[1:]) for a, b in given[: number + 1]]
        start_class_matrix(twin, seen, first_embeddings=2)
        torch.testing.assert_close(loss_function(X, y, sample_weights=weights), twin(X, y, sample_weights=weights))
        taken = naive(torch.zeros(C, D).double(), seen, 2)[1]
        assert torch.equal(loss_function.taken, taken)


def test_evaluation_leaves_rows_alone():
    loss_function = losses.ArcFaceLoss(C, D, first_embeddings=1).eval()
    before = loss_function.W.detach().clone()
    loss_function(*batches()[0])
    assert torch.equal(loss_function.W, before) and not loss_function.taken.any()


def test_a_run_goes_on():
    first, others = batches()[0], batches()[1:]
    one = losses.ArcFaceLoss(C, D, first_embeddings=1)
    one(*first)
    other = losses.ArcFaceLoss(C, D, first_embeddings=1)
    other.load_state_dict(copy.deepcopy(one.state_dict()))
    for X, y in others:
        assert torch.equal(one(X, y), other(X, y))
    assert torch.equal(one.W, other.W) and torch.equal(one.taken, other.taken)


def test_trained_proxies_stay():
    """A state without these numbers, and rows that are loaded, are of trained proxies."""
    trained = losses.ArcFaceLoss(C, D)
    for fill in (
        lambda new: new.load_state_dict(trained.state_dict()),
        lambda new: losses.load_class_matrix(new, trained.W.t()),
    ):
        loss_function = losses.ArcFaceLoss(C, D, first_embeddings=1)
        fill(loss_function)
        loss_function(*batches()[0])
        assert torch.equal(loss_function.W, trained.W)
    plain = losses.ArcFaceLoss(C, D)
    with pytest.warns(UserWarning, match="give the first_embeddings of that loss"):
        plain.load_state_dict(losses.ArcFaceLoss(C, D, first_embeddings=1).state_dict())


def test_new_classes_begin_in_training():
    loss_function = losses.ProxyAnchorLoss(C, D, first_embeddings=1)
    start_class_matrix(loss_function, batches())
    grow_classes(loss_function, None, C + 2)
    X = torch.eye(D)[:2]
    loss_function(X, torch.tensor([C, C + 1]))
    torch.testing.assert_close(loss_function.proxies[-2:].detach(), X)
    grow_classes(loss_function, None, C + 3, init=2 * torch.ones(1, D))
    loss_function(X[:1], torch.tensor([C + 2]))
    assert torch.equal(loss_function.proxies[-1], 2 * torch.ones(D))


@every
def test_an_optimiser_in_the_sweep_checks_the_proxies_once(name, monkeypatch):
    from robustdml_ops.optim import step

    checks = []
    monkeypatch.setattr(step, "_check_values", checks.append)
    loss_function = LOSSES[name](C, D, first_embeddings=1)
    optimizer = ProxyAdagrad(loss_function, lr=0.1)
    for X, y in batches():
        loss_function(X.requires_grad_(), y).backward()
        optimizer.step()
    assert len(checks) == 1
    assert (loss_function.taken > 0).sum() > 5


@pytest.mark.parametrize("several", [False, True])
def test_several_classes_of_a_sample(several):
    loss_function = losses.ArcFaceLoss(C, D, first_embeddings=1)
    X = torch.eye(D)[:2]
    labels = (
        torch.tensor([[0, 3], [2, losses.loading.torch.iinfo(torch.int64).min]]) if several else torch.tensor([0, 2])
    )
    loss_function(X, labels)
    torch.testing.assert_close(loss_function.W.t()[[0, 2]].detach(), X)
    assert loss_function.taken.tolist() == [1, 0, 1, int(several)] + [0] * (C - 4)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (lambda: (losses.ArcFaceLoss(C, D), [(torch.full((1, D), torch.nan), torch.tensor([0]))]), ValueError, "NaN"),
        (lambda: (losses.ArcFaceLoss(C, D), [(torch.ones(1, D), torch.tensor([C]))]), IndexError, f"{C}"),
        (lambda: (losses.SupConLoss(), []), TypeError, "one with a class matrix, such as ArcFaceLoss, got SupConLoss"),
        (
            lambda: (losses.ArcFaceLoss(C, D, first_embeddings=-1), []),
            ValueError,
            "first_embeddings must be at least 0",
        ),
    ],
)
def test_bad_input(given, error, message):
    with pytest.raises(error, match=message):
        start_class_matrix(*given())


def test_a_step_that_fails_writes_nothing():
    loss_function = losses.ArcFaceLoss(C, D, first_embeddings=1)
    before = loss_function.W.detach().clone()
    with pytest.raises(ValueError, match="NaN"):
        loss_function(torch.full((1, D), torch.nan), torch.tensor([0]))
    assert torch.equal(loss_function.W, before) and not loss_function.taken.any()
