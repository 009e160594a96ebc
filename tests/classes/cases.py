"""Problems of the class log-sum-exp, for every backend that runs on a GPU."""

from functools import partial

import torch

from robustdml_ops.backends.dispatch import operand_dtype
from robustdml_ops.engine.labels import ELSEWHERE, LabelSets
from robustdml_ops.ops.classes.backends import BACKENDS
from robustdml_ops.ops.classes.sweep import ClassProblem, Request, class_sweep, class_sweep_backward

EAGER = BACKENDS["eager"]
HERE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Case:
    """A problem in float64 on the CPU, to be had in any type and on any device."""

    def __init__(
        self,
        shape,
        pooling="none",
        H=1,
        *,
        scale=16,
        bias=True,
        masked=0.2,
        exclude=False,
        normalize=True,
        K=None,
        drop=None,
        weighted=False,
    ):
        self.B, self.C, self.D = B, C, D = shape
        random = torch.Generator().manual_seed(B + C)
        normal = lambda *size: torch.randn(*size, generator=random, dtype=torch.float64)  # noqa: E731
        self.proxies, self.labels = normal(C * H, D), torch.randint(C, (B,), generator=random)
        self.embeddings = normal(B, D)
        self.embeddings[::2] = 0.3 * self.embeddings[::2] + self.proxies[self.labels[::2] * H]
        if K is not None:
            self.labels = torch.rand(B, C, generator=random).argsort(1)[:, :K]
            self.labels[torch.rand(self.labels.shape, generator=random) < 0.3] = ELSEWHERE
        self.logit_weights = normal(C) if weighted else None
        self.upstream = normal(B), normal(*self.labels.shape) if not weighted else normal(B, (K or 1) + 1)
        self.scale = normal(1)[0] if scale is None else scale * torch.rand(C, generator=random, dtype=torch.float64)
        self.bias = normal(C).masked_fill_(torch.rand(C, generator=random) < masked, -torch.inf) if bias else None
        self.settings = {"target_bias": 0.3, "exclude_target": exclude, "centers": H, "pooling": pooling}
        self.settings |= {"gamma": 0.2, "normalize": normalize}
        self.drop = None if drop is None else torch.linspace(drop - 0.2, drop + 0.2, B, dtype=torch.float64)

    def run(self, backend, device=HERE, dtype=torch.float32, operand=None, fused=False, saves=False):
        """lse, target, dX and dP, maybe from saved terms; the fused forward has none to go back through."""
        X, P = (tensor.to(device, operand or dtype) for tensor in (self.embeddings, self.proxies))
        to = lambda tensor: None if tensor is None else tensor.to(device, dtype)  # noqa: E731
        labels, operand = LabelSets.of(self.labels.to(device), self.labels.dim() == 2), operand_dtype(dtype, X)
        given = {
            "scale": to(self.scale),
            "bias": to(self.bias),
            "drop_similar_negatives": to(self.drop),
            "logit_weights": to(self.logit_weights),
            **self.settings,
        }
        problem = ClassProblem(labels=labels, **given)
        request = Request((not fused, not fused), graded=not fused, bounded=saves)
        *results, saved = class_sweep(X, P, problem, backend, operand, request)
        if fused:
            return dict(zip(("lse", "target"), results, strict=True))
        upstream = tuple(map(to, self.upstream))
        given = (problem, results, upstream, backend, operand, (True, True))
        gradients = class_sweep_backward(X, P, *given, saved=saved)
        return dict(zip(("lse", "target", "dX", "dP"), (*results, *gradients), strict=True))

    def check(self, backend, device=HERE, dtype=torch.float32, operand=None, fused=False, saves=False):
        """|ours − exact| ≤ 4 · |eager in the same type − exact| + a few roundings, and NaN where eager has it."""
        if operand is not None:
            self.embeddings, self.proxies = (x.to(operand).double() for x in (self.embeddings, self.proxies))
        ours = self.run(backend, device, dtype, operand, fused, saves)
        eager = self.run(EAGER, device, dtype, operand)
        exact = self.run(EAGER, torch.device("cpu"), torch.float64)
        assert torch.equal(ours["lse"].isnan(), eager["lse"].isnan())
        assert fused or not ours["dP"].cpu()[(self.proxies == 0).all(1)].any()
        roundings = (16 if dtype == torch.float32 else 64) * torch.finfo(dtype).eps  # float64's truth is rounded, too
        for name in ours:
            truth = exact[name]
            masked = truth == -torch.inf
            assert torch.equal(ours[name].cpu() == -torch.inf, masked), name
            assert truth.isnan().any() or not ours[name].isnan().any(), name
            masked |= ours[name].isnan().cpu() | truth.isnan()
            mine, theirs, truth = (v.cpu().double().masked_fill(masked, 0) for v in (ours[name], eager[name], truth))
            error, eager_error = (mine - truth).abs().max(), (theirs - truth).abs().max()
            allowed = 4 * eager_error + roundings * (1 + truth.abs().max())
            assert error <= allowed, f"{name}: {error:.3g}, eager {eager_error:.3g}"


def a_zero_proxy_stored_by_column():
    case = Case((33, 20, 12))
    case.proxies[3] = 0
    case.proxies = case.proxies.t().contiguous().t()
    return case


def logits_that_rise():
    case = Case((9, 70, 6))
    case.bias = 20 * torch.arange(-35.0, 35.0, dtype=torch.float64)
    return case


def a_proxy_of_nan(pooling, H):
    case = Case((9, 11, 6), pooling, H, bias=False)
    case.proxies[4, 1] = torch.nan
    return case


POOLINGS = [("none", 1), ("softmax", 1), ("max", 3), ("softmax", 3)]
EDGES = {
    "one scale": lambda: Case((33, 70, 24), scale=None, bias=False),
    "without the target": lambda: Case((33, 70, 24), exclude=True),
    "proxies as they are": lambda: Case((33, 70, 24), normalize=False),
    "large logits": lambda: Case((9, 70, 6), scale=9600),
    "logits that rise": logits_that_rise,
    "everything masked": lambda: Case((9, 70, 6), exclude=True, masked=1),
    "every negative dropped": lambda: Case((9, 70, 6), drop=-0.999, exclude=True),
    "a zero proxy stored by column": a_zero_proxy_stored_by_column,
    **{
        f"{pooling} of {H}, K={K}, similar ones dropped": partial(Case, (33, 70, 12), pooling, H, K=K, drop=0.2)
        for pooling, H in POOLINGS
        for K in (None, 3)
    },
    **{
        f"{pooling} of {H}, K={K}, a weighted sum of logits": partial(
            Case, (33, 70, 12), pooling, H, K=K, bias=False, weighted=True
        )
        for pooling, H in POOLINGS
        for K in (None, 3)
    },
    **{f"NaN, {pooling} of {H}": partial(a_proxy_of_nan, pooling, H) for pooling, H in POOLINGS},
}
