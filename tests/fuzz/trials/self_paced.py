"""Sample weights of BSPML: ``self_paced_descent`` and ``self_paced_sweep``."""

import torch
from hypothesis import strategies as st
from torch import Tensor

from python_ref import bspml
from robustdml_ops import ops
from tests.fuzz.draws import flags, floats, generator_of, label_vectors, normal, seeds, uniform
from tests.fuzz.oracle import Check, close
from tests.fuzz.trials.batches import Draw


def _problem(draw: Draw) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    N, generator = draw(st.integers(1, 14)), generator_of(draw(seeds))
    dtype = draw(floats)
    weights = uniform(generator, N) if draw(flags) else torch.ones(N, dtype=torch.float64)
    size = draw(st.sampled_from([0.0, 1e-3, 1.0, 20.0]))
    terms = [(size * normal(generator, N).abs()).to(dtype) for _ in range(2)]
    return weights.to(dtype), *terms, draw(label_vectors(N, draw(st.integers(1, 6))))


def _exact(tensors: tuple[Tensor, ...]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return (*(t.double() for t in tensors[:3]), tensors[3].long())


def self_paced_descent(draw: Draw) -> Check:
    given = _problem(draw)
    lam, mu = draw(st.sampled_from([0.1, 1.0, 4.0])), draw(st.sampled_from([0.0, 0.5, 5.0]))
    steps = draw(st.sampled_from([0, 1, 20, 1000]))

    def judge() -> None:
        start, positive, negative, labels = _exact(given)
        # In float64, so that the result is what the descent came to and not its rounding.
        w = ops.self_paced_descent(start, positive, negative, labels, lam=lam, mu=mu, steps=steps)
        assert ((w >= 0) & (w <= 1)).all()
        values = [bspml.self_paced_objective(v, positive, negative, labels, lam, mu) for v in (start, w)]
        assert values[1] <= values[0] + 1e-12 * (1 + values[0].abs()), "the objective rose"
        sizes = torch.bincount(labels, minlength=int(labels.max()) + 1)[labels].double()
        slope = sizes * bspml.self_paced_gradient(w, positive, negative, labels, lam, mu)
        downhill = (w - (w - slope).clamp(0, 1)).abs().max()
        if steps == 0:
            assert torch.equal(w, start)
        moved = (w - start).abs().max()
        assert steps < 1000 or downhill <= 1e-3 or moved > 0, f"it stopped where weights can move by {float(downhill)}"
        narrow = ops.self_paced_descent(*given, lam=lam, mu=mu, steps=steps)
        assert narrow.dtype == given[0].dtype
        close("in its own type", narrow, w, 0 * w + 2 * torch.finfo(narrow.dtype).eps)

    return Check(judge)


def self_paced_sweep(draw: Draw) -> Check:
    given = _problem(draw)
    lam, mu = draw(st.sampled_from([0.1, 1.0, 4.0])), draw(st.sampled_from([0.0, 0.5, 5.0]))
    rate, seed = draw(st.sampled_from([1e-2, 0.5, 3.0])), draw(st.integers(0, 2**64 - 1))
    few = {"classes_per_step": draw(st.integers(1, 4)), "samples_per_class": draw(st.integers(1, 4))}
    settings = {"lam": lam, "mu": mu, "learning_rate": rate, "decay": draw(st.sampled_from([0.0, 0.1])), "seed": seed}
    steps = draw(st.integers(0, 30))

    def judge() -> None:
        results = [ops.self_paced_sweep(*given, steps=steps, backend=b, **few, **settings) for b in ("native", "eager")]
        assert torch.equal(*results), "the backends have other bits"
        assert results[0].dtype == given[0].dtype and ((results[0] >= 0) & (results[0] <= 1)).all()
        # One step with all samples drawn: the gradient of the reference, at the one weight that moved.
        start, positive, negative, labels = _exact(given)
        N = len(labels)
        whole = {"classes_per_step": N, "samples_per_class": N}
        w = ops.self_paced_sweep(start, positive, negative, labels, steps=1, **whole, **settings)
        expected = []
        for a in range(N):
            own = (labels == labels[a]).nonzero()[:, 0]
            others = [(labels == k).nonzero()[:, 0] for k in labels.unique() if k != labels[a]]
            G = bspml.stochastic_gradient(start, positive, negative, labels, a, own[own != a], others, lam, mu)
            expected.append((start[a] - rate * G).clamp(0, 1))
        moved = (w != start).nonzero()[:, 0].tolist()
        assert len(moved) <= 1, "a step moved several weights"
        expected = torch.stack(expected)
        fits = (w - expected).abs() <= 1e-13 * (1 + 100 * rate)
        assert fits[moved].all() and fits.any(), f"moved {moved} to {w.tolist()}, expected one of {expected.tolist()}"

    return Check(judge)


TRIALS = {"self_paced_descent": self_paced_descent, "self_paced_sweep": self_paced_sweep}
