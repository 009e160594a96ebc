"""PRISM and its bank raise on bad input, and their state stays as it was."""

import copy

import pytest
import torch
from states import assert_same_state

from robustdml_ops.robust import PRISM

C, D = 5, 3
X, Y = torch.randn(4, D), torch.tensor([0, 1, 2, 1])
BANK = {"noise_rate": 0.5, "memory_size": 10}
VMF = BANK | {"similarity": "vmf", "vmf_start": 0}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"noise_rate": 1.2, "memory_size": 9}, r"noise_rate must lie in \[0, 1\], got 1.2: .*percentage"),
        ({"noise_rate": -0.1, "memory_size": 9}, r"noise_rate must lie in \[0, 1\]"),
        ({"noise_rate": float("nan"), "memory_size": 9}, r"noise_rate must lie in \[0, 1\], got nan"),
        ({"memory_size": 9}, "noise_rate is missing, and threshold='smooth-top-r' needs it"),
        ({"noise_rate": 0.5}, "memory_size is missing"),
        ({"noise_rate": 0.5, "memory_size": 0}, "capacity must be at least 1, got 0"),
        (BANK | {"window": 0}, "window must be at least 1, got 0"),
        (BANK | {"similarity": "cosine"}, "similarity='cosine': expected one of average, proxy, vmf"),
        (BANK | {"threshold": "median"}, "threshold='median': expected one of smooth-top-r"),
        (BANK | {"threshold": "otsu"}, 'threshold="otsu" needs similarity="vmf", got "average"'),
        (VMF | {"threshold": "otsu", "noise_rate": 2}, "noise_rate must lie in"),
        (VMF | {"preset": "paper", "threshold": "otsu"}, 'preset="paper" has no threshold="otsu"'),
        (BANK | {"preset": "ours"}, "preset='ours': expected one of None, paper"),
        (BANK | {"unseen": "one"}, "unseen='one'"),
        (BANK | {"similarity": "vmf"}, "vmf_start is missing"),
        (BANK | {"similarity": "vmf", "vmf_start": -1}, "vmf_start must be at least 0, got -1"),
        (VMF | {"estimator": "map"}, "estimator='map'"),
        (VMF | {"bias_correction": "v"}, "bias_correction='v'"),
        (VMF | {"unseen": "zero"}, "unseen='zero' is of no use here"),
        (BANK | {"vmf_start": 3}, 'vmf_start=3 is of no use here: it belongs to similarity="vmf"'),
        (BANK | {"estimator": "newton"}, "estimator='newton' is of no use here"),
        (BANK | {"bias_correction": "u"}, "bias_correction='u' is of no use here"),
        (BANK | {"similarity": "proxy"}, "memory_size=10 is of no use here"),
        ({"similarity": "proxy", "noise_rate": 0.5, "num_samples": 9}, "num_samples=9 is of no use here"),
        (BANK | {"max_copies": 2}, "max_copies=2 is of no use here: it belongs to num_samples"),
        (BANK | {"max_copies": 0, "num_samples": 9}, "max_copies must be at least 1, got 0"),
        (BANK | {"num_samples": 0}, "num_samples must be at least 1, got 0"),
        (BANK | {"threshold": "fixed"}, "fixed_threshold is missing"),
        (BANK | {"threshold": "fixed", "fixed_threshold": 0.5}, "noise_rate=0.5 is of no use here"),
        (BANK | {"fixed_threshold": 0.5}, "fixed_threshold=0.5 is of no use here"),
        ({"memory_size": 9, "threshold": "fixed", "fixed_threshold": -0.5}, r"fixed_threshold must lie in \[0, 1\]"),
        (BANK | {"num_classes": 0}, "num_classes must be at least 1, got 0"),
        (BANK | {"memory_dtype": torch.int8}, "dtype must be a floating-point type"),
        (BANK | {"preset": "paper", "threshold": "per-class"}, 'preset="paper" has no threshold="per-class"'),
        (BANK | {"preset": "paper", "num_samples": 9}, 'preset="paper" has no num_samples'),
        (BANK | {"preset": "paper", "unseen": "zero"}, 'preset="paper" has unseen="skip", got "zero"'),
        (
            VMF | {"preset": "paper", "bias_correction": "u"},
            'has bias_correction="none", got "u": leave one out',
        ),
    ],
)
def test_settings_that_do_not_fit(given, message):
    with pytest.raises(ValueError, match=message):
        PRISM(**({"num_classes": C, "embedding_size": D} | given))


def test_vmf_on_a_line():
    with pytest.raises(ValueError, match="needs embedding_size ≥ 2"):
        PRISM(C, 1, "vmf", vmf_start=0, **BANK)
    assert PRISM(C, 1, **BANK)(torch.ones(2, 1), torch.tensor([0, 1])).keep.all()


def test_preset_and_defaults():
    paper = PRISM(C, D, preset="paper", **VMF).scores.vmf
    ours = PRISM(C, D, **VMF).scores.vmf
    assert (paper.estimator, paper.bias_correction) == ("prism", "none")
    assert (ours.estimator, ours.bias_correction) == ("newton", "u")
    same = PRISM(C, D, preset="paper", estimator="prism", unseen=None, **VMF)
    assert same.scores.vmf.estimator == "prism"


def nan_in_row_2():
    return X.clone().index_fill_(0, torch.tensor([2]), torch.nan)


@pytest.mark.parametrize(
    ("batch", "error", "message"),
    [
        ((torch.ones(4, 2), Y, Y), ValueError, "embeddings must have 3 columns"),
        ((X.long(), Y, Y), ValueError, "embeddings must be a floating-point matrix"),
        ((nan_in_row_2(), Y, Y), ValueError, r"embeddings\[2\] has NaN or inf"),
        ((X.to("meta"), Y, Y), ValueError, "must be on one device"),
        ((X, Y[:2], Y), ValueError, r"labels must have shape \(4,\)"),
        ((X, Y.float(), Y), ValueError, "labels must be integers"),
        ((X, Y + 3, Y), IndexError, r"labels\[2\] = 5 is outside 0 … 4"),
        ((X, Y - 1, Y), IndexError, r"labels\[0\] = -1"),
        ((X, Y), ValueError, "sample_ids is missing"),
        ((X, Y, Y[:2]), ValueError, r"sample_ids must be integers of shape \(4,\)"),
        ((X, Y, [0, 1, 2, 3]), TypeError, "sample_ids must be a torch.Tensor, not list"),
        ((X, Y, Y + 8), IndexError, r"sample_ids\[1\] = 9 is outside 0 … 8"),
        ((X, Y, Y, torch.randn(C, D)), ValueError, 'proxies are of no use to similarity="vmf"'),
    ],
)
def test_bad_batches_change_nothing(batch, error, message):
    prism = PRISM(C, D, "vmf", threshold="per-class", vmf_start=1, num_samples=9, **BANK)
    prism.enqueue(X, Y, prism(X, Y, Y).keep, Y)
    before = copy.deepcopy(prism)
    with pytest.raises(error, match=message):
        prism(*batch)
    if len(batch) < 4:
        with pytest.raises(error, match=message):
            prism.enqueue(*batch[:2], torch.ones(4, dtype=torch.bool), *batch[2:])
        with pytest.raises(error, match=message.replace("embeddings", "features")):
            prism.bank.enqueue(*batch)
    assert_same_state(prism, before)


@pytest.mark.parametrize("similarity", ["average", "proxy"])
@pytest.mark.parametrize(
    ("batch", "error", "message"),
    [
        ((nan_in_row_2().nan_to_num(torch.inf), Y), ValueError, r"embeddings\[2\] has NaN or inf"),
        ((X, Y + 3), IndexError, r"labels\[2\] = 5 is outside 0 … 4"),
    ],
)
def test_every_similarity_looks_at_the_values(similarity, batch, error, message):
    proxies = torch.randn(C, D) if similarity == "proxy" else None
    prism = PRISM(C, D, similarity, 0.5, memory_size=9 if proxies is None else None)
    with pytest.raises(error, match=message):
        prism(*batch, proxies=proxies)
    with pytest.raises(error, match=message):
        prism.enqueue(*batch, torch.ones(4, dtype=torch.bool))


@pytest.mark.parametrize("keep", [torch.ones(4), torch.ones(2, dtype=torch.bool), [True] * 4])
def test_keep_of_another_kind(keep):
    prism = PRISM(C, D, **BANK)
    for enqueue in (prism.enqueue, lambda X, Y, keep: prism.bank.enqueue(X, Y, keep=keep)):
        with pytest.raises(ValueError, match=r"keep must be bool of shape \(4,\), got .*: pass PRISM's result.keep"):
            enqueue(X, Y, keep)
    assert not prism.bank.enqueued


@pytest.mark.parametrize(
    ("proxies", "error", "message"),
    [
        (None, ValueError, "proxies are missing"),
        ([1.0], TypeError, "proxies must be a torch.Tensor, not list"),
        (torch.randn(C, D + 1), ValueError, r"proxies must be floating point of shape \(5, 3\) or \(5, H, 3\)"),
        (torch.randn(D, C), ValueError, r"got \(3, 5\) of torch.float32: give its transpose, .T"),
        (torch.randn(C + 1, 2, D), ValueError, "proxies must be floating point"),
        (torch.ones(C, D, dtype=torch.int64), ValueError, "proxies must be floating point"),
        (torch.randn(C, D, device="meta"), ValueError, "must be on one device"),
    ],
)
def test_proxies_that_do_not_fit(proxies, error, message):
    prism = PRISM(C, D, "proxy", 0.5)
    with pytest.raises(error, match=message):
        prism(X, Y, proxies=proxies)
    assert not prism.scores.observed.any()


def test_states_that_do_not_fit():
    prism = PRISM(C, D, **VMF)
    state = prism.state_dict()
    for bad in (float("nan"), -1.0, float("inf")):
        broken = copy.deepcopy(state)
        broken["scores.vmf.kappa"][3] = bad
        with pytest.raises(ValueError, match=rf"kappa\[3\] = {bad}: it must be at least 0 and finite"):
            prism.load_state_dict(broken)
    with pytest.raises(ValueError, match="vmf_start=7, but the state is of iteration 0 with vmf_start=0"):
        PRISM(C, D, "vmf", vmf_start=7, **BANK).load_state_dict(state)
    with pytest.raises(RuntimeError, match="Missing key"):
        prism.load_state_dict(PRISM(C, D, **BANK).state_dict())


def test_a_backend_that_cannot_run():
    for similarity, more in (("average", BANK), ("proxy", {"noise_rate": 0.5})):
        proxies = torch.randn(C, D) if similarity == "proxy" else None
        with pytest.raises(ValueError, match="abacus"):
            PRISM(C, D, similarity, backend="abacus", **more)(X, Y, proxies=proxies)


def test_what_a_similarity_does_not_have():
    prism = PRISM(C, D, "proxy", 0.5)
    with pytest.raises(RuntimeError, match='similarity="proxy" has no bank'):
        _ = prism.bank
    with pytest.raises(RuntimeError, match="has no kappa"):
        _ = prism.kappa
    with pytest.raises(RuntimeError, match="cautious"):
        _ = prism.wrong_share
