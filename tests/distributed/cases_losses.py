"""Each loss on shards against the same loss on one process: value and all gradients, float64, 1e-10."""

from functools import partial

import torch
from torch import nn

from robustdml_ops import losses
from robustdml_ops.distributed import shard_classes
from robustdml_ops.ops import ABSENT
from tests.distributed.worlds import CLASSES, NIGHTLY, Place, backward_alike, case, close, register, sharded

C, D, K = CLASSES, 6, 5
LOSSES = {
    "proxy_anchor": partial(losses.ProxyAnchorLoss, C, D),
    "smooth": partial(losses.SmoothProxyAnchorLoss, C, D, beta=7.0, drop_similar_negatives=0.2),
    "adaptive": partial(losses.AdaptiveProxyAnchorLoss, C, D),
    "adaptive_per_class": partial(losses.AdaptiveProxyAnchorLoss, C, D, per_class=True),
    "adaptive_per_proxy": partial(
        losses.AdaptiveProxyAnchorLoss, C, D, per_class=True, negative_margin="proxy", drop_similar_negatives=0.2
    ),
    "proxy_nca": partial(losses.ProxyNCALoss, C, D, 3.0),
    "proxy_nca_2017": partial(losses.ProxyNCALoss, C, D, include_positive=False),
    "normalized_softmax": partial(losses.NormalizedSoftmaxLoss, C, D),
    "cosface": partial(losses.CosFaceLoss, C, D),
    "cosface_margins": partial(losses.CosFaceLoss, C, D, torch.linspace(0, 0.4, C)),
    "arcface": partial(losses.ArcFaceLoss, C, D),
    "arcface_margins": lambda **options: losses.ArcFaceLoss(C, D, nn.Parameter(torch.linspace(0, 40, C)), **options),
    "arcface_smoothed": partial(losses.ArcFaceLoss, C, D, label_smoothing=0.2, weight=torch.linspace(0, 2, C)),
    "adaface": partial(losses.AdaFaceLoss, C, D),
    "subcenter_arcface": partial(losses.SubCenterArcFaceLoss, C, D, sub_centers=2),
    "soft_triple": partial(losses.SoftTripleLoss, C, D, 3, regularizer_weight=0.2),
    "several_proxy_anchor": partial(losses.ProxyAnchorLoss, C, D, alpha=8, drop_similar_negatives="own"),
    "several_arcface": partial(losses.ArcFaceLoss, C, D, drop_similar_negatives="own"),
    "several_margins": lambda **options: losses.CosFaceLoss(C, D, nn.Parameter(torch.linspace(0, 0.4, C)), **options),
    "several_smoothed": partial(losses.SoftTripleLoss, C, D, 3, label_smoothing=0.2, weight=torch.linspace(0, 2, C)),
    "several_sampled": partial(losses.NormalizedSoftmaxLoss, C, D, drop_similar_negatives=0.3, negative_share=0.3),
}


class Batch:
    """What all processes are given, of which each takes its own part."""

    def __init__(self, place: Place, part: slice, name: str, weighted: bool):
        generator = torch.Generator().manual_seed(3)
        random = partial(torch.randn, generator=generator, dtype=torch.float64)
        B = place.batch_size
        X, labels, weights = random(B, D), torch.randint(C - 2, (B,), generator=generator), random(B).abs()
        weights[::4] = 0
        hidden, self.weight, self.bias = random(B, K), random(C, K), random(C) - 1
        self.X = X[part].clone().requires_grad_()
        self.weights = weights[part].clone().requires_grad_() if weighted else None
        self.labels, self.options = labels[part], {}
        if name.startswith("several"):
            self.labels = torch.rand(B, C, generator=generator).argsort(1)[part, :3]
            self.labels[:, 1].masked_fill_(labels[part] % 2 == 0, ABSENT)
            self.options = {"label_weights": random(B, 3).abs()[part].requires_grad_("anchor" not in name)}
        self.target = (hidden[part], self.weight, self.bias) if name == "smooth" else self.labels

    def loss(self, loss):
        return loss(self.X, self.target, sample_weights=self.weights, **self.options)


def make(name, **options):
    torch.manual_seed(1)
    loss = LOSSES[name](**options).double()
    if name.startswith("adaptive"):
        loss.margins.data += 0.1 * torch.rand_like(loss.margins)
    return loss


def assert_same(place, one, many, mine, own):
    """Gradients of the batch, and of parameters, whose DTensors are put together."""
    own_rows = place.own
    close(own.X.grad, mine.X.grad[own_rows])
    for option, given in own.options.items():
        if given.requires_grad:
            close(given.grad, mine.options[option].grad[own_rows])
    if mine.weights is not None and mine.weights.grad is not None:  # those of BSPML are constants
        close(own.weights.grad, mine.weights.grad[own_rows])
    for (name, parameter), other in zip(one.named_parameters(), many.parameters(), strict=True):
        expected = one.by_class(name, parameter.grad) if hasattr(one, "by_class") else parameter.grad
        assert (other.grad.placements, other.grad.stride()) == (other.placements, other.stride())
        assert other.grad.to_local().is_contiguous() and other.to_local().is_contiguous()
        close(other.grad.full_tensor(), expected)


def check(place, one, weighted=False, name="", kind=Batch, compiled=False):
    """Value and all gradients of a loss on shards are those of one process; both batches."""
    mine, own = (kind(place, part, name, weighted) for part in (slice(None), place.own))
    many = sharded(place, one)
    expected, found = mine.loss(one), own.loss(torch.compile(many, backend="aot_eager") if compiled else many)
    backward_alike(place, many, 3 * found, 3 * expected)
    assert_same(place, one, many, mine, own)
    return mine, own


def under_the_compiler(name, place):
    """By graphs, between which the processes exchange."""
    torch.use_deterministic_algorithms(False)  # its NaN filling is not traced
    torch._dynamo.reset()
    try:
        check(place, make(name), True, name, compiled=True)
    finally:
        torch.use_deterministic_algorithms(True)


for _name in LOSSES:
    register(f"{_name}_compiled", partial(under_the_compiler, _name), 2)
    NIGHTLY.add((2, f"losses.{_name}_compiled"))
    # Every process has the mean of all; own samples' losses, or own classes' terms.
    for _reduction in ("mean", "none", *(["sum"] if "smooth" in _name else [])):
        register(
            f"{_name}_{_reduction}",
            lambda place, name=_name, reduction=_reduction: check(place, make(name, reduction=reduction), True, name),
        )
    register(f"{_name}_plain", lambda place, name=_name: check(place, make(name), False, name), 2)


PROCSIM = {
    "procsim": {},
    "procsim_guided": {
        "omega": 2.0, "regularizer": losses.LanguageGuidanceLoss(reduction="none"), "confidence_on_regularizer": True
    },
    "procsim_contrastive": {"dml": losses.ContrastiveLoss(0.2, 1.4, reduction="none"), "drop_above": True},
    "procsim_mean": {"threshold": "mean", "drop_above": True},
    "procsim_nca": {"dml": "proxy-nca"},
    "procsim_detector": {"detector": "multi-similarity"},
}  # fmt: skip


def of_procsim(name, place):
    """Threshold and means of the batch of all, in two steps, since a running mean has a state."""
    torch.manual_seed(1)
    one = losses.ProcSimLoss(C, D, 0.3, **PROCSIM[name]).double()
    many = sharded(place, one)
    for _ in range(2):
        mine, own = Batch(place, slice(None), name, False), Batch(place, place.own, name, False)
        texts = mine.X.detach()[:, None] + 1 if name == "procsim_guided" else None
        expected = one.step(mine.X, mine.labels, texts)
        found = many.step(own.X, own.labels, None if texts is None else texts[place.own])
        close(found.threshold, expected.threshold)
        close(found.confidence, expected.confidence[place.own])
        one.zero_grad()
        many.zero_grad()
        backward_alike(place, many, found.loss, expected.loss)
        assert_same(place, one, many, mine, own)


for _name in PROCSIM:
    register(_name, partial(of_procsim, _name), 2, 4)


@case(2)
def no_samples_at_all(place):
    """The loss is 0, connected to the graph, and all gradients are 0."""
    for name in ("proxy_anchor", "normalized_softmax"):
        loss = shard_classes(make(name), place.mesh)
        X = torch.zeros(0, D, dtype=torch.float64, requires_grad=True)
        value = loss(X, torch.zeros(0, dtype=torch.int64))
        value.backward()
        assert value == 0 and X.grad.shape == (0, D)
        assert all(not parameter.grad.full_tensor().any() for parameter in loss.parameters())


@case(3)
def two_batches_before_one_backward(place):
    """Each backward is that of its own batch, whose parts had other sizes."""
    one = make("proxy_nca")
    many = sharded(place, one)
    mine, own = Batch(place, slice(None), "", False), Batch(place, place.own, "", False)
    other = slice(place.rank, place.rank + 1)
    expected = mine.loss(one) + one(mine.X[:3], mine.labels[:3])
    found = own.loss(many), many(mine.X.detach()[other], mine.labels[other])
    expected.backward()
    found[0].backward()
    found[1].backward()
    for name, parameter in one.named_parameters():
        close(getattr(many, name).grad.full_tensor(), parameter.grad)


@case(2)
def autocast_and_half_precision(place):
    """The numbers of one process in the same types, up to the order of sums."""
    for dtype, amp in ((torch.float32, True), (torch.bfloat16, False)):
        one = make("proxy_anchor").float()
        many = sharded(place, one)
        mine, own = Batch(place, slice(None), "", False), Batch(place, place.own, "", False)
        X, x = (batch.X.detach().to(dtype).requires_grad_() for batch in (mine, own))
        with torch.autocast("cpu", torch.bfloat16, enabled=amp):
            expected, found = one(X, mine.labels), many(x, own.labels)
        assert found.dtype == torch.float32
        torch.testing.assert_close(found, expected)
        expected.backward()
        found.backward()
        assert x.grad.dtype == dtype
        # Operands of products are rounded to bfloat16: dS by lanes of one process, or of each with its own sums.
        pairs = (x.grad, X.grad[place.own]), (many.proxies.grad.full_tensor(), one.proxies.grad)
        for mine, whole in pairs:
            torch.testing.assert_close(mine, whole, rtol=1e-2, atol=1e-2 * float(whole.abs().max()))
