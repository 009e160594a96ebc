"""What the weighted informative batch loss of BSPML has beside the other losses."""

import torch
from cases import assert_close, make_case

from robustdml_ops.losses import BSPMLLoss, MultiSimilarityLoss


def test_zero_weights_may_be_left_out_altogether():
    whole, kept_alone = (make_case("bspml", 24, 4, 6, reduction="none") for _ in range(2))
    kept = torch.arange(24) % 3 > 0
    whole.weights = kept.double()
    kept_alone.keep(kept)
    as_printed, whole.module.exclude_zero_weights = whole.ours(), True
    ours, theirs = whole.ours(), kept_alone.ours()
    assert_close(ours[kept], theirs)
    (gradient,), (expected,) = (
        torch.autograd.grad(loss.sum(), case.embeddings) for loss, case in ((ours, whole), (theirs, kept_alone))
    )
    assert_close(gradient[kept], expected)
    assert ((as_printed - ours).abs() > 1e-3).any()
    assert not as_printed[~kept].any() and not ours[~kept].any()


def test_without_weights_it_is_mined_multi_similarity():
    case = make_case("bspml", 30, 4, 6)
    plain = MultiSimilarityLoss(2, 50, 1.0, epsilon=0.1)(case.embeddings, case.labels)
    for weights in (None, torch.ones(30, dtype=torch.float64)):
        assert_close(BSPMLLoss()(case.embeddings, case.labels, sample_weights=weights), plain)


def test_weights_are_constants():
    case = make_case("bspml", 9, 3, 4, weighted=True)
    case.weights.requires_grad_()
    case.ours().backward()
    assert case.weights.grad is None
