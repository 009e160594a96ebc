"""ProcSim and BSPML as methods of a run."""

from dataclasses import replace

import pytest
import torch

from app.tests.conftest import check_resume, weights
from robustdml.config import TrainingConfig
from robustdml.errors import UsageError
from robustdml.methods.confident import ProcSimOptions, SelfPacedOptions
from robustdml.options import OptionSet
from robustdml.train import train

FAST = TrainingConfig(epochs=4, batch_size=32, embedding_size=8, learning_rate=1e-2, proxy_learning_rate=5e-2)


def test_procsim_finds_wrong_labels(noisy):
    config = replace(FAST, method="procsim", epochs=8, options=OptionSet(ProcSimOptions(lam=0.1)))
    last = train(config, noisy, device="cpu").history[-1]
    assert last["detector_loss_auc"] > 0.85
    assert last["above_threshold_wrong"] > 0.7 > 0.3 > last["above_threshold_right"]
    assert last["sigma_right"] > 0.9 > 0.7 > last["sigma_wrong"]


@pytest.mark.parametrize(
    "options",
    [
        ProcSimOptions(threshold="mean"),
        pytest.param(ProcSimOptions(drop_above=True), marks=pytest.mark.nightly),
        ProcSimOptions(threshold="gmm"),
        pytest.param(ProcSimOptions(dml="proxy-nca"), marks=pytest.mark.nightly),
        pytest.param(ProcSimOptions(detector="multi-similarity"), marks=pytest.mark.nightly),
    ],
)
def test_rows_of_the_ablation_train_and_resume(noisy, tmp_path, options):
    config = replace(FAST, method="procsim", epochs=2)
    whole, _ = check_resume(replace(config, options=OptionSet(options)), noisy, tmp_path / "run", stop=1)
    assert not torch.equal(weights(whole), weights(train(config, noisy, device="cpu")))


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


def test_bad_settings(noisy):
    for method, group, message in (
        ("procsim", ProcSimOptions(lam=0.0), "method procsim: lam must be positive"),
        ("bspml", SelfPacedOptions(lam=3.0), "method bspml: lam_max must be at least lam = 3.0"),
    ):
        with pytest.raises(UsageError, match=message):
            train(replace(FAST, method=method, options=OptionSet(group)), noisy)
