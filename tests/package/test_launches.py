"""Upper bounds on the launches of each step on a GPU. Where a figure falls, lower it here."""

import json
from contextlib import nullcontext
from functools import partial

import pytest
import torch

from robustdml_ops import losses
from robustdml_ops.robust import PRISM
from tests.launches import counted, fused_steps
from tests.subprocesses import ROOT

pytestmark = pytest.mark.usefixtures("as_in_training")
META = torch.device("meta")
BF16 = torch.bfloat16


def count(make, B, D, targets=None, more=()):
    """Launches of a loss and its gradients from bfloat16 embeddings."""
    with META:
        loss = make()
        X = torch.empty(B, D, dtype=BF16, requires_grad=True)
        y = torch.empty(B, dtype=torch.int64) if targets is None else torch.empty(targets)
        more = [torch.empty(shape, dtype=dtype) for shape, dtype in more]
        with counted() as launches:
            loss(X, y, *([None, *more] if more else ())).backward()
    return launches


BANK = (((100_000, 128), BF16), ((100_000,), torch.int64))
LARGE_BANK = (((10**6, 128), BF16), ((10**6,), torch.int64))
# what is counted, launches, calls of PyTorch's dispatcher; one launch is autograd's first gradient of 1
STEPS = {
    "Proxy-Anchor": ((lambda: losses.ProxyAnchorLoss(10**5, 512), 1024, 512), 10, 24),
    "Smooth, dense": ((lambda: losses.SmoothProxyAnchorLoss(10**5, 128), 256, 128, (256, 10**5)), 38, 63),
    "Proxy-NCA": ((lambda: losses.ProxyNCALoss(10**5, 512), 1024, 512), 12, 28),
    "Proxy-Anchor, small": ((lambda: losses.ProxyAnchorLoss(10**5, 128).to(BF16), 256, 128), 9, 22),
    "softmax, small": ((lambda: losses.NormalizedSoftmaxLoss(10**5, 128).to(BF16), 256, 128), 12, 32),
    "ArcFace": ((lambda: losses.ArcFaceLoss(10**5, 512), 1024, 512), 71, 114),
    "Proxy-Anchor, a tenth": ((lambda: losses.ProxyAnchorLoss(10**6, 512, negative_share=0.1), 1024, 512), 108, 145),
    "SoftTriple": ((lambda: losses.SoftTripleLoss(10**4, 128, 10), 256, 128), 42, 76),
    "multi-similarity": ((losses.MultiSimilarityLoss, 1024, 128), 8, 21),
    "multi-similarity, a large batch": ((losses.MultiSimilarityLoss, 8192, 128), 8, 21),
    "multi-similarity with a bank": ((losses.MultiSimilarityLoss, 64, 128, None, LARGE_BANK), 9, 23),
    "contrastive": ((losses.ContrastiveLoss, 1024, 128), 10, 26),
    "contrastive with a bank": ((losses.MemoryContrastiveLoss, 256, 128, None, BANK), 16, 48),
}


@pytest.mark.parametrize("name", STEPS)
def test_launches_of_a_step(name):
    step, launches, calls = STEPS[name]
    found = count(*step)
    told = f"{dict(found.kernels)} {dict(found.operations)}"
    assert 0 < found.total <= launches, f"{found.total}: {told}"
    assert found.calls <= calls, f"{found.calls}: {told}"


PREDICTED = json.loads((ROOT / "bench" / "results" / "predicted.json").read_text())["steps"]
KINDS = {"Proxy-Anchor": losses.ProxyAnchorLoss, "normalised softmax": losses.NormalizedSoftmaxLoss}


@pytest.mark.parametrize(
    "row", PREDICTED, ids=lambda row: f"{row['what']} {row['C']:.0e} {row['D']}{' fused' * row.get('fused', False)}"
)
def test_traffic_of_bfloat16_proxies(row):
    """S is written and read, 8·B·C, dS written and read twice, 6·B·C; P is read four times; dP goes through float32.

    So do the terms of softmax in place of dS. A fused step writes terms and reads them twice, 6·B·C, and no S. The
    least is checked, too: what is not counted would pass as not moved.
    """
    B, C, D, fused = row["B"], row["C"], row["D"], row.get("fused", False)
    with fused_steps() if fused else nullcontext():
        found = count(lambda: KINDS[row["what"]](C, D).to(BF16), B, D)
    assert row["launches"] - 3 <= found.total <= row["launches"]
    assert found.bytes > (6 if fused else 14) * B * C + 16 * C * D
    assert 0.98e9 * row["gigabytes"] < found.bytes <= 1e9 * row["gigabytes"]


def test_traffic_of_a_batch_with_itself():
    """S is written and read, 8·n², dS written and read twice, 6·n², by no more than its kernel and products."""
    n, D = 8192, 128
    found = count(losses.MultiSimilarityLoss, n, D)
    assert 14 * n * n < found.bytes <= 14 * n * n + 64 * n * D


# more chunks of twice the classes, and launches of each: products, Triton's kernels, others
CHUNKS = {
    "Proxy-Anchor": (losses.ProxyAnchorLoss, 10**6, 8, (3, 3, 0)),
    "Proxy-NCA": (losses.ProxyNCALoss, 5 * 10**5, 4, (3, 5, 0)),
    "Proxy-NCA, no room": (losses.ProxyNCALoss, 2 * 10**6, 15, (4, 6, 0)),
}


@pytest.mark.parametrize("name", CHUNKS)
def test_launches_of_a_chunk(name):
    kind, C, chunks, expected = CHUNKS[name]
    few, many = (count(partial(kind, classes, 512), 1024, 512) for classes in (C, 2 * C))
    difference = many.operations - few.operations
    products = difference.pop("mm") + difference.pop("addmm")
    assert products == chunks * expected[0]
    assert (many.kernels - few.kernels).total() == chunks * expected[1]
    assert difference.total() == chunks * expected[2], dict(difference)


def test_terms_are_kept_up_to_a_share_of_the_memory():
    """2·B·C bytes of 80 GiB / 32; in backward they replace products with all proxies."""
    most = (80 << 30) // 32 // 2 // 1024
    step = lambda C: count(lambda: losses.NormalizedSoftmaxLoss(C, 8).to(BF16), 1024, 8)  # noqa: E731
    assert step(most).kernels["class_lse_backward"] == 0
    assert step(most + 1).kernels["class_lse_backward"] > 0


@pytest.mark.parametrize(
    ("similarity", "threshold", "launches"),
    [
        ("average", "smooth-top-r", 49),
        ("average", "per-class", 92),
        ("vmf", "smooth-top-r", 56),
        ("vmf", "cautious", 154),
    ],
)
def test_launches_of_a_filter(similarity, threshold, launches):
    """Filtering a batch, storing the kept samples in the bank, and refreshing their classes."""
    vmf = {"vmf_start": 0} if similarity == "vmf" else {}
    noise_rate = None if threshold == "cautious" else 0.5
    prism = PRISM(10**5, 128, similarity, noise_rate, threshold, memory_size=400_000, **vmf).to(META)
    X, y = torch.empty(256, 128, device=META), torch.zeros(256, dtype=torch.int64, device=META)
    for _ in range(2):
        with counted() as found:
            prism.enqueue(X, y, prism(X, y).keep)
    assert 0 < found.total <= launches, f"{found.total}: {dict(found.kernels)} {dict(found.operations)}"
