"""Language guidance against the reference."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from python_ref import language_guidance_losses
from robustdml_ops.losses import LanguageGuidanceLoss


def inputs(B, k, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    X = torch.randn(B, 6, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
    return X, torch.randn(B, k, 4, generator=generator, dtype=torch.float64).to(dtype), torch.arange(B) // 2


@given(
    B=st.integers(1, 12),
    k=st.integers(1, 5),
    direction=st.sampled_from(["forward", "backward"]),
    shift=st.sampled_from([None, 0.0, 1.0, -0.5]),
    temperature=st.sampled_from([0.2, 1.0, 3.0]),
    seed=st.integers(0, 2**16),
)
@settings(max_examples=40, deadline=None)
def test_matches_the_reference(B, k, direction, shift, temperature, seed):
    X, text, y = inputs(B, k, seed)
    ours = LanguageGuidanceLoss(direction, shift, temperature, reduction="none")(X, text, y)
    # Without labels each sample is a class of its own: its cosine with itself is the 1 that stands there anyway.
    labels, raised = (torch.arange(B), 0.0) if shift is None else (y, shift)
    theirs = language_guidance_losses(X, text, labels, raised, temperature, direction)
    torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(LanguageGuidanceLoss(direction, shift, temperature)(X, text, y), theirs.mean())
    if B > 1:
        gradients = (torch.autograd.grad(losses @ torch.linspace(1, 2, B).double(), X)[0] for losses in (ours, theirs))
        torch.testing.assert_close(*gradients, rtol=1e-9, atol=1e-12)


def test_zero_vectors_and_half_precision():
    X, text, _ = inputs(6, 2, dtype=torch.bfloat16)
    X.data[1] = 0
    text[2, 0] = 0
    loss = LanguageGuidanceLoss()(X, text)
    assert loss.dtype == torch.float32
    loss.backward()
    assert torch.isfinite(X.grad).all()
    assert not X.grad[1].any()
    X, text, _ = inputs(6, 2, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(LanguageGuidanceLoss()(X, text), LanguageGuidanceLoss()(X, text).float())


def test_bad_input():
    X, text, y = inputs(4, 2)
    for bad in (text[:, :0], text[:, :, :0]):
        with pytest.raises(ValueError, match="must have k >= 1 texts a sample and d >= 1, got"):
            LanguageGuidanceLoss()(X, bad)
    for bad in (text[:3], text[:, 0], text.long()):
        with pytest.raises(ValueError, match=r"text_embeddings must be floating point of shape \(4, k, d\)"):
            LanguageGuidanceLoss()(X, bad)
    with pytest.raises(ValueError, match=r"pass text_embeddings.detach\(\)"):
        LanguageGuidanceLoss()(X, text.clone().requires_grad_())
    with pytest.raises(ValueError, match=r"shift=1\.0 treats equal labels apart: give labels, or shift=None"):
        LanguageGuidanceLoss(shift=1.0)(X, text)
    with pytest.raises(ValueError, match=r"labels must have shape \(4,\)"):
        LanguageGuidanceLoss(shift=1.0)(X, text, y[:2])
    with pytest.raises(ValueError, match=r"text_embeddings\[2\] has NaN or inf"):
        LanguageGuidanceLoss()(X, text.index_fill(0, torch.tensor([2]), torch.nan))
    with pytest.raises(ValueError, match="direction='up': expected one of forward, backward"):
        LanguageGuidanceLoss("up")
