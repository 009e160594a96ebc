"""Problems of the anchor log-sum-exp, for every backend that runs on a GPU."""

import torch

from robustdml_ops.engine.label_sets import LabelSets
from robustdml_ops.engine.precision import operand_dtype
from robustdml_ops.ops.anchor.problem import AnchorProblem, ConfidenceSets, SweepResult, Wanted
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
            sets = LabelSets.of(self.labels.to(device))
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
        return AnchorProblem(self.alpha, positive, negative, anchor_bias, sets)

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
    """|ours − exact| ≤ 4 · |eager in the same type − exact| + a few roundings, and NaN nowhere."""
    exact = exact.to(ours.device)
    error, eager_error = (ours.double() - exact).abs().max(), (eager.double() - exact).abs().max()
    assert error <= 4 * eager_error + roundings * exact.abs().max(), f"{what}: {error:.3g}, eager {eager_error:.3g}"


def assert_sweeps_agree(ours: SweepResult, eager: SweepResult, exact: SweepResult, roundings=8):
    roundings *= torch.finfo(ours.lse_positive.dtype).eps
    for field, value in vars(exact).items():
        if value is not None:
            found = getattr(ours, field), getattr(eager, field)
            assert_as_exact_as_eager(*found, value, field, roundings)
