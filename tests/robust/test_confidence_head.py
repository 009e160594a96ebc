import pytest
import torch
from states import clusters as clusters_of
from torch.nn import functional

from robustdml_ops.robust import ConfidenceHead

CLASSES, SIZE = 5, 12


@pytest.fixture
def clusters():
    """Well separated classes, and labels of which a third are wrong."""
    rows, noisy, true = clusters_of(CLASSES, 80, SIZE, spread=0.1, wrong=1 / 3)
    return 10 * rows, true, noisy, noisy != true


def make_head(**settings):
    torch.manual_seed(0)
    return ConfidenceHead(SIZE, CLASSES, **{"hidden_features": 32, **settings})


def test_learns_the_truth_from_noisy_labels(clusters):
    features, true, noisy, wrong = clusters
    head = make_head()
    seen = []
    report = lambda epoch, loss: seen.append((epoch, loss))  # noqa: E731
    losses = head.fit(features, noisy, epochs=15, batch_size=32, learning_rate=3e-3, on_epoch=report)
    assert seen == list(enumerate(losses, start=1))
    confidences = head(features)
    assert losses[-1] < 0.7 * losses[0]
    assert (confidences.argmax(1) == true).float().mean() > 0.95
    given = confidences.gather(1, noisy[:, None])[:, 0]
    assert given[~wrong].mean() > 0.6
    assert given[wrong].mean() < 0.2


def test_is_frozen_after_fit_and_stays_so(clusters):
    features, _, noisy, _ = clusters
    head = make_head()
    assert not head.frozen
    head.fit(features, noisy, epochs=1)
    assert head.frozen
    assert not torch.nn.Sequential(head).train()[0].training
    assert not head(features).requires_grad
    with pytest.raises(RuntimeError, match="frozen"):
        head.fit(features, noisy)


def test_factors_are_the_confidences_and_detached(clusters):
    features = clusters[0].requires_grad_(True)
    head = make_head()
    hidden, weight, bias = head.factors(features)
    assert hidden.shape == (400, 32)
    assert weight.shape == (CLASSES, 32)
    assert bias.shape == (CLASSES,)
    assert not any(factor.requires_grad for factor in (hidden, weight, bias))
    torch.testing.assert_close(torch.sigmoid(hidden @ weight.T + bias), head(features))


def test_a_step_is_one_of_adamw_on_binary_cross_entropy_of_one_hot_labels(clusters):
    features, _, noisy, _ = clusters
    head, other = (make_head().double() for _ in range(2))
    settings = {"learning_rate": 0.1, "weight_decay": 0.5}
    (loss,) = head.fit(features, noisy, epochs=1, batch_size=400, **settings)
    logits = other.classifier(other.reduction(features.double()).relu())
    expected = functional.binary_cross_entropy_with_logits(logits, functional.one_hot(noisy, CLASSES).double())
    expected.backward()
    torch.optim.AdamW(other.parameters(), 0.1, weight_decay=0.5).step()
    torch.testing.assert_close(torch.tensor(loss, dtype=torch.float64), expected.detach())
    torch.testing.assert_close(head.state_dict(), other.state_dict())


def test_same_seed_same_bits_and_starts_from_xavier(clusters):
    features, _, noisy, _ = clusters
    heads = [make_head() for _ in range(3)]
    bound = (6 / (SIZE + 32)) ** 0.5
    largest = heads[0].reduction.weight.abs().max()
    assert 0.9 * bound < largest <= bound
    assert heads[0].reduction.bias.abs().max() == 0
    for head, seed in zip(heads, (1, 1, 2), strict=True):
        head.fit(features, noisy, epochs=2, seed=seed)
    first, second, third = (head.classifier.weight for head in heads)
    assert torch.equal(first, second)
    assert not torch.equal(first, third)


def test_accepts_features_of_other_dtype_and_int32_labels(clusters):
    features, _, noisy, _ = clusters
    head = make_head()
    head.fit(features.double(), noisy.int(), epochs=1)
    assert head(features).dtype == torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        assert head(features).dtype == torch.float32


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda x, y: (x[:, :3], y), ValueError, r"features must have 12 columns, got shape \(400, 3\)"),
        (lambda x, y: (x.long(), y), ValueError, "features must be a floating-point matrix, got .* of torch.int64"),
        (lambda x, y: (x, y[:7]), ValueError, r"labels must have shape \(400,\), .* of features, got \(7,\)"),
        (lambda x, y: (x, y.float()), ValueError, "labels must be integers, got torch.float32"),
        (lambda x, y: (x[:0], y[:0]), ValueError, "no samples"),
        (lambda x, y: (x / 0, y), ValueError, "NaN or infinite"),
        (lambda x, y: (x, y + 1), IndexError, r"labels\[\d+\] = 5 is outside 0 … 4"),
        (lambda x, y: (x, y - 1), IndexError, r"labels\[\d+\] = -1"),
    ],
)
def test_bad_training_sets(clusters, change, error, message):
    features, _, noisy, _ = clusters
    with pytest.raises(error, match=message):
        make_head().fit(*change(features, noisy))


def test_bad_settings(clusters):
    features, _, noisy, _ = clusters
    with pytest.raises(ValueError, match="num_classes must be at least 1, got 0"):
        ConfidenceHead(4, 0)
    with pytest.raises(ValueError, match="epochs must be at least 1, got 0"):
        make_head().fit(features, noisy, epochs=0)
    with pytest.raises(ValueError, match=r"shape \(2, 3, 12\)"):
        make_head()(torch.zeros(2, 3, SIZE))


def test_one_class_and_one_sample():
    head = ConfidenceHead(3, 1, hidden_features=1)
    assert len(head.fit(torch.ones(1, 3), torch.zeros(1, dtype=torch.long), epochs=2)) == 2
    assert head(torch.ones(0, 3)).shape == (0, 1)
