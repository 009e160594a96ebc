"""Losses on pairs of samples with several labels, or with ids, against python_ref: float64, 1e-10."""

from functools import partial

import pytest
import torch

from robustdml_ops import losses
from robustdml_ops.ops import ABSENT
from robustdml_ops.python_ref import (
    contrastive_loss,
    info_nce_loss,
    multi_similarity_loss,
    nt_xent_loss,
    sigmoid_loss,
    supcon_loss,
)
from robustdml_ops.python_ref.anchor import cosine_similarity
from robustdml_ops.python_ref.pairs import pair_sets

B, M, D = 24, 17, 6


def memory_loss(X, y, vectors, vector_labels, ids, reduction="mean"):
    """Of MemoryContrastiveLoss: hinges of the batch, and again of the bank."""
    terms = 0
    for others, labels, of_others in ((X, None, None), (vectors, vector_labels, ids[1])):
        if others is not None:
            S, (positive, negative) = cosine_similarity(X, others), pair_sets(y, labels, ids[0], of_others)
            terms = terms + ((S - 0.5).clamp(min=0) * negative - S * positive).sum(1)
    return terms if reduction == "none" else terms.mean()


# loss, its formula in python_ref
LOSSES = {
    "ms": (losses.MultiSimilarityLoss, multi_similarity_loss),
    "ms mined": (partial(losses.MultiSimilarityLoss, epsilon=0.1), partial(multi_similarity_loss, epsilon=0.1)),
    "bspml": (losses.BSPMLLoss, partial(multi_similarity_loss, base=1.0, epsilon=0.1)),
    "contrastive": (losses.ContrastiveLoss, contrastive_loss),
    "contrastive cosine": (
        partial(losses.ContrastiveLoss, 0.9, 0.2, distance="cosine"),
        partial(contrastive_loss, pos_margin=0.9, neg_margin=0.2, distance="cosine"),
    ),
    "memory": (losses.MemoryContrastiveLoss, memory_loss),
    "supcon": (losses.SupConLoss, supcon_loss),
    "supcon inside": (partial(losses.SupConLoss, form="inside"), partial(supcon_loss, form="inside")),
    "nt-xent": (losses.NTXentLoss, nt_xent_loss),
}
KINDS = {"several labels": (True, False), "ids": (False, True), "both": (True, True)}


def normal(rows, columns=D, seed=0):
    generator = torch.Generator().manual_seed(seed + rows)
    return torch.randn(rows, columns, generator=generator, dtype=torch.float64, requires_grad=True)


def labels_of(rows, several, seed=0):
    """Of 9 classes one, or up to three that differ; some samples have none."""
    generator = torch.Generator().manual_seed(seed + rows)
    if not several:
        return torch.randint(5, (rows,), generator=generator)
    drawn = torch.stack([torch.randperm(9, generator=generator)[:3] for _ in range(rows)])
    return drawn.masked_fill(torch.rand(rows, 3, generator=generator) < 0.5, ABSENT)


def ids_of(rows, seed=0):
    """Of 8 numbers; some have none."""
    return torch.randint(-3, 8, (rows,), generator=torch.Generator().manual_seed(10 + seed + rows))


def of_kind(kind, rows):
    several, has_ids = KINDS[kind]
    return labels_of(rows, several), ids_of(rows) if has_ids else None


def assert_equal(ours, truth, leaves):
    torch.testing.assert_close(ours, truth, rtol=1e-10, atol=1e-10)
    upstream = torch.linspace(0.5, 2.0, truth.numel(), dtype=truth.dtype).reshape(truth.shape)
    pairs = zip(*(torch.autograd.grad(one, leaves, upstream) for one in (ours, truth)), strict=True)
    for mine, theirs in pairs:
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-10)


def is_planned(loss):
    return any(plan is not None for plan in loss._plans.known.values())


@pytest.mark.parametrize("backend", ["native", "eager"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", LOSSES)
def test_batch_and_candidates_against_the_reference(name, kind, backend):
    make, reference = LOSSES[name]
    X, C, weights = normal(B), normal(M), torch.arange(B).remainder(5).double()
    (y, ids), (z, ref_ids) = of_kind(kind, B), of_kind(kind, M)
    given = {"alone": (None, None, None), "bank": (C, z, ref_ids), "view": (normal(B, seed=1), y, None)}
    for where, (vectors, vector_labels, of_vectors) in given.items():
        if (name == "bspml" and where != "alone") or (name == "memory" and where == "view"):
            continue
        for reduction in ("mean", "none"):
            loss = make(backend=backend, reduction=reduction)
            candidates = () if vectors is None else (None, vectors, vector_labels)
            of_ids = {"ids": (ids, of_vectors), "reduction": reduction}
            ours = loss(X, y, *candidates, sample_ids=ids, ref_ids=of_vectors)
            leaves = (X,) if vectors is None else (X, vectors)
            assert_equal(ours, reference(X, y, vectors, vector_labels, **of_ids), leaves)
            assert is_planned(loss) == (backend == "native" and reduction == "mean")
            if name not in ("memory", "bspml"):
                ours = loss(X, y, *candidates, sample_weights=weights, sample_ids=ids, ref_ids=of_vectors)
                truth = reference(X, y, vectors, vector_labels, sample_weights=weights, **of_ids)
                assert_equal(ours, truth, leaves)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["ms", "supcon", "nt-xent"])
def test_many_samples_in_tiles_lanes_and_chunks_against_the_reference(name, kind):
    make, reference = LOSSES[name]
    X, (y, ids) = normal(1100, 3), of_kind(kind, 1100)
    loss = make()
    assert_equal(loss(X, y, sample_ids=ids), reference(X, y, ids=(ids, None)), (X,))
    assert is_planned(loss)


def towers():
    """Rows of both towers, ids, pairs that are no negatives, and weights."""
    rows, others = normal(B), normal(B, seed=1)
    image_ids, text_ids, weights = ids_of(B), ids_of(B, seed=1), torch.arange(B).remainder(4).double()
    apart = [(ids[:, None] == ids) & (ids >= 0)[:, None] for ids in (image_ids, text_ids)]
    own = ~torch.eye(B, dtype=torch.bool)
    return rows, others, {"sample_ids": image_ids, "other_ids": text_ids}, (apart[0] | apart[1]) & own, weights


@pytest.mark.parametrize("backend", ["native", "eager"])
@pytest.mark.parametrize("name", ["both sides", "one side", "rince", "sigmoid"])
def test_duplicates_of_texts_and_images_are_no_negatives(name, backend):
    rows, others, ids, duplicates, weights = towers()
    settings = {"one side": {"symmetric": False}, "rince": {"q": 0.4}}.get(name, {})
    make = losses.SigmoidLoss if name == "sigmoid" else losses.InfoNCELoss
    loss = make(0.3, backend=backend, **settings).double()
    for w in (None, weights):
        if name == "sigmoid":
            parameters = (loss.logit_scale, loss.logit_bias)
            truth = sigmoid_loss(rows, others, *parameters, w, duplicates)
        else:
            parameters = (loss.logit_scale,)
            truth = info_nce_loss(
                rows, others, *parameters, None, w, duplicates=(duplicates, duplicates.t()), **settings
            )
        assert_equal(loss(rows, others, sample_weights=w, **ids), truth, (rows, others, *parameters))
    assert is_planned(loss) == (backend == "native" and name != "rince")
    alone = {"sample_ids": torch.arange(B)}  # every image once: the plain loss
    assert_equal(loss(rows, others, **alone), loss(rows, others), (rows, others))


def test_negatives_with_the_text_of_a_pair():
    rows, others, ids, duplicates, _ = towers()
    negatives, negative_ids = normal(M), ids_of(M)
    of_negatives = (ids["other_ids"][:, None] == negative_ids) & (negative_ids >= 0)
    loss = losses.InfoNCELoss(0.3).double()
    apart = (torch.cat([duplicates, of_negatives], 1), duplicates.t())
    truth = info_nce_loss(rows, others, loss.logit_scale, negatives, duplicates=apart)
    ours = loss(rows, others, negatives, negative_ids=negative_ids, **ids)
    assert_equal(ours, truth, (rows, others, negatives, loss.logit_scale))


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
def test_sparse_labels_are_those_of_their_places():
    X, y = normal(B), labels_of(B, True)
    matrix = torch.zeros(B, 9).scatter(1, y.clamp(min=0), (y != ABSENT).float())
    matrix[(y == ABSENT).any(1), 0] = 0
    rows = [row.nonzero()[:, 0] for row in matrix]
    padded = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=ABSENT)
    for loss in (losses.SupConLoss(), losses.MultiSimilarityLoss()):
        assert_equal(loss(X, matrix.to_sparse()), loss(X, padded), (X,))
        assert_equal(loss(X, matrix.to_sparse_csr()), loss(X, padded), (X,))


def test_one_column_of_labels_is_one_label_and_another_width_is_filled_up():
    X, C, y, z = normal(B), normal(M), labels_of(B, False), labels_of(M, True)
    for loss in (losses.SupConLoss(), losses.SupConLoss(reduction="none")):
        assert_equal(loss(X, y[:, None]), loss(X, y), (X,))
        wide = torch.nn.functional.pad(y[:, None], (0, 2), value=ABSENT)
        assert_equal(loss(X, y, None, C, z), loss(X, wide, None, C, z), (X, C))
        assert_equal(loss(X, wide), loss(X, y), (X,))


@pytest.mark.parametrize("name", ["ms", "contrastive cosine", "supcon"])
def test_second_derivatives(name):
    X, (y, ids) = normal(7, 3), of_kind("both", 7)
    loss = LOSSES[name][0]()
    assert torch.autograd.gradgradcheck(lambda rows: loss(rows, y, sample_ids=ids), X, atol=1e-4)


@pytest.mark.parametrize("name", ["ms", "nt-xent"])
def test_compiled(name):
    X, (y, ids) = normal(B), of_kind("both", B)
    loss = LOSSES[name][0]()
    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
    assert_equal(compiled(X, y, sample_ids=ids), loss(X, y, sample_ids=ids), (X,))


def test_compiled_towers():
    rows, others, ids, _, _ = towers()
    loss = losses.InfoNCELoss().double()
    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
    assert_equal(compiled(rows, others, **ids), loss(rows, others, **ids), (rows, others, loss.logit_scale))


def test_nothing_left_to_learn_from():
    """All samples are copies of one, or have all labels, or none: 0, connected to the graph."""
    X, none = normal(B), torch.full((B, 2), ABSENT)
    for make, _ in LOSSES.values():
        for y, ids in ((labels_of(B, False), torch.zeros(B).long()), (none, None)):
            loss = make()(X, y, sample_ids=ids)
            assert loss == 0
            assert not torch.autograd.grad(loss, X)[0].any()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"sample_ids": torch.zeros(B)}, "sample_ids must be integers, got torch.float32"),
        ({"sample_ids": torch.zeros(B - 1).long()}, r"sample_ids must have shape \(24,\), one for each row of embedd"),
        ({"ref_ids": torch.zeros(B).long()}, "ref_ids, and the candidates are the samples"),
        ({"ref_emb": normal(M), "ref_labels": labels_of(M, False), "sample_ids": ids_of(B)}, "ref_ids is missing"),
        ({"ref_emb": normal(M), "ref_labels": labels_of(M, False), "ref_ids": ids_of(M)}, "sample_ids is missing"),
        ({"labels": torch.ones(B, 2).long()}, "labels must be distinct for each sample, got class 1 twice"),
        ({"labels": torch.ones(B - 1, 2).long()}, r"labels must have shape \(24,\)"),
        ({"labels": torch.ones(B, 2)}, "labels must be integers"),
        ({"label_weights": torch.ones(B, 2), "labels": labels_of(B, True)}, "asks whether pairs share a label"),
        (
            {"indices_tuple": (torch.arange(2),) * 3, "sample_ids": ids_of(B)},
            "sample_ids beside indices_tuple",
        ),
    ],
    ids=str,
)
def test_bad_input_ends_in_an_error_that_names_it(arguments, message):
    given = {"embeddings": normal(B), "labels": labels_of(B, False), **arguments}
    with pytest.raises(ValueError, match=message):
        losses.MultiSimilarityLoss()(**given)


def test_what_takes_no_ids_refuses_them():
    with pytest.raises(TypeError, match="has no argument 'sample_ids', which losses on pairs have"):
        losses.ProxyAnchorLoss(5, D)(normal(B), labels_of(B, False), sample_ids=ids_of(B))
    with pytest.raises(ValueError, match="negative_ids without negatives"):
        losses.InfoNCELoss()(normal(B), normal(B), negative_ids=ids_of(B))
    with pytest.raises(ValueError, match="other_ids must have shape"):
        losses.SigmoidLoss()(normal(B), normal(B), other_ids=ids_of(M))
