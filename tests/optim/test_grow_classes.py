"""Classes are added to, dropped from and reordered in trained losses, with their optimisers and filters."""

import copy

import pytest
import torch

from robustdml_ops import losses
from robustdml_ops.engine.labels import ABSENT
from robustdml_ops.optim import ProxyAdagrad, ProxyAdamW, grow_classes
from robustdml_ops.robust import PRISM, MemoryBank

D, OLD = 4, 6
# Class 1 is dropped, two classes change places, two are new.
ORIGIN = torch.tensor([0, 3, 2, -1, 5, 4, -1])
LOSSES = {
    "proxy-anchor": lambda C: losses.ProxyAnchorLoss(C, D),
    "margins": lambda C: losses.AdaptiveProxyAnchorLoss(C, D, per_class=True),
    "columns": lambda C: losses.ArcFaceLoss(C, D),
    "sampled": lambda C: losses.ArcFaceLoss(C, D, negative_share=0.5),
    "centres": lambda C: losses.SubCenterArcFaceLoss(num_classes=C, embedding_size=D),
    "soft-triple": lambda C: losses.SoftTripleLoss(C, D, centers_per_class=3),
}
OPTIMIZERS = {
    "torch": lambda loss: torch.optim.AdamW(loss.parameters(), lr=0.1),
    "adamw": lambda loss: ProxyAdamW(loss, lr=0.1),
    "adagrad": lambda loss: ProxyAdagrad(loss, lr=0.1, initial_accumulator_value=0.5),
}


@pytest.fixture(autouse=True)
def double():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def steps(loss, optimizer, classes, number=2):
    """Losses of steps on samples of ``classes`` (n,)."""
    generator = torch.Generator().manual_seed(len(classes))
    found = []
    for _ in range(number):
        optimizer.zero_grad()
        value = loss(torch.randn(len(classes), D, generator=generator), classes)
        value.backward()
        optimizer.step()
        found.append(value.detach())
    return torch.stack(found)


def by_class(loss, name, value):
    """Entries of the classes first; a number for each centre stays with its class."""
    if hasattr(loss, "by_class"):
        return loss.by_class(name, value) if value.dim() == 2 else value.view(-1, loss.centers)
    return value.movedim(loss.class_dimensions()[name] if value.dim() > 1 else 0, 0)


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("name", LOSSES)
def test_rows_and_moments_follow_their_classes(name, kind):
    if name == "margins" and kind != "torch":
        pytest.skip("an optimiser of this package has the proxies alone")
    loss = LOSSES[name](OLD)
    optimizer = OPTIMIZERS[kind](loss)
    steps(loss, optimizer, torch.arange(OLD))
    before = {key: by_class(loss, key, getattr(loss, key).detach().clone()) for key in loss.class_dimensions()}
    moments = {
        key: {name: by_class(loss, key, value.clone()) for name, value in state.items() if value.dim()}
        for key in before
        for state in (optimizer.state[getattr(loss, key)],)
    }
    grow_classes(loss, optimizer, ORIGIN)
    kept = ORIGIN >= 0
    for key, old in before.items():
        new = by_class(loss, key, getattr(loss, key).detach())
        assert torch.equal(new[kept], old[ORIGIN[kept]])
        assert new[~kept].isfinite().all() and new[~kept].any()
        for moment, value in moments[key].items():
            follows = by_class(loss, key, optimizer.state[getattr(loss, key)][moment])
            assert torch.equal(follows[kept], value[ORIGIN[kept]])
            assert (follows[~kept] == (0.5 if kind == "adagrad" else 0)).all()
    assert loss.num_classes == len(ORIGIN)
    assert steps(loss, optimizer, torch.arange(len(ORIGIN))).isfinite().all()


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_grown_loss_trains_as_a_larger_one_put_together_by_hand(kind):
    loss = losses.ArcFaceLoss(OLD, D)
    optimizer = OPTIMIZERS[kind](loss)
    steps(loss, optimizer, torch.arange(OLD))
    large = losses.ArcFaceLoss(OLD + 2, D)
    fresh = torch.randn(2, D)
    large.W.data = torch.cat([loss.W.detach(), fresh.t()], 1)
    other = OPTIMIZERS[kind](large)
    first = 0.5 if kind == "adagrad" else 0.0
    for name, value in optimizer.state[loss.W].items():
        dimension = value.dim() - 1
        new = torch.full((*value.shape[:-1], 2), first) if value.dim() else None
        other.state[large.W][name] = value.clone() if new is None else torch.cat([value, new], dimension)
    grow_classes(loss, optimizer, OLD + 2, init=fresh)
    classes = torch.arange(OLD + 2)
    torch.testing.assert_close(steps(loss, optimizer, classes), steps(large, other, classes), rtol=0, atol=1e-12)
    torch.testing.assert_close(loss.W, large.W, rtol=0, atol=1e-12)


@pytest.mark.parametrize("similarity", ["average", "vmf"])
def test_a_filter_judges_the_classes_that_stayed_as_before(similarity):
    filter_ = PRISM(OLD, D, similarity, 0.3, memory_size=60, vmf_start=5 if similarity == "vmf" else None)
    centers = torch.randn(OLD, D)
    labels = torch.arange(OLD).repeat(20)
    X = centers[labels] + 0.1 * torch.randn(len(labels), D)
    for rows in torch.randperm(len(labels)).split(12):
        filter_(X[rows], labels[rows])
    twin = copy.deepcopy(filter_)
    swapped = torch.tensor([5, 1, 2, 3, 4, 0])
    grow_classes(filter_, None, swapped)
    successor = swapped.argsort()
    now, then = filter_(X, successor[labels]), twin(X, labels)
    torch.testing.assert_close(now.log_p_clean, then.log_p_clean, rtol=0, atol=1e-12)
    grow_classes(filter_, None, OLD + 3)
    assert filter_.num_classes == filter_.bank.num_classes == OLD + 3
    assert not filter_.bank.counts[OLD:].any() and not filter_.bank.sums[OLD:].any()
    new = torch.tensor([OLD + 1, 0])
    assert filter_(X[:2], new).log_p_clean.shape == (2,)


def test_the_rows_of_a_dropped_class_leave_the_bank():
    bank = MemoryBank(3, D, 8)
    for _ in range(2):
        bank.enqueue(torch.eye(D)[:3], torch.arange(3), sample_ids=torch.arange(3))
    grow_classes(bank, None, torch.tensor([2, 0]))
    assert bank.labels.tolist() == [1, ABSENT, 0, 1, ABSENT, 0, ABSENT, ABSENT]
    assert bank.sample_ids.tolist() == [0, -1, 2, 0, -1, 2, -1, -1]
    assert bank.counts.tolist() == [2, 2]
    sums = bank.sums.clone()
    bank.recompute()
    assert torch.equal(bank.sums, sums)
    bank.enqueue(torch.eye(D)[:3], torch.tensor([1, 1, 1]))  # round the queue, over rows without a class
    assert bank.counts.tolist() == [2, 4]


def test_new_classes_start_at_the_mean_of_their_embeddings():
    for dtype in (torch.float64, torch.bfloat16):
        loss = losses.ArcFaceLoss(OLD, D)
        embeddings = torch.randn(5, D).to(dtype)
        labels = torch.tensor([6, 3, 6, 6, 3])
        grow_classes(loss, ProxyAdamW(loss), ORIGIN, init=(embeddings, labels))
        for new in (3, 6):
            expected = embeddings[labels == new].to(torch.float64).mean(0)
            torch.testing.assert_close(
                loss.W[:, new].detach(), expected, rtol=0, atol=1e-15 if dtype.itemsize == 8 else 1e-6
            )


def test_losses_within_a_loss_grow_with_it():
    loss = losses.ProcSimLoss(OLD, D, dml="multi-similarity")
    optimizer = torch.optim.SGD(loss.parameters(), lr=0.1)
    grow_classes(loss, optimizer, OLD + 1)
    assert torch.isfinite(loss(torch.randn(4, D), torch.tensor([OLD, 0, OLD, 0])))


def test_fewer_classes_after_the_first_step():
    """The warnings of the first steps compare a row of the class matrix, which may be among those removed."""
    loss = losses.ArcFaceLoss(OLD, D)
    optimizer = torch.optim.SGD(loss.parameters(), lr=0.1)
    steps(loss, optimizer, torch.tensor([OLD - 1]), 1)
    grow_classes(loss, optimizer, 2)
    steps(loss, optimizer, torch.tensor([1]), 100)


def test_wrong_arguments_change_nothing():
    loss = losses.ProxyAnchorLoss(OLD, D)
    optimizer = ProxyAdamW(loss)
    stranger = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1)
    wrong = [
        (optimizer, 0, None, ValueError, "classes=0"),
        (optimizer, 2.5, None, TypeError, "classes must be a number.*got 2.5"),
        (optimizer, torch.tensor([0, OLD]), None, IndexError, r"classes\[1\] = 6 is outside 0 … 5"),
        (optimizer, torch.tensor([3, 3]), None, ValueError, "names class 3 more than once"),
        (optimizer, OLD + 2, torch.zeros(3, D), ValueError, r"shape \(3, 4\), and the 2 new classes need \(2, 4\)"),
        (optimizer, OLD + 1, torch.full((1, D), torch.nan), ValueError, "init.*NaN"),
        (optimizer, OLD + 2, (torch.ones(1, D), torch.tensor([7])), ValueError, "no embedding of the new class 6"),
        (optimizer, OLD + 1, (torch.ones(1, D), torch.tensor([5])), ValueError, "class 5, which is not new"),
        (optimizer, OLD + 1, (torch.ones(1, D), torch.tensor([7])), IndexError, r"init\[1\]\[0\] = 7 is outside 0 … 6"),
        (optimizer, OLD + 1, (torch.ones(1, 3), torch.tensor([6])), ValueError, r"shape \(1, 3\)"),
        (optimizer, OLD + 1, (torch.full((1, D), torch.inf), torch.tensor([6])), ValueError, r"init\[0\]\[0\] has NaN"),
        (None, OLD + 1, None, ValueError, "the proxies belong to ProxyAdamW"),
        (stranger, OLD + 1, None, ValueError, "the proxies belong to ProxyAdamW"),
    ]  # fmt: skip
    for given, classes, init, error, message in wrong:
        before = loss.proxies
        with pytest.raises(error, match=message):
            grow_classes(loss, given, classes, init=init)
        assert loss.proxies is before
    with pytest.raises(TypeError, match="Linear has no classes"):
        grow_classes(torch.nn.Linear(2, 2), None, 3)
    with pytest.raises(ValueError, match="SGD has no parameter of the loss"):
        grow_classes(losses.ProxyAnchorLoss(OLD, D), stranger, 3)
    with pytest.raises(ValueError, match="start alike stay alike"):
        grow_classes(losses.SoftTripleLoss(OLD, D), None, OLD + 1, init=(torch.ones(1, D), torch.tensor([6])))
    factored = losses.ProxyAnchorLoss(OLD, D)
    adafactor = torch.optim.Adafactor(factored.parameters())
    steps(factored, adafactor, torch.arange(OLD))
    with pytest.raises(ValueError, match="col_var of Adafactor"):
        grow_classes(factored, adafactor, OLD + 1)
    lbfgs = torch.optim.LBFGS(factored.parameters())  # its state has numbers and lists, too
    lbfgs.step(lambda: factored(torch.ones(1, D), torch.zeros(1, dtype=torch.int64)))
    with pytest.raises(ValueError, match="d of LBFGS"):
        grow_classes(factored, lbfgs, OLD + 1)
    loss(torch.randn(4, D), torch.arange(4)).backward()
    with pytest.raises(RuntimeError, match="step\\(\\) has not come yet"):
        grow_classes(loss, optimizer, OLD + 1)
