"""Problems of the anchor log-sum-exp, for every backend that runs on a GPU."""

from functools import partial

import torch

from robustdml_ops.backends.dispatch import operand_dtype
from robustdml_ops.engine.labels import ELSEWHERE, LabelSets
from robustdml_ops.ops.anchor.backends import AnchorOptions, AnchorProblem, ConfidenceSets, SweepResult, Wanted
from robustdml_ops.ops.anchor.sweep import BACKENDS, anchor_sweep

EAGER = BACKENDS["eager"]
HERE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SETS = ["labels", "confidences by sample", "confidences by class", "logits"]


class Case:
    """A problem in float64 on the CPU, to be had in any type and on any device."""

    def __init__(self, shape, sets, seed=0, alpha=32.0, beta=20.0, anchor_bias=True):
        self.B, self.C, self.D = B, C, D = shape
        random = torch.Generator().manual_seed(seed)
        normal = lambda *size: torch.randn(*size, generator=random, dtype=torch.float64)  # noqa: E731
        self.kind, self.alpha, self.beta = sets, alpha, beta
        self.drop_similar_negatives, self.label_weights = None, None
        self.proxies = normal(C, D)
        # Half of the embeddings are close to a proxy, so that the sums have something to choose from.
        self.labels = torch.randint(C, (B,), generator=random)
        self.embeddings = normal(B, D)
        self.embeddings[::2] = 0.3 * self.embeddings[::2] + self.proxies[self.labels[::2]]
        self.positive_bias, self.negative_bias = normal(B), normal(B)
        self.anchor_bias = normal(C) if anchor_bias else None
        self.confidences = normal(B, C).sub_(1.5).sigmoid_()
        self.factors = normal(B, 4), normal(C, 4), normal(C)
        self.upstream = normal(C), normal(C)

    def problem(self, device, dtype) -> AnchorProblem:
        to = lambda tensor: tensor.to(device, dtype)  # noqa: E731
        if self.kind == "labels":
            weights = None if self.label_weights is None else to(self.label_weights)
            sets = LabelSets.of(self.labels.to(device), weights=weights)
        elif self.kind == "logits":
            hidden, weight, bias = map(to, self.factors)
            sets = ConfidenceSets(self.beta, 0.3, hidden=hidden, weight=weight, bias=bias)
        else:
            confidences = to(self.confidences)
            by_class = self.kind == "confidences by class"
            sets = ConfidenceSets(self.beta, 0.3, confidences.t().contiguous().t() if by_class else confidences)
        anchor_bias = None if self.anchor_bias is None else to(self.anchor_bias)
        positive = to(self.positive_bias)
        negative = positive if self.negative_bias is self.positive_bias else to(self.negative_bias)
        limits = None if self.drop_similar_negatives is None else to(self.drop_similar_negatives)
        return AnchorProblem(AnchorOptions(self.alpha, sets, limits), positive, negative, anchor_bias)

    def sweep(self, backend, device=HERE, dtype=torch.float32, operand=None, want=None) -> SweepResult:
        inputs = [tensor.to(device, operand or dtype) for tensor in (self.embeddings, self.proxies)]
        upstream = tuple(tensor.to(device, dtype) for tensor in self.upstream)
        want = want or Wanted(lse=True, embeddings=True, proxies=True, biases=True)
        operand = operand_dtype(dtype, inputs[0])
        return anchor_sweep(*inputs, self.problem(device, dtype), upstream, backend, operand, want)

    def exact(self, operand=torch.float64, want=None) -> SweepResult:
        """The eager answer in float64, from inputs that ``operand`` can hold."""
        self.embeddings, self.proxies = (x.to(operand).double() for x in (self.embeddings, self.proxies))
        return self.sweep(EAGER, torch.device("cpu"), torch.float64, want=want)


def assert_as_exact_as_eager(ours, eager, exact, what="", roundings=8 * 2.0**-23):
    """|ours − exact| ≤ 4 · |eager in the same type − exact| + a few roundings; NaN and exact zeros stay.

    On a GPU 6, as its exponential is the fast one.
    """
    exact = exact.to(ours.device)
    assert torch.equal(ours.isnan(), eager.isnan()), what
    assert not ours[exact == 0].any(), what
    ours, eager, exact = (values.double().masked_fill(eager.isnan(), 0) for values in (ours, eager, exact))
    error, eager_error = (ours - exact).abs().max(), (eager - exact).abs().max()
    times = 6 if ours.is_cuda else 4
    assert error <= times * eager_error + roundings * exact.abs().max(), f"{what}: {error:.3g}, eager {eager_error:.3g}"


def assert_sweeps_agree(ours: SweepResult, eager: SweepResult, exact: SweepResult, roundings=8):
    roundings *= 2.0**-23 if ours.lse_positive is None else torch.finfo(ours.lse_positive.dtype).eps
    for field, value in vars(exact).items():
        if value is not None:
            found = getattr(ours, field), getattr(eager, field)
            assert_as_exact_as_eager(*found, value, field, roundings)


def large_alpha_and_absent_samples():
    """Exponents of ±500, margins, and samples of weight 0: all in a row, all of the batch's last block."""
    case = Case((130, 40, 17), "labels", alpha=500.0)
    case.positive_bias[::3] += 50
    case.positive_bias[1::3] = case.negative_bias[1::3] = -torch.inf
    case.positive_bias[64:] = case.negative_bias[64:] = -torch.inf
    return case


def one_bias_for_both_sides():
    case = Case((33, 65, 8), "labels", anchor_bias=False)
    case.negative_bias = case.positive_bias
    return case


def one_upstream_value(positive, negative):
    case = Case((33, 65, 8), "labels", anchor_bias=False)
    shared = (positive, negative)
    case.upstream = tuple(part[0] if one else part for one, part in zip(shared, case.upstream, strict=True))
    return case


def small_sums():
    """They keep their digits."""
    case = Case((6, 5, 4), "labels", alpha=1.0, anchor_bias=False)
    case.positive_bias.fill_(-30)
    case.negative_bias.fill_(-30)
    return case


def zero_rows():
    """Of cosine zero, and without a gradient."""
    case = Case((9, 70, 6), "labels")
    case.embeddings[2], case.proxies[[0, 69]] = 0, 0
    return case


def only_one_class_has_samples(upstream):
    """The others have a gradient from their negatives alone."""
    case = Case((33, 70, 8), "labels", anchor_bias=False)
    case.labels[:] = 69
    case.upstream = tuple(torch.full((70,), value, dtype=torch.float64) for value in upstream)
    return case


def similar_negatives_left_out(sets, alpha=32.0, limit=0.3):
    """Those left out have the largest exponents, and no positive is; each candidate has a limit of its own."""
    case = Case((130, 40, 5), sets, alpha=alpha)
    case.drop_similar_negatives = torch.linspace(limit - 0.2, limit + 0.2, case.B, dtype=torch.float64)
    return case


def several_labels(weighted, drop_similar_negatives=None):
    """Distinct ones, up to three; some samples have none."""
    case = Case((130, 40, 7), "labels", seed=1)
    case.drop_similar_negatives = (
        None if drop_similar_negatives is None else torch.full((case.B,), drop_similar_negatives, dtype=torch.float64)
    )
    case.labels = torch.stack([case.labels, case.labels // 2 + 20, torch.full_like(case.labels, ELSEWHERE)], 1)
    case.labels[case.labels[:, 0] == case.labels[:, 1], 1] = ELSEWHERE
    case.labels[::3, 2], case.labels[1::3, 0], case.labels[4] = 3, ELSEWHERE, ELSEWHERE
    case.labels[case.labels[:, 0] == 3, 2] = ELSEWHERE
    if weighted:
        case.label_weights = torch.rand(case.labels.shape, generator=torch.Generator().manual_seed(5)).double()
    return case


def a_proxy_of_nan():
    case = Case((9, 70, 6), "labels")
    case.proxies[3, 1] = torch.nan
    return case


def stored_by_column():
    case = Case((33, 20, 12), "labels")
    case.embeddings, case.proxies = (x.t().contiguous().t() for x in (case.embeddings, case.proxies))
    return case


EDGES = {
    "large alpha and absent samples": large_alpha_and_absent_samples,
    "large alpha of confidences": lambda: Case((130, 40, 17), "confidences by sample", alpha=500.0, beta=100.0),
    "one bias for both sides": one_bias_for_both_sides,
    "one upstream value": lambda: one_upstream_value(True, True),
    "one upstream value for positives": lambda: one_upstream_value(True, False),
    "one upstream value for negatives": lambda: one_upstream_value(False, True),
    "small sums": small_sums,
    "zero rows": zero_rows,
    "upstream of positives alone": lambda: only_one_class_has_samples((1.0, 0.0)),
    "upstream of negatives alone": lambda: only_one_class_has_samples((0.0, 1.0)),
    **{f"{sets}, limited": partial(similar_negatives_left_out, sets) for sets in SETS[:2]},
    "labels of large alpha, limited": partial(similar_negatives_left_out, "labels", 500.0, -0.1),
    "confidences of large alpha, limited": partial(similar_negatives_left_out, SETS[1], 500.0, -0.1),
    "a proxy of NaN": a_proxy_of_nan,
    "stored by column": stored_by_column,
    "several labels": partial(several_labels, False),
    "several labels, weighted, limited": partial(several_labels, True, 0.2),
}
