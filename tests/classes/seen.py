"""What a sweep over the classes sees of each sample beside its sums, against the whole matrix in float64."""

import torch

from robustdml_ops.engine.labels import LabelSets
from robustdml_ops.ops.classes.autograd import Settings, sweep_values
from robustdml_ops.ops.classes.backends import BACKENDS
from robustdml_ops.ops.classes.sweep import ClassProblem, ClassSeen, Request, class_sweep
from tests.classes.cases import HERE, POOLINGS, Case

SEEN = {
    f"{pooling} of {H}, {what}": (pooling, H, settings)
    for pooling, H in POOLINGS
    for what, settings in {
        "one label": {},
        "K=3, similar ones dropped": {"K": 3, "drop": 0.2},
        "bounded": {"scale": None, "bias": False},
        "a weighted sum of logits": {"bias": False, "weighted": True},
    }.items()
}


def dense(case):
    """Similarities (B, C) of a case, and which count, without labels."""
    H, pooling, gamma = (case.settings[name] for name in ("centers", "pooling", "gamma"))
    unit = torch.nn.functional.normalize
    S = (unit(case.embeddings) @ unit(case.proxies).t()).view(case.B, case.C, H)
    s = (torch.softmax(S / gamma, 2) * S).sum(2) if pooling == "softmax" else S.amax(2)
    labels = case.labels.view(case.B, -1)
    counted = torch.ones_like(s, dtype=torch.bool)
    if case.bias is not None:
        counted &= case.bias > -torch.inf
    if case.drop is not None:
        counted &= s <= case.drop[:, None]
    own = torch.zeros_like(counted)
    for place in labels.t():
        own[(place >= 0).nonzero()[:, 0], place[place >= 0]] = True
    return s, counted & ~own


def check_seen(name, backend, dtype=torch.float64, fused=False, device=HERE):
    """``nearest`` to roundings, and ``above`` exactly, as no similarity is within a rounding of ``own``."""
    pooling, H, settings = SEEN[name]
    case = Case((33, 70, 12), pooling, H, **settings)
    s, counted = dense(case)
    ordered = s.masked_fill(~counted, -torch.inf).sort(1, descending=True).values
    own = ordered[:, :6].mean(1).nan_to_num(neginf=0.0)
    to = lambda tensor: None if tensor is None else tensor.to(device, dtype)  # noqa: E731
    given = {
        "scale": to(case.scale),
        "bias": to(case.bias),
        "drop_similar_negatives": to(case.drop),
        "logit_weights": to(case.logit_weights),
        **case.settings,
    }
    problem = ClassProblem(LabelSets.of(case.labels.to(device), case.labels.dim() == 2), **given)
    X, P, seen = to(case.embeddings), to(case.proxies), ClassSeen.of(to(own))
    if fused:
        sweep_values(X, P, problem, Settings(False, backend, dtype), seen=seen)
    else:
        class_sweep(X, P, problem, BACKENDS[backend], dtype, Request((True, True), True, False), seen=seen)
    tolerance = {"rtol": 0, "atol": 64 * torch.finfo(dtype).eps}
    torch.testing.assert_close(seen.nearest.double().cpu(), ordered[:, 0], **tolerance)
    assert seen.above.long().tolist() == (counted & (s > own[:, None])).sum(1).tolist()
    assert (seen.above > 1).any()
