"""Methods that keep more than a loss: confidences, weights, language."""

from dataclasses import replace

import pytest
import torch

from app.tests.conftest import check_resume, weights
from robustdml.config import TrainingConfig
from robustdml.errors import UsageError
from robustdml.methods import METHODS
from robustdml.methods.anchors import NegativeOptions
from robustdml.methods.pairs import ContrastiveOptions
from robustdml.methods.softmax import SoftmaxOptions
from robustdml.options import OptionSet
from robustdml.train import train

FAST = TrainingConfig(epochs=4, batch_size=32, embedding_size=8, learning_rate=1e-2, proxy_learning_rate=5e-2)


def test_margins_reach_superloss(noisy):
    margins = [OptionSet(ContrastiveOptions(neg_margin=margin)) for margin in (1.0, 0.5)]
    configs = [replace(FAST, method="superloss", options=options) for options in margins]
    first, second = (train(config, noisy, device="cpu") for config in configs)
    assert not torch.equal(weights(first), weights(second))


@pytest.mark.parametrize("method", ["proxy-anchor", pytest.param("subcenter-arcface", marks=pytest.mark.nightly)])
def test_sampled_negatives_train_and_resume(noisy, tmp_path, method):
    """The draws go on where they stopped."""
    config = replace(FAST, method=method, batch_size=4, epochs=2, options=OptionSet(NegativeOptions(share=0.3)))
    whole, _ = check_resume(config, noisy, tmp_path / "run", stop=1)
    every = train(replace(config, options=OptionSet()), noisy, device="cpu")
    assert not torch.equal(weights(whole), weights(every))


def test_correction_of_sampled_negatives_reaches_the_loss():
    for correct in (True, False):
        options = OptionSet(NegativeOptions(share=0.5), SoftmaxOptions(correct_negatives=correct))
        loss = METHODS["soft-triple"].make_loss(options, 9, 4)
        assert loss.negatives.share == 0.5
        assert loss.negative_correction == correct


def test_bad_settings(noisy):
    for method, group, message in (
        ("arcface", NegativeOptions(share=1.5), r"method arcface: negative_share must lie in \(0, 1\], got 1.5"),
    ):
        with pytest.raises(UsageError, match=message):
            train(replace(FAST, method=method, options=OptionSet(group)), noisy)
