"""The anchor log-sum-exp by itself: what the losses do not already try."""

import pytest
import torch

from python_ref import cosine_similarity, log_one_plus_sum_exp
from robustdml_ops.engine.op_arguments import flatten
from robustdml_ops.ops import ABSENT, AnchorBiases, ConfidenceSets, LabelSets, anchor_loss, anchor_lse
from robustdml_ops.ops.anchor.backends import AnchorOptions
from robustdml_ops.ops.anchor.sweep import anchor_sweep_op
from tests.nightly import nightly_but

B, C, D = 6, 11, 5


def inputs(dtype=torch.float64):
    generator = torch.Generator().manual_seed(1)
    matrices = [torch.randn(n, D, generator=generator, dtype=dtype, requires_grad=True) for n in (B, C)]
    vectors = [torch.rand(n, generator=generator, dtype=dtype, requires_grad=True) for n in (B, B, C)]
    return *matrices, *vectors


LABELS = torch.tensor([0, 3, 3, 10, 1, 0])


def direct(X, P, positive_bias, negative_bias, anchor_bias, alpha):
    """Both sums as they are written."""
    s, positive = cosine_similarity(P, X), torch.arange(C)[:, None] == LABELS
    attracted, repelled = positive_bias - alpha * s, negative_bias + anchor_bias[:, None] + alpha * s
    return log_one_plus_sum_exp(attracted, positive), log_one_plus_sum_exp(repelled, ~positive)


def test_biases_in_any_layout(backend):
    X, P, *_ = inputs()
    expanded, strided = torch.tensor(0.7).double().expand(B), torch.rand(3 * C).double()[::3]
    for negative in (expanded, torch.rand(2 * B).double()[::2]):
        biases = AnchorBiases(expanded, negative, strided)
        ours = anchor_lse(X, P, LabelSets.of(LABELS), biases, alpha=4.0, backend=backend)
        torch.testing.assert_close(ours, direct(X, P, *biases, 4.0))


def test_scales_of_more_classes_than_a_block_of_log_sum_exps():
    classes = 70_000
    X, P = torch.randn(2, 2, dtype=torch.float64), torch.randn(classes, 2, dtype=torch.float64)
    scales, bias = torch.rand(2, classes, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
    given = (X, P, LabelSets.of(torch.tensor([3, 69_000])), AnchorBiases(bias, bias))
    loss = anchor_loss(*given, *scales, alpha=2.0, backend="eager")
    lse = torch.stack(anchor_lse(*given, alpha=2.0, backend="eager"))
    torch.testing.assert_close(loss, (scales * lse).sum())


@pytest.mark.parametrize("used", [0, 1])
def test_one_of_the_two_results_may_go_unused(used):
    tensors = inputs()
    X, P, *biases = tensors
    ours = anchor_lse(X, P, LabelSets.of(LABELS), AnchorBiases(*biases), alpha=4.0)[used].sum()
    theirs = direct(*tensors, 4.0)[used].sum()
    settings = {"allow_unused": True, "materialize_grads": True}
    torch.testing.assert_close(*(torch.autograd.grad(loss, tensors, **settings) for loss in (ours, theirs)))


@pytest.mark.usefixtures("small_chunks")
def test_anchor_loss_with_a_scale_for_each_class(backend):
    """Of one sum or of both: value, gradients, a second backward, and the gradient of a penalty."""
    tensors = inputs()
    X, P, *biases = tensors
    each, one = torch.linspace(0.5, 2, C, dtype=torch.float64), torch.tensor(0.3, dtype=torch.float64)
    positive, negative = direct(*tensors, 4.0)
    for scales in ((one, each), (each, one), (each, 3 * each)):
        ours = anchor_loss(X, P, LabelSets.of(LABELS), AnchorBiases(*biases), *scales, alpha=4.0, backend=backend)
        theirs = (scales[0] * positive).sum() + (scales[1] * negative).sum()
        torch.testing.assert_close(ours, theirs)
        expected = torch.autograd.grad(2 * theirs, tensors, retain_graph=True)
        for _ in range(2):
            found = torch.autograd.grad(2 * ours, tensors, retain_graph=True)
            torch.testing.assert_close(found, expected)
        penalties = [
            sum(g.square().sum() for g in torch.autograd.grad(loss, tensors, create_graph=True))
            for loss in (ours, theirs)
        ]
        second = [torch.autograd.grad(penalty, tensors, retain_graph=True) for penalty in penalties]
        torch.testing.assert_close(*second)


@pytest.mark.parametrize(
    ("scale", "found"),
    [(torch.ones(C - 1).double(), r"\(10,\) of torch.float64"), (torch.ones(()), r"\(\) of torch.float32")],
)
def test_scales_must_fit(scale, found):
    X, P, *biases = inputs()
    one = torch.ones((), dtype=torch.float64)
    for name, scales in (("positive_scale", (scale, one)), ("negative_scale", (one, scale))):
        with pytest.raises(ValueError, match=rf"{name} must be of shape \(\) or \(11,\) and of the .*, got {found}"):
            anchor_loss(X, P, LabelSets.of(LABELS), AnchorBiases(*biases), *scales, alpha=1.0)


def test_alpha_and_biases_must_fit():
    X, P, positive, negative, anchor = inputs()
    for alpha in (0.0, -1.0, float("nan")):
        with pytest.raises(ValueError, match="alpha must be positive"):
            anchor_lse(X, P, LabelSets.of(LABELS), AnchorBiases(positive, negative), alpha=alpha)
    with pytest.raises(ValueError, match=r"biases.negative must be a floating-point vector of length 6"):
        anchor_lse(X, P, LabelSets.of(LABELS), AnchorBiases(positive, negative[:3], anchor), alpha=1.0)
    with pytest.raises(ValueError, match=r"biases.positive must be of the compute type torch.float64"):
        anchor_lse(X, P, LabelSets.of(LABELS), AnchorBiases(positive.float(), negative, anchor), alpha=1.0)


FACTORS = (torch.randn(B, 3).double(), torch.randn(C, 3).double(), torch.randn(C).double())
SETS = {
    "labels": LabelSets.of(LABELS),
    "confidences": ConfidenceSets(100.0, 0.1, torch.rand(C, B).double().t()),
    "factors": ConfidenceSets(9.0, 0.5, None, *FACTORS),
}


@pytest.mark.parametrize("columns", nightly_but([True], [False, True]))
@pytest.mark.parametrize("sets", nightly_but(["labels"], SETS))
def test_registered_op_keeps_the_contract_of_the_registry(sets, columns):
    X, P, positive, negative, anchor = (tensor.detach() for tensor in inputs())
    P = P.t().contiguous().t() if columns else P
    sets, scale = SETS[sets], torch.tensor(0.5).double()
    arguments = {"embeddings": X, "proxies": P, "positive_bias": positive, "backend": "auto", "operand": torch.float64}
    arguments |= flatten(AnchorOptions(4.0, sets, X.new_full((B,), 0.3)))._asdict()
    for biases in ({"negative_bias": negative, "anchor_bias": anchor}, {"negative_bias": None, "anchor_bias": None}):
        for scales, want in (
            ((scale, scale), [True] * 4),
            ((scale, scale), [False, True, False, False]),
            ((torch.rand(C).double(), scale), [False, False, True, True]),
            ((None, None), [True, False, False, False]),
        ):
            upstream = dict(zip(("upstream_positive", "upstream_negative"), scales, strict=True))
            torch.library.opcheck(anchor_sweep_op, (), arguments | biases | upstream | {"want": want})


EVERY = (0, 1, 2, 3, 4)


@pytest.mark.parametrize("wanted", nightly_but([EVERY], [EVERY, (0,), (1,), (2,), (4,)]))
@pytest.mark.parametrize("kind", nightly_but(["factors"], SETS))
def test_compiled_is_as_eager(kind, wanted):
    """Values and gradients of both ways, whatever has a gradient; and again where the last batch is smaller."""
    torch.use_deterministic_algorithms(False)  # its NaN filling is not traced
    torch._dynamo.reset()
    scales, factors = (torch.tensor(0.5).double(), torch.tensor(0.7).double()), SETS["factors"]

    def both(X, P, positive, negative, anchor, labels, confidences, hidden):
        sets = {
            "labels": lambda: LabelSets.of(labels),
            "confidences": lambda: ConfidenceSets(100.0, 0.1, confidences),
            "factors": lambda: ConfidenceSets(9.0, 0.5, None, hidden, factors.weight, factors.bias),
        }[kind]()
        biases = AnchorBiases(positive, negative, anchor)
        lse = anchor_lse(X, P, sets, biases, alpha=4.0)
        loss = anchor_loss(X, P, sets, biases, *scales, alpha=4.0)
        return (lse.positive * 2).sum() + (lse.negative**2).sum() + 3 * loss

    compiled = torch.compile(both, fullgraph=True, backend="aot_eager")
    X, P, positive, negative, anchor = (tensor.detach() for tensor in inputs())
    of_batch = (LABELS, SETS["confidences"].confidences, factors.hidden)
    for batch in (B, B - 2):
        tensors = [X[:batch], P, positive[:batch], negative[:batch], anchor]
        tensors = [tensor.clone().requires_grad_(place in wanted) for place, tensor in enumerate(tensors)]
        arguments = (*tensors, *(tensor[:batch] for tensor in of_batch))
        ours, theirs = compiled(*arguments), both(*arguments)
        torch.testing.assert_close(ours, theirs)
        leaves = [tensors[place] for place in wanted]
        torch.testing.assert_close(*(torch.autograd.grad(value, leaves) for value in (ours, theirs)))


def test_confidences_of_another_type_are_cast_chunk_by_chunk():
    X, P, positive, negative, _ = (tensor.detach().float() for tensor in inputs())
    confidences = torch.rand(B, C)
    biases = AnchorBiases(positive, negative)
    ours = anchor_lse(X, P, ConfidenceSets(100.0, 0.1, confidences.bfloat16()), biases, alpha=4.0)
    theirs = anchor_lse(X, P, ConfidenceSets(100.0, 0.1, confidences.bfloat16().float()), biases, alpha=4.0)
    assert all(torch.equal(mine, other) for mine, other in zip(ours, theirs, strict=True))


def test_a_confidence_at_the_threshold_is_of_a_negative(backend):
    """X_p⁺ holds what lies above the threshold, and nothing else."""
    X, P = torch.randn(5, 4).double(), torch.randn(3, 4).double()
    bias = torch.zeros(5).double()
    sets = ConfidenceSets(100.0, 0.25, torch.full((5, 3), 0.25).double())
    lse = anchor_lse(X, P, sets, AnchorBiases(bias, bias), alpha=2.0, backend=backend)
    assert torch.equal(lse.positive, torch.zeros(3).double())
    assert (lse.negative > 0).all()


def test_labels_that_came_from_a_gpu_are_sorted_where_that_is_needed(backend):
    bias, y = torch.zeros(B), torch.tensor([3, 0, 1, 3, 2, 0])
    X, P = torch.randn(B, D), torch.randn(4, D)
    unsorted, kept = (
        anchor_lse(X, P, sets, AnchorBiases(bias, bias), alpha=2.0, backend=backend)
        for sets in (LabelSets(y), LabelSets.of(y))
    )
    torch.testing.assert_close(unsorted, kept, rtol=0, atol=0)
    F32, present = torch.float32, torch.tensor([True, False, True, True, False, False])
    assert LabelSets(y).count(None, F32) == LabelSets.of(y).count(None, F32) == 4
    assert LabelSets(y).count(present, F32) == 2
    assert LabelSets(y).count(present & False, F32) == 1
    assert LabelSets(y).count(present | True, F32) == 4


@pytest.mark.parametrize("count", [1, 5, 300, 3000])
def test_sorted_stably_and_counted(count):
    y = torch.randint(-2, 40, (count,)).masked_fill(torch.rand(count) < 0.1, ABSENT)
    sets, (ordered, order) = LabelSets.of(y), torch.sort(y, stable=True)
    assert torch.equal(sets.sorted_labels, ordered)
    assert torch.equal(sets.order, order)
    assert sets.count(None, torch.float32) == len(y.unique())
