"""Filters, and methods that keep more than a loss: confidences, weights, ages, sampled negatives."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from app.tests.conftest import begun, check_equal, check_resume, weights
from robustdml.config import TrainingConfig
from robustdml.filters.label_quality import label_quality
from robustdml.filters.options import FilterOptions
from robustdml.methods import METHODS
from robustdml.methods.classes import NegativeOptions, SoftmaxOptions
from robustdml.methods.pairs import ContrastiveOptions, ProcSimOptions, SelfPacedOptions
from robustdml.noise import with_wrong_labels
from robustdml.options import OptionSet
from robustdml.progress import silent
from robustdml.train import train
from tests.nightly import nightly_but

FAST = TrainingConfig(epochs=4, batch_size=32, embedding_size=8, learning_rate=1e-2)
PROXIES = replace(FAST, proxy_learning_rate=5e-2)
FILTERED = replace(FAST, method="mcl", filter=FilterOptions("prism-average"))
BY_DAY = (
    ("superloss", ContrastiveOptions(neg_margin=0.5)),
    ("proxy-anchor", NegativeOptions(share=0.3)),
    ("procsim", ProcSimOptions(threshold="mean")),
    ("procsim", ProcSimOptions(threshold="gmm")),
)
ALL = (
    *BY_DAY,
    ("subcenter-arcface", NegativeOptions(share=0.3)),
    ("procsim", ProcSimOptions(drop_above=True)),
    ("procsim", ProcSimOptions(dml="proxy-nca")),
    ("procsim", ProcSimOptions(detector="multi-similarity")),
)


@pytest.mark.parametrize(
    ("method", "kind"),
    [
        ("mcl", "prism-average"),
        ("soft-triple", "prism-proxy"),
        ("proxy-anchor", "prism-vmf"),
        ("superloss", "prism-vmf"),
    ],
)
def test_filters_find_wrong_labels(noisy, method, kind):
    options = FilterOptions(kind, vmf_epochs=2)
    result = train(replace(FILTERED, method=method, filter=options, epochs=6), noisy, device="cpu")
    last = result.history[-1]
    # By chance: 0.7 of the kept, and an area of 0.5.
    assert last["filter_precision"] > 0.8
    assert last["log_p_clean_auc"] > 0.75
    assert 0.5 < last["filter_kept"] < 0.95
    score, judged = result.scores["log_p_clean"], ~np.isnan(result.scores["log_p_clean"])
    assert judged.mean() > 0.6
    assert score[judged & ~result.changed].mean() > score[judged & result.changed].mean()
    assert result.summary["log_p_clean_auc"] == pytest.approx(last["log_p_clean_auc"])


@pytest.mark.parametrize("method", [name for name, method in METHODS.items() if method.proxies is not None])
def test_proxies_are_those_of_the_loss(method):
    torch.manual_seed(0)
    loss = METHODS[method].make_loss(FILTERED.options, 5, FILTERED.embedding_size)
    proxies = METHODS[method].proxies(loss)
    assert proxies.shape in ((5, 8), (5, 10, 8), (5, 3, 8))
    assert proxies.data_ptr() in {parameter.data_ptr() for parameter in loss.parameters()}
    # A sample at a proxy of class 3 has class 3 for its nearest.
    rows = proxies.reshape(5, -1, 8)
    best = (rows @ rows[3, 0]).amax(1) / rows.norm(dim=2).amax(1)
    logits = loss.get_logits(rows[3, :1])[0]
    assert int(best.argmax()) == 3 == int(logits.argmin() if method == "proxy-nca" else logits.argmax())


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("mcl", FilterOptions("prism-vmf", vmf_epochs=1, window=3)),
        ("soft-triple", FilterOptions("prism-proxy", threshold="per-class")),
        ("proxy-nca", FilterOptions("prism-average", without_copies=True, threshold="top-r", memory_size=100)),
        ("mcl", FilterOptions("prism-average", threshold="fixed", fixed_threshold=0.1)),
        ("mcl", FilterOptions()),
        ("robust", replace(METHODS["robust"].filter, on_trial=False)),
        ("mcl", FilterOptions("audit")),
        ("mcl", replace(METHODS["robust"].filter, memory_dtype="bfloat16", on_trial=False)),
    ],
)
def test_a_resumed_run_with_a_filter_equals_an_unbroken_one(noisy, tmp_path, method, options):
    config = replace(FILTERED, method=method, filter=options, averaging=1.0, epochs=3)
    whole, _ = check_resume(config, noisy, tmp_path / "run", stop=2)
    check_equal(whole, train(config, noisy, out=tmp_path / "run", resume=True, device="cpu"))


def test_a_state_of_a_run_without_a_filter_may_hold_none(noisy):
    config = replace(FILTERED, filter=FilterOptions())
    state = begun(config, noisy).state()
    assert state.pop("filter") == {}
    begun(config, noisy).load_state(state)
    del state["embedder"]
    with pytest.raises(RuntimeError, match="Missing key"):
        begun(config, noisy).load_state(state)


def test_a_batch_of_which_nothing_is_kept_changes_nothing(noisy):
    """Also not by the momentum of the batches before; and the memory stays as it was."""
    config = replace(FILTERED, filter=FilterOptions("prism-average", threshold="fixed", fixed_threshold=0.99), epochs=3)
    after = [train(replace(config, epochs=epochs), noisy, device="cpu") for epochs in (1, 3)]
    # In the first batches classes are new and kept; once all are known nothing passes.
    assert after[0].history[0]["filter_kept"] < 0.5
    assert [record["filter_kept"] for record in after[1].history[1:]] == [0.0, 0.0]
    assert [record["loss"] for record in after[1].history[1:]] == [0.0, 0.0]
    assert torch.equal(weights(after[0]), weights(after[1]))


def test_the_memory_of_mcl_is_that_of_the_filter(noisy):
    configs = [replace(FILTERED, filter=FilterOptions(kind)) for kind in ("none", "prism-average")]
    alone, filtered = (begun(config, noisy) for config in configs)
    for run in (alone, filtered):
        run.take_steps(silent, ())
    assert alone.inputs["memory"].module.enqueued == 7 * 32
    assert filtered.inputs["memory"].module is None
    bank = filtered.filter.bank
    assert torch.equal(filtered.inputs["memory"].arguments(np.arange(3))["ref_emb"], bank.features)
    assert 0 < bank.enqueued < 7 * 32
    stored = bank.sample_ids[bank.labels >= 0]
    assert torch.equal(torch.from_numpy(filtered.labels)[stored], bank.labels[bank.labels >= 0])
    norms = alone.inputs["memory"].module.features[: 7 * 32].norm(dim=1)
    torch.testing.assert_close(norms, torch.ones(7 * 32))


def test_the_audit_judges_once_and_finds_wrong_labels(noisy):
    result = train(replace(FILTERED, filter=FilterOptions("audit"), epochs=2), noisy, device="cpu")
    for record in result.history:
        assert record["filter_precision"] > 0.95 and record["filter_kept"] == pytest.approx(0.7, abs=0.1)
    assert result.summary["clean_auc"] == result.summary["label_quality_auc"] > 0.95
    quality, kept = result.scores["label_quality"], result.scores["kept"]
    judged = ~np.isnan(kept)
    assert np.array_equal(kept[judged] == 1, quality[judged] >= 0.5)


def test_the_audit_finds_labels_of_similar_classes():
    """Twelve families of ten classes; wrong labels are of another class of the family."""
    random = np.random.default_rng(0)
    labels = np.repeat(np.arange(120), 12)
    families = random.normal(size=(12, 64))
    centres = families[np.arange(120) % 12] + 0.35 * random.normal(size=(120, 64))
    features = (centres[labels] + 0.35 * random.normal(size=(len(labels), 64))).astype(np.float32)
    wrong = random.random(len(labels)) < 0.3
    others = (labels + 12 * random.integers(1, 10, len(labels))) % 120
    doubted = label_quality(features, np.where(wrong, others, labels)).numpy() < 0.5
    assert (doubted & wrong).sum() > 0.9 * wrong.sum() and (doubted & ~wrong).sum() < 0.05 * len(labels)


def test_the_audit_of_one_class_keeps_all(noisy):
    features, one = noisy.train.inputs[:20], np.zeros(20, dtype=np.int64)
    assert torch.equal(label_quality(features, one), torch.ones(20))


def test_robust_is_told_no_noise_rate_and_finds_it(clusters):
    robust = replace(FILTERED, method="robust", filter=replace(METHODS["robust"].filter, on_trial=False), epochs=8)
    assert robust.filter_options.threshold == "cautious" and robust.assumed_noise_rate(0.3) is None
    assert replace(robust, filter=FilterOptions()).filter_options.kind == "none"
    for noise, share in (("none", 0.0), ("symmetric:0.4", 0.4)):
        last = train(robust, with_wrong_labels(clusters, noise, seed=0), device="cpu").history[-1]
        assert last["filter_kept"] == pytest.approx(1 - share, abs=0.1)
    assert last["filter_precision"] > 0.9


def test_noise_rate(noisy):
    assert FILTERED.assumed_noise_rate(noisy.noise_rate) == 0.3
    configs = [replace(FILTERED, noise_rate=rate, epochs=2) for rate in (0.0, 0.2, 0.6)]
    none, few, many = (train(config, noisy, device="cpu").history[-1]["filter_kept"] for config in configs)
    assert none == 1.0 and few > 0.65 > many > 0.2


def test_a_memory_of_half_the_bytes_judges_alike(noisy):
    found = {}
    for dtype in ("float32", "bfloat16"):
        options = replace(METHODS["robust"].filter, threshold="otsu", memory_dtype=dtype)
        config = replace(FILTERED, method="contrastive", filter=options, epochs=6)
        found[dtype] = begun(config, noisy)
        for _ in range(config.epochs):
            found[dtype].take_steps(silent, ())
            found[dtype].end_epoch({})
    rows = [run.filter.bank.features for run in found.values()]
    assert rows[0].dtype == torch.float32 and rows[1].dtype == torch.bfloat16 and rows[0].shape == rows[1].shape
    whole, half = (run.history[-1] for run in found.values())
    assert half["filter_precision"] > 0.8
    assert half["log_p_clean_auc"] == pytest.approx(whole["log_p_clean_auc"], abs=0.02)


@pytest.mark.parametrize("case", nightly_but(BY_DAY, ALL))
def test_settings_reach_the_loss_and_the_run_is_resumed(noisy, tmp_path, case):
    """The draws of negatives go on where they stopped; more samples would bring all classes into each batch."""
    method, group = case
    config = replace(PROXIES, method=method, epochs=2, batch_size=4 if isinstance(group, NegativeOptions) else 32)
    whole, _ = check_resume(replace(config, options=OptionSet(group)), noisy, tmp_path / "run", stop=1)
    assert not torch.equal(weights(whole), weights(train(config, noisy, device="cpu")))


def test_correction_of_sampled_negatives_reaches_the_loss():
    for correct in (True, False):
        options = OptionSet(NegativeOptions(share=0.5), SoftmaxOptions(correct_negatives=correct))
        loss = METHODS["soft-triple"].make_loss(options, 9, 4)
        assert loss.negatives.share == 0.5
        assert loss.negative_correction == correct


def test_procsim_finds_wrong_labels(noisy):
    config = replace(PROXIES, method="procsim", epochs=8, options=OptionSet(ProcSimOptions(lam=0.1)))
    last = train(config, noisy, device="cpu").history[-1]
    assert last["detector_loss_auc"] > 0.85
    assert last["above_threshold_wrong"] > 0.7 > 0.3 > last["above_threshold_right"]
    assert last["sigma_right"] > 0.9 > 0.7 > last["sigma_wrong"]


def test_weights_of_bspml_fall_for_wrong_labels(noisy):
    options = SelfPacedOptions(lam=2.0, lam_max=2.0, warmup=1)
    result = train(replace(PROXIES, method="bspml", options=OptionSet(options), epochs=5), noisy, device="cpu")
    first, last = result.history[0], result.history[-1]
    assert (first["weight_right"], first["weight_wrong"], first["maw"], first["sdaw"]) == (1, 1, 1, 0)
    assert last["weight_right"] > 0.6 > 0.3 > last["weight_wrong"]
    assert last["weight_auc"] > 0.7
    assert 0 < last["maw"] < 1
    assert last["sdaw"] > 0
    assert last["age"] == 2.0


def test_the_distance_of_the_contrastive_loss_is_the_one_that_was_chosen(clusters):
    euclidean, cosine = (
        METHODS["contrastive"].make_loss(OptionSet(ContrastiveOptions(distance=name)), 2, 2)
        for name in ("euclidean", "cosine")
    )
    X, labels = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.6, 0.8]]), torch.tensor([0, 0, 1])
    assert not torch.allclose(euclidean(X, labels), cosine(X, labels))


@pytest.mark.parametrize(
    ("method", "names"),
    [
        ("arcface", ("own_probability", "own_margin", "own_rank")),
        ("contrastive", ("hardest_positive", "hardest_negative")),
    ],
)
def test_means_of_what_the_loss_sees(noisy, method, names):
    history = train(replace(PROXIES, method=method, epochs=2), noisy, device="cpu").history
    for record in history:
        assert {name for name in record if name.startswith(("own_", "hardest_"))} == set(names)
    if method == "arcface":
        first, last = history[0], history[-1]
        assert 0 < first["own_probability"] < last["own_probability"] <= 1
        assert first["own_margin"] < last["own_margin"]
        assert first["own_rank"] > last["own_rank"] >= 1
