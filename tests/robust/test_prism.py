"""PRISM against the paper's equations over sequences of batches, and what a training run asks of it."""

import contextlib
import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from prism_oracle import Oracle
from states import assert_same_state, needs_gpu

from robustdml_ops.robust import PRISM

C, D, H, N = 5, 4, 2, 12
SIMILARITIES = PRISM.SIMILARITIES
THRESHOLDS = ("top-r", "smooth-top-r", "per-class", "fixed")
PAIRS = [(similarity, threshold) for similarity in SIMILARITIES for threshold in THRESHOLDS] + [("vmf", "otsu")]
few = settings(max_examples=6, deadline=None, derandomize=True)

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
    """The settings of the plan that this similarity and threshold take."""
    chosen = {"similarity": similarity, "threshold": threshold, "window": plan["window"]}
    if threshold == "fixed":
        chosen["fixed_threshold"] = plan["fixed"]
    else:
        chosen["noise_rate"] = plan["noise_rate"]
    if similarity in PRISM.SIMILARITIES_WITH_BANK:
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


@pytest.mark.parametrize(("similarity", "threshold"), PAIRS)
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


def test_names_of_the_state():
    """Saved runs have these: another name would lose them."""
    bank = {f"scores.bank.{name}" for name in ("features", "labels", "sample_ids", "sums", "counts", "enqueued")}
    copies = {f"scores.bank.copies.{name}" for name in ("latest", "earlier")}
    average = bank | {"scores.scale", "scores.bias"}
    vmf = average | {"scores.vmf.kappa", "scores.vmf.log_peak", "scores._extra_state"}
    vmf |= {"scores.iteration", "scores.vmf_scale", "scores.vmf_bias"}
    rings = {"threshold.recent", "threshold.scored"}
    cautious = {"threshold.shares", "threshold.cut.recent", "threshold.cut.scored"}
    for expected, arguments in (
        (average | {"threshold.quantiles"}, {"memory_size": 5}),
        (vmf | rings, {"similarity": "vmf", "vmf_start": 0, "threshold": "otsu", "memory_size": 5}),
        (average | copies | {"threshold.quantiles"}, {"memory_size": 5, "num_samples": 9}),
        (average | rings, {"threshold": "per-class", "memory_size": 5}),
        (vmf | cautious, {"similarity": "vmf", "vmf_start": 0, "threshold": "cautious", "memory_size": 5}),
        ({"scores.observed"}, {"similarity": "proxy", "threshold": "top-r"}),
    ):
        assert PRISM(C, D, noise_rate=0.5, **arguments).state_dict().keys() == expected


def unit_batch(seed=0, B=6, classes=3):
    random = torch.Generator().manual_seed(seed)
    return torch.randn(B, D, generator=random), torch.randint(classes, (B,), generator=random)


def test_scores_alone_change_nothing():
    X, labels = unit_batch()
    prism = PRISM(C, D, "vmf", 0.5, "per-class", memory_size=10, vmf_start=1)
    prism.enqueue(X, labels, prism(X, labels).keep)
    before = copy.deepcopy(prism)
    scores = prism.log_p_clean(X, labels)
    assert_same_state(prism, before)
    result = prism(X, labels)
    assert torch.equal(scores, result.log_p_clean)
    assert result.rejected_ids is None


def test_embeddings_of_any_scale_and_type_and_no_gradient():
    X, labels = unit_batch()
    prisms = [PRISM(C, D, "vmf", 0.5, memory_size=10, vmf_start=0) for _ in range(2)]
    for prism, given_ in zip(prisms, (X, (2.0**-120 * X).requires_grad_()), strict=True):
        prism.enqueue(given_, labels, torch.ones(6, dtype=torch.bool))
        assert not prism(given_, labels).log_p_clean.requires_grad
    assert_same_state(*prisms)
    result = prisms[0](X.bfloat16(), labels.int())
    assert result.log_p_clean.dtype == torch.float32


@pytest.mark.parametrize("similarity", SIMILARITIES)
def test_autocast_changes_no_score(similarity):
    X, labels = unit_batch(B=30)
    plan = {"window": 2, "noise_rate": 0, "memory_size": 40, "vmf_start": 0, "own_copies": True, "unseen": "skip"}
    proxies = torch.randn(C, H, D) if similarity == "proxy" else None
    results = []
    for enabled in (False, True):
        prism = PRISM(C, D, **settings_of(plan | {"bias_correction": "u"}, similarity, "top-r"))
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            prism.enqueue(X, labels, prism(X, labels, proxies=proxies).keep)
            results.append(prism(X, labels, proxies=proxies).log_p_clean)
    assert results[0].unique().numel() > 10
    assert torch.equal(*results)


def test_the_change_to_vmf_in_parts(monkeypatch):
    X, labels = unit_batch(B=12)
    prisms = [PRISM(C, D, "vmf", 0.3, memory_size=20, vmf_start=1, backend="eager") for _ in range(2)]
    for rows, prism in zip((2, 100), prisms, strict=True):
        monkeypatch.setattr("robustdml_ops.ops.vmf.backends._TOGETHER", rows)
        prism.enqueue(X, labels, torch.ones(12, dtype=torch.bool))
        prism(X, labels)
    torch.testing.assert_close(prisms[0].scores.bias, prisms[1].scores.bias)
    torch.testing.assert_close(prisms[0].scores.scale, prisms[1].scores.scale)


def test_own_copies_are_found_though_others_are_rejected():
    """Sample 0 is kept in every epoch: with R = 0.75 a bank of N rows holds four copies, and perhaps one more."""
    prism = PRISM(2, 2, "average", 0.75, memory_size=9, num_samples=9)
    for _ in range(5):
        prism.enqueue(torch.ones(1, 2), torch.tensor([0]), torch.tensor([True]), torch.tensor([0]))
    prism.enqueue(-torch.ones(3, 2), torch.zeros(3, dtype=torch.int64), torch.tensor([True] * 3), torch.arange(1, 4))
    prism.enqueue(torch.tensor([[1.0, -1.0]]), torch.tensor([1]), torch.tensor([True]), torch.tensor([4]))
    score = prism.log_p_clean(torch.ones(1, 2), torch.tensor([0]), torch.tensor([0]))
    # T is −1 for class 0 without its copies, 0 for class 1.
    torch.testing.assert_close(score, torch.tensor([-1.0]).sub(torch.tensor([-1.0, 0.0]).logsumexp(0)))


@pytest.mark.parametrize("threshold", THRESHOLDS)
@pytest.mark.parametrize("similarity", SIMILARITIES)
def test_no_value_is_read_back_from_the_device(similarity, threshold, monkeypatch):
    """Tensors on "meta" have shapes and no values: what asks for one fails."""
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: contextlib.nullcontext())  # there is none on "meta"
    plan = {"window": 2, "fixed": 0.5, "noise_rate": 0.5, "memory_size": 4, "vmf_start": 1, "own_copies": False}
    prism = PRISM(C, D, **settings_of(plan | {"unseen": "skip", "bias_correction": "u"}, similarity, threshold))
    prism = prism.to("meta")
    X, labels = torch.randn(6, D, device="meta"), torch.zeros(6, dtype=torch.int64, device="meta")
    proxies = torch.randn(C, H, D, device="meta") if similarity == "proxy" else None
    for _ in range(2):
        result = prism(X, labels, labels, proxies)
        assert result.keep.shape == result.rejected_ids.shape == (6,)
        prism.enqueue(X, labels, result.keep, labels)


@needs_gpu
@pytest.mark.parametrize("threshold", ["top-r", "smooth-top-r", "per-class"])
@pytest.mark.parametrize("similarity", SIMILARITIES)
def test_gpu_equals_cpu_without_a_stall(similarity, threshold, no_waiting):
    plan = {"window": 2, "noise_rate": 0.3, "memory_size": 30, "vmf_start": 2, "own_copies": False, "unseen": "skip"}
    chosen = settings_of(plan | {"bias_correction": "u"}, similarity, threshold)
    prisms = [PRISM(C, D, memory_dtype=torch.float64, **chosen).to(device) for device in ("cpu", "cuda")]
    for batch in batches_of({"sizes": [12] * 6, "seed": 0}, similarity):
        on_gpu = [None if tensor is None else tensor.cuda() for tensor in batch]
        expected = prisms[0](*batch)
        with no_waiting():
            result = prisms[1](*on_gpu)
            prisms[1].enqueue(*on_gpu[:2], result.keep, on_gpu[2])
        prisms[0].enqueue(*batch[:2], expected.keep, batch[2])
        torch.testing.assert_close(result.log_p_clean.cpu(), expected.log_p_clean, rtol=1e-8, atol=1e-8)
        assert torch.equal(result.keep.cpu(), expected.keep)
        assert torch.equal(result.rejected_ids.cpu(), expected.rejected_ids)
