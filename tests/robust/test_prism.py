"""PRISM against the paper's equations over sequences of batches, and what a training run asks of it."""

import io

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from prism_oracle import Oracle

from robustdml_ops.robust import PRISM

C, D, H, N = 5, 4, 2, 12
SIMILARITIES = ("average", "proxy", "vmf", "batch-positive", "memory-positive")
THRESHOLDS = ("top-r", "smooth-top-r", "per-class", "fixed")
few = settings(max_examples=6, deadline=None, derandomize=True)
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

plans = st.fixed_dictionaries(
    {
        "sizes": st.lists(st.integers(0, 12), min_size=4, max_size=9),
        "memory_size": st.integers(1, 40),
        "noise_rate": st.sampled_from([0, 0.1, 0.29, 0.5, 0.75, 1]),
        "fixed": st.floats(0.01, 1),
        "window": st.integers(1, 4),
        "vmf_start": st.integers(0, 4),
        "own_copies": st.booleans(),
        "unseen": st.sampled_from(["skip", "zero"]),
        "bias_correction": st.sampled_from(["none", "u"]),
        "seed": st.integers(0, 2**32),
    }
)


def settings_of(plan, similarity, threshold):
    """What of the plan these two take."""
    chosen = {"similarity": similarity, "threshold": threshold, "window": plan["window"]}
    if threshold == "fixed":
        chosen["fixed_threshold"] = plan["fixed"]
    else:
        chosen["noise_rate"] = plan["noise_rate"]
    if similarity in ("average", "vmf", "memory-positive"):
        chosen["memory_size"] = plan["memory_size"]
        if not plan["own_copies"]:
            chosen |= {"num_samples": N, "max_copies": 40}
    if similarity == "average":
        chosen["unseen"] = plan["unseen"]
    if similarity == "vmf":
        chosen |= {"vmf_start": plan["vmf_start"], "bias_correction": plan["bias_correction"], "estimator": "prism"}
    return chosen


def batches_of(plan, similarity, dtype=torch.float64):
    """Rows about a direction per class; the last class comes late."""
    random = torch.Generator().manual_seed(plan["seed"])
    centers = torch.randn(C, D, generator=random, dtype=torch.float64)
    for number, B in enumerate(plan["sizes"]):
        labels = torch.randint(C if number > 2 else C - 1, (B,), generator=random)
        X = centers[labels] + 0.7 * torch.randn(B, D, generator=random, dtype=torch.float64)
        ids = torch.randint(N, (B,), generator=random)
        shape = (C, H, D) if number % 2 else (C, D)
        proxies = torch.randn(shape, generator=random, dtype=torch.float64) if similarity == "proxy" else None
        yield X.to(dtype), labels, ids, None if proxies is None else proxies.to(dtype)


@pytest.mark.parametrize("threshold", THRESHOLDS)
@pytest.mark.parametrize("similarity", SIMILARITIES)
@few
@given(plan=plans)
def test_sequences_are_the_papers(similarity, threshold, plan):
    chosen = settings_of(plan, similarity, threshold)
    prism, oracle = PRISM(C, D, memory_dtype=torch.float64, **chosen), Oracle(C, **chosen)
    for X, labels, ids, proxies in batches_of(plan, similarity):
        result = prism(X, labels, ids, proxies)
        keep, scores, m = oracle.step(X, labels, ids, proxies)
        kappa = float(prism.kappa.max()) if similarity == "vmf" else 1.0
        close = {"rtol": 1e-9, "atol": 1e-13 * (1 + kappa), "check_dtype": False}
        torch.testing.assert_close(result.log_p_clean, scores, **close)
        torch.testing.assert_close(result.threshold, m, **close)
        assert result.keep.tolist() == keep.tolist()
        rejected = ids[~keep].tolist()
        assert result.rejected_ids.tolist() == rejected + [-1] * (len(ids) - len(rejected))
        prism.enqueue(X, labels, result.keep, ids)
        oracle.enqueue(X, labels, ids, keep)


@pytest.mark.parametrize("similarity", SIMILARITIES)
@few
@given(plan=plans)
def test_float32_loses_no_more_than_the_reference_in_float32(similarity, plan):
    """All is kept, so that all see the same bank."""
    chosen = settings_of(plan, similarity, "top-r") | {"noise_rate": 0}
    prism, oracle, same_type = PRISM(C, D, **chosen), Oracle(C, **chosen), Oracle(C, dtype=torch.float32, **chosen)
    for X, labels, ids, proxies in batches_of(plan, similarity, torch.float32):
        result = prism(X, labels, ids, proxies)
        expected, others = (of.step(X, labels, ids, proxies)[1] for of in (oracle, same_type))
        assert result.log_p_clean.dtype == torch.float32
        kappa = float(prism.kappa.max()) if similarity == "vmf" else 1.0
        bound = 4 * (others - expected).abs().max() + 4e-7 * (1 + kappa) if len(X) else 0.0
        assert ((result.log_p_clean - expected).abs() <= bound + 1e-6 * expected.abs()).all()
        for bank in (prism, oracle, same_type):
            bank.enqueue(X, labels, keep=result.keep, **{"sample_ids" if bank is prism else "ids": ids})


@pytest.mark.parametrize("threshold", THRESHOLDS)
@pytest.mark.parametrize("similarity", SIMILARITIES)
@settings(max_examples=2, deadline=None, derandomize=True)
@given(plan=plans, cut=st.integers(0, 5))
def test_resumes_bit_for_bit(similarity, threshold, plan, cut):
    def run(prism, batches):
        results = []
        for X, labels, ids, proxies in batches:
            results.append(prism(X, labels, ids, proxies))
            prism.enqueue(X, labels, results[-1].keep, ids)
        return results

    chosen = settings_of(plan, similarity, threshold)
    batches = list(batches_of(plan, similarity, torch.float32))
    unbroken, broken, resumed = (PRISM(C, D, **chosen) for _ in range(3))
    expected = run(unbroken, batches)[cut:]
    run(broken, batches[:cut])
    file = io.BytesIO()
    torch.save(broken.state_dict(), file)
    file.seek(0)
    resumed.load_state_dict(torch.load(file))
    for result, other in zip(run(resumed, batches[cut:]), expected, strict=True):
        assert all(torch.equal(one, two) for one, two in zip(result, other, strict=True))
    states = resumed.state_dict(), unbroken.state_dict()
    assert states[0].keys() == states[1].keys()
    for name, value in states[0].items():
        torch.testing.assert_close(value, states[1][name], rtol=0, atol=0, equal_nan=True, msg=name)
