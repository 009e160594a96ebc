"""Methods that keep more than a loss: confidences, weights, ages, sampled negatives."""

from dataclasses import replace

import pytest
import torch

from app.tests.conftest import check_resume, weights
from robustdml.config import TrainingConfig
from robustdml.methods import METHODS
from robustdml.methods.anchors import NegativeOptions
from robustdml.methods.confident import ProcSimOptions, SelfPacedOptions
from robustdml.methods.pairs import ContrastiveOptions
from robustdml.methods.softmax import SoftmaxOptions
from robustdml.options import OptionSet
from robustdml.train import train
from tests.nightly import nightly_but

FAST = TrainingConfig(epochs=4, batch_size=32, embedding_size=8, learning_rate=1e-2, proxy_learning_rate=5e-2)
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


@pytest.mark.parametrize("case", nightly_but(BY_DAY, ALL))
def test_settings_reach_the_loss_and_the_run_is_resumed(noisy, tmp_path, case):
    """The draws of negatives go on where they stopped; more samples would bring all classes into each batch."""
    method, group = case
    config = replace(FAST, method=method, epochs=2, batch_size=4 if isinstance(group, NegativeOptions) else 32)
    whole, _ = check_resume(replace(config, options=OptionSet(group)), noisy, tmp_path / "run", stop=1)
    assert not torch.equal(weights(whole), weights(train(config, noisy, device="cpu")))


def test_correction_of_sampled_negatives_reaches_the_loss():
    for correct in (True, False):
        options = OptionSet(NegativeOptions(share=0.5), SoftmaxOptions(correct_negatives=correct))
        loss = METHODS["soft-triple"].make_loss(options, 9, 4)
        assert loss.negatives.share == 0.5
        assert loss.negative_correction == correct


def test_procsim_finds_wrong_labels(noisy):
    config = replace(FAST, method="procsim", epochs=8, options=OptionSet(ProcSimOptions(lam=0.1)))
    last = train(config, noisy, device="cpu").history[-1]
    assert last["detector_loss_auc"] > 0.85
    assert last["above_threshold_wrong"] > 0.7 > 0.3 > last["above_threshold_right"]
    assert last["sigma_right"] > 0.9 > 0.7 > last["sigma_wrong"]


def test_weights_of_bspml_fall_for_wrong_labels(noisy):
    options = SelfPacedOptions(lam=2.0, lam_max=2.0, warmup=1)
    result = train(replace(FAST, method="bspml", options=OptionSet(options), epochs=5), noisy, device="cpu")
    first, last = result.history[0], result.history[-1]
    assert (first["weight_right"], first["weight_wrong"], first["maw"], first["sdaw"]) == (1, 1, 1, 0)
    assert last["weight_right"] > 0.6 > 0.3 > last["weight_wrong"]
    assert last["weight_auc"] > 0.7
    assert 0 < last["maw"] < 1
    assert last["sdaw"] > 0
    assert last["age"] == 2.0
