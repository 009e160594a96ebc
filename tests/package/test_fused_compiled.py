"""The kernel of product and exponential compiled ahead of time, as planned steps launch it where a card asks for it."""

from collections import Counter
from functools import partial

import pytest

from robustdml_ops import losses
from robustdml_ops.backends import cards
from tests.ahead_of_time import ARCHITECTURES, check, instructions
from tests.nightly import nightly_but
from tests.package.test_kernels_compiled import BF16, FUSED, compiled_for, step

fused = partial(step, fused=True)
CALLS = {
    "Proxy-Anchor, bf16": fused(losses.ProxyAnchorLoss, BF16, 512, 1024),
    "Proxy-Anchor, autocast": fused(losses.ProxyAnchorLoss, None, 128, 256, weighted=True),
    "Proxy-Anchor, autocast, odd": fused(losses.ProxyAnchorLoss, None, 104, 1008, 501),
    "softmax, bf16": fused(losses.NormalizedSoftmaxLoss, BF16, 512, 1024),
    "softmax, autocast": fused(losses.NormalizedSoftmaxLoss, None),
    "softmax, bf16, odd": fused(losses.NormalizedSoftmaxLoss, BF16, 104, 1008, 504),
    "Proxy-NCA, bf16": fused(losses.ProxyNCALoss, BF16),
}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("name", nightly_but(["Proxy-Anchor, bf16", "softmax, bf16"], CALLS))
@pytest.mark.usefixtures("as_in_training", "exact_products")
def test_compiles_without_spills_within_shared_memory(name, architecture, tmp_path):
    compiled = compiled_for(architecture, name, CALLS)
    assert "fused_terms" in dict(compiled)
    for kernel in compiled:
        check(*kernel, architecture, tmp_path, FUSED)


@pytest.mark.parametrize(("name", "most"), [("Proxy-Anchor", 4), ("softmax", 5)])
@pytest.mark.usefixtures("as_in_training")
def test_instructions_of_a_fused_step(name, most, tmp_path):
    """An element is scaled, raised, added and rounded; terms of softmax are scaled once more. Tiles move by TMA."""
    kernel = dict(compiled_for(90, f"{name}, bf16", CALLS))["fused_terms"]
    tile = cards.CARDS["sm_90"].tiles["fused_terms"]
    a_thread = tile["rows"] * tile["columns"] / (32 * tile["num_warps"])
    code = [instruction.split()[0] for instruction in instructions(kernel, tmp_path)[0]]
    counts = Counter(name.split(".")[0] for name in code)
    assert code.count("MUFU.EX2") == a_thread
    # Masks of tiles with labels, beside them, take FSEL and comparisons.
    arithmetic = counts["FMUL"] + counts["FADD"] + counts["FFMA"] + counts["MUFU"] + code.count("F2FP.BF16.F32.PACK_AB")
    assert 3.5 * a_thread <= arithmetic <= (most + 0.5) * a_thread
    assert "cp.async.bulk.tensor" in kernel.asm["ptx"]
