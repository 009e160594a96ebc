"""Gradients of bfloat16 proxies near their samples, by planned steps and by the general way of Triton's kernels."""

import pytest
import torch
import triton.language as tl
from triton.runtime import interpreter

from robustdml_ops.engine import similarity_chunks
from robustdml_ops.losses.families.metric_loss import ShardableLoss
from tests.launches import everywhere
from tests.losses import near_cases
from tests.triton_here import DEVICE, MARKS

pytestmark = [*MARKS, pytest.mark.skipif(DEVICE.type == "cuda", reason="cuBLAS multiplies there: see bench.gpu")]
pytestmark.append(pytest.mark.filterwarnings("ignore:(invalid value|All-NaN slice|divide):RuntimeWarning"))
pytestmark.append(pytest.mark.filterwarnings("ignore:.*an optimiser that rounds to the nearest:UserWarning"))

CONVERT = interpreter._convert_float


def exact(A, B, out):
    """Products of a tensor core, whose sums are float32."""
    return out.copy_(A.float() @ B.float())


def converted(values, source, target, mode):
    """As a GPU converts; the interpreter cuts digits off."""
    if (source, target) == (tl.float32, tl.bfloat16):
        return torch.from_numpy(values.copy()).bfloat16().view(torch.uint16).numpy()
    return CONVERT(values, source, target, mode)


@pytest.fixture(autouse=True)
def bfloat16_products(monkeypatch):
    """Operands of bfloat16, as on a GPU."""
    monkeypatch.setattr(interpreter, "_convert_float", converted)
    add = {"accumulate": lambda total, A, B: total.copy_(total.float() + A.float() @ B.float())}
    with everywhere(multiplies_bfloat16=lambda _: True, product=exact, **add):
        yield


@pytest.mark.parametrize("way", ["general", "planned", "without terms"])
@pytest.mark.parametrize("noise", near_cases.NOISES)
@pytest.mark.parametrize("kind", near_cases.KINDS)
def test_gradient_of_proxies_near_their_samples(kind, noise, way, monkeypatch):
    if way != "planned":
        monkeypatch.setattr(ShardableLoss, "_planned", lambda *_: None)
    if way == "without terms":
        monkeypatch.setattr(similarity_chunks, "saved_limit", 0)
    terms = kind in near_cases.TERMS and way != "without terms"
    near_cases.assert_as_exact_as_rounding(kind, near_cases.NOISES[noise], 3.5 if terms else 2, backend="triton")
