"""Labels put right in training, against the reference, and what a correction may not do."""

import math
from functools import partial

import pytest
import torch

from python_ref.label_correction import corrected_labels
from python_ref.prism import average_similarity, vmf_similarity
from robustdml_ops.robust import PRISM, LabelCorrection


def made_up(similarity, seed=0):
    """A bank of three classes of four in which the last class is missing, and a batch near its means."""
    random = torch.Generator().manual_seed(seed)
    means = torch.randn(3, 5, generator=random, dtype=torch.float64)
    labels = torch.arange(30) % 3
    bank = means[labels] + 0.5 * torch.randn(30, 5, generator=random, dtype=torch.float64)
    # The estimator of the reference.
    starts = {"vmf_start": 0, "estimator": "prism", "bias_correction": "u"} if similarity == "vmf" else {}
    prism = PRISM(4, 5, similarity, threshold="fixed", fixed_threshold=0.5, memory_size=30, **starts)
    prism.enqueue(bank, labels, torch.ones(30, dtype=torch.bool))
    batch = means[torch.arange(8) % 3] + 0.8 * torch.randn(8, 5, generator=random, dtype=torch.float64)
    return prism, bank, labels, batch


@pytest.mark.parametrize(("similarity", "confidence"), [("vmf", 0.9), ("average", 0.4)])
@pytest.mark.parametrize("seed", range(3))
def test_a_step_is_the_references(similarity, confidence, seed):
    prism, bank, bank_labels, batch = made_up(similarity, seed)
    given = torch.tensor([1, 2, 0, 0, 3, 2, 1, 0])
    keep = torch.tensor([False, False, False, True, False, False, True, False])
    reference = partial(vmf_similarity, bias_correction="u") if similarity == "vmf" else average_similarity
    T = reference(batch, bank, bank_labels, 4)
    # As the rows that the filter stores are float32.
    best, log_p = prism.propose(batch)
    assert (best == T.argmax(1)).all()
    torch.testing.assert_close(log_p, T.log_softmax(1).amax(1), rtol=1e-4, atol=1e-5)
    correction = LabelCorrection(8, confidence, visits=1)
    fixed = correction(prism, batch, given, keep, torch.arange(8))
    expected = corrected_labels(T, given, keep, confidence, [])
    assert (fixed.labels == expected[0]).all() and (fixed.keep == expected[1]).all()
    assert (fixed.corrected == (fixed.keep & ~keep)).all() and fixed.corrected.any()


def test_a_correction_comes_in_time_and_ends():
    prism, bank, _, _ = made_up("vmf")
    of_class = [bank[k::3].mean(0, keepdim=True) for k in range(3)]
    correction = LabelCorrection(3, visits=3)
    rejected, kept = torch.tensor([False]), torch.tensor([True])
    label, ids = torch.tensor([1]), torch.tensor([2])

    def step(k, keep=rejected):
        fixed = correction(prism, of_class[k], label, keep, ids)
        return int(fixed.labels), bool(fixed.keep)

    assert step(0) == step(0) == (1, False)  # twice is not enough
    assert step(0) == (0, True)
    assert step(2) == step(2) == (1, False)  # another proposal has to come three times, too
    assert step(2) == (2, True)
    assert step(2, kept) == (1, True)  # believed again
    assert step(1) == (1, False)  # the label itself is no correction
    assert correction.proposals.tolist() == [-1, -1, -1]


def test_nothing_is_proposed_by_an_empty_bank():
    prism = PRISM(3, 2, "vmf", threshold="otsu", memory_size=4, vmf_start=0)
    assert prism.propose(torch.ones(2, 2))[1].tolist() == [-math.inf, -math.inf]
    correction = LabelCorrection(2, 0.0, 1)
    assert not correction(prism, torch.ones(2, 2), torch.ones(2, dtype=torch.long), torch.zeros(2) > 0,
                          torch.arange(2)).keep.any()  # fmt: skip


def test_many_classes_are_taken_in_parts(monkeypatch):
    prism, _, _, batch = made_up("vmf")
    whole = prism.propose(batch)
    monkeypatch.setattr("robustdml_ops.robust.prism.similarities._MOST_LOGITS", 8)
    parts = prism.propose(batch)
    assert (parts[0] == whole[0]).all()
    torch.testing.assert_close(parts[1], whole[1])


def test_state_goes_on_and_keeps_its_types():
    prism, _, _, batch = made_up("vmf")
    given, keep = torch.full((8,), 3), torch.zeros(8, dtype=torch.bool)
    one, other = LabelCorrection(8), LabelCorrection(8)
    one(prism, batch, given, keep, torch.arange(8))
    other.load_state_dict(one.state_dict())
    fixed, again = (each.half()(prism, batch, given, keep, torch.arange(8)) for each in (one, other))
    assert (fixed.labels == again.labels).all() and fixed.corrected.any() and one.times.dtype == torch.int64


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"keep": torch.ones(8)}, ValueError, "keep"),
        ({"labels": torch.ones(7, dtype=torch.long)}, ValueError, "labels"),
        ({"sample_ids": torch.arange(1, 9)}, IndexError, "sample_ids"),
        ({"embeddings": torch.ones(8, 4)}, ValueError, "embeddings"),
        ({"prism": PRISM(4, 5, "proxy", 0.5)}, RuntimeError, 'similarity="average" and "vmf"'),
    ],
)
def test_bad_input_changes_nothing(change, error, words):
    prism, _, _, batch = made_up("vmf")
    arguments = {"prism": prism, "embeddings": batch, "labels": torch.zeros(8, dtype=torch.long),
                 "keep": torch.zeros(8, dtype=torch.bool), "sample_ids": torch.arange(8)}  # fmt: skip
    correction = LabelCorrection(8)
    with pytest.raises(error, match=words):
        correction(**(arguments | change))
    assert (correction.proposals == -1).all() and (correction.times == 0).all()
    with pytest.raises(ValueError, match="confidence"):
        LabelCorrection(8, confidence=1.5)
    with pytest.raises(ValueError, match="visits"):
        LabelCorrection(8, visits=0)
