import json
import os
import signal
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from app.tests.conftest import (
    EVERY_METHOD,
    SMALL,
    Ends,
    begun,
    check_equal,
    check_resume,
    metrics_of,
    run_command,
    weights,
)
from robustdml import train as train_module
from robustdml.config import TrainingConfig
from robustdml.data.samplers import LEAST_STEPS, ClassBalancedSampler, RandomSampler
from robustdml.errors import UsageError
from robustdml.filters.options import FilterOptions
from robustdml.methods import METHODS
from robustdml.methods.classes import AnchorOptions, SmoothOptions
from robustdml.options import OptionSet
from robustdml.progress import Recorder, silent
from robustdml.run.preemption import EndSignals
from robustdml.train import train
from tests.nightly import nightly_but

OPTIONS = OptionSet(SmoothOptions(epochs=6, learning_rate=3e-3))
FILES = {"checkpoint.previous.pt", "checkpoint.pt", "history.jsonl", "metrics.json", "model.pt"}
# Without trials, which could find nothing worth training.
FAST = TrainingConfig(epochs=4, batch_size=32, embedding_size=8, averaging=1.0, options=OPTIONS)


@pytest.mark.parametrize(
    ("batch_size", "asked", "shape"), [(256, None, (12, 21)), (32, None, (8, 4)), (24, 2, (12, 2))]
)
def test_batches_are_filled_where_classes_are_few(noisy, batch_size, asked, shape):
    """Twelve classes of 21 samples: a batch of 4 of each would be of 48."""
    config = TrainingConfig(method="contrastive", batch_size=batch_size, samples_per_class=asked)
    batch = noisy.train.labels[next(iter(begun(config, noisy).sampler.batches(0)))]
    sizes = np.unique(batch, return_counts=True)[1]
    assert (len(sizes), set(sizes.tolist())) == (shape[0], {shape[1]})


@pytest.mark.parametrize("method", EVERY_METHOD)
def test_learns(clusters, method):
    config = replace(FAST, method=method, epochs=8, learning_rate=1e-2)
    result = train(config, clusters, device="cpu")
    assert [record["epoch"] for record in result.history] == list(range(1, 9))
    assert result.history[-1]["loss"] < result.history[0]["loss"]
    # Unseen classes: chance is 0.11.
    assert result.summary["precision_at_1"] > 0.7
    assert not result.changed.any()
    if method == "adaptive-proxy-anchor":
        assert result.summary["margin"] != pytest.approx(config.options[AnchorOptions].margin, abs=1e-4)


def test_confidences_tell_wrong_labels(noisy):
    result = train(replace(FAST, method="smooth-proxy-anchor"), noisy, device="cpu")
    assert result.scores["confidence"].shape == (252,)
    assert result.changed.sum() == 12 * 6
    assert result.summary["confidence_auc"] > 0.9


@pytest.mark.parametrize("method", EVERY_METHOD)
@pytest.mark.parametrize("samples_per_class", nightly_but([0], [0, 4]))
def test_a_resumed_run_equals_an_unbroken_one_bit_for_bit(noisy, tmp_path, method, samples_per_class):
    check_resume(replace(FAST, method=method, samples_per_class=samples_per_class), noisy, tmp_path / "run", stop=2)


def test_checkpoints_within_an_epoch(noisy, tmp_path):
    """A run that is killed goes on after the last of them; it may run in any thread."""
    config = replace(FAST, filter=FilterOptions())
    settings = {"out": tmp_path / "run", "device": "cpu", "checkpoint_every": 1e-9}
    kill = Mock(spec=Recorder)
    kill.step.side_effect = [None] * 9 + [KeyboardInterrupt]  # in the second of four epochs of seven steps
    with ThreadPoolExecutor(1) as thread, pytest.raises(KeyboardInterrupt):
        thread.submit(train, config, noisy, **settings, recorders=[kill]).result()
    resumed = train(config, noisy, **settings, resume=True, recorders=[rest := Ends()])
    assert rest.steps == 4 * 7 - 9
    check_equal(train(config, noisy, device="cpu"), resumed)


@pytest.mark.skipif(os.name == "nt", reason="there are no forks on Windows")
def test_a_process_forked_from_a_run_ends_by_the_signal():
    with EndSignals() as signals, warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads
        child = os.fork()
        if not child:
            signal.raise_signal(signal.SIGTERM)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM
    assert not signals.received


@pytest.mark.parametrize(
    "settings",
    [
        {"batch_size": 20},
        {"method": "smooth-proxy-anchor"},  # whose confidences are of the frozen features
        {"method": "contrastive", "schedule": "cosine", "warmup": 0.5},
    ],
    ids=str,
)
def test_finetuning_resumes_bit_for_bit(tiny_images, tmp_path, settings):
    """The network's random numbers go on where they were, too."""
    (tmp_path / "backbone_with_dropout.py").write_text(
        "from torch import nn\n"
        "def make():\n    return nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(1024, 6), nn.BatchNorm1d(6))\n"
    )
    config = replace(FAST, backbone="backbone_with_dropout:make", finetune=True, epochs=2, **settings)
    whole, _ = check_resume(config, tiny_images, tmp_path / "run", stop=1)
    assert weights(whole).numel() > 1024 * 6
    assert (settings.get("method") == "smooth-proxy-anchor") == ("confidence" in whole.scores)


def test_micro_batches_train_as_the_whole_batch(tiny_images, tmp_path, monkeypatch):
    """With a filter; and dropout goes on where it was."""
    code = "from torch.nn import *\ndef make():\n    return Sequential(Flatten(), Dropout({}), Linear(1024, 6))\n"
    monkeypatch.chdir(tmp_path)
    whole = replace(FAST, finetune=True, epochs=2, filter=FilterOptions("prism-average"), noise_rate=0.2)
    for name, dropout in (("calm", 0.0), ("dropping", 0.5)):
        (tmp_path / f"{name}.py").write_text(code.format(dropout))
    whole = replace(whole, backbone="calm:make")
    expected, found = (train(one, tiny_images, device="cpu") for one in (whole, replace(whole, micro_batch=7)))
    np.testing.assert_allclose(weights(found), weights(expected), rtol=1e-4, atol=1e-6)
    config = replace(FAST, backbone="dropping:make", finetune=True, epochs=2, micro_batch=7)
    check_resume(config, tiny_images, tmp_path / "run", stop=1)
    with pytest.raises(UsageError, match="micro_batch=7 is for finetune"):
        replace(FAST, micro_batch=7)


def test_files_and_random_numbers_of_the_caller(noisy, tmp_path):
    before = torch.get_rng_state()
    result = train(replace(FAST, epochs=2), noisy, out=tmp_path / "run", device="cpu")
    assert torch.equal(torch.get_rng_state(), before)
    assert {path.name for path in (tmp_path / "run").iterdir()} == FILES
    lines = (tmp_path / "run" / "history.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == result.history
    metrics = metrics_of(tmp_path / "run")
    assert metrics["precision_at_1"] == result.history[-1]["precision_at_1"]
    assert metrics["data"]["classes"] == 12


def test_a_kill_before_the_new_checkpoint_has_its_name_leaves_no_other_file(noisy, tmp_path):
    train(replace(FAST, epochs=1), noisy, out=tmp_path, device="cpu")
    os.link(tmp_path / "checkpoint.pt", tmp_path / "checkpoint.previous.pt")
    train(replace(FAST, epochs=2), noisy, out=tmp_path, resume=True, device="cpu")
    assert {path.name for path in tmp_path.iterdir()} == FILES


def test_recorders_are_told(noisy, tmp_path):
    config = replace(FAST, method="proxy-anchor", batch_size=63, samples_per_class=0, epochs=1)
    begun, recorder = [], Mock(spec=Recorder)
    recorder.start.side_effect = lambda history, epochs: begun.append((len(history), epochs))
    for epochs in (1, 2):
        config = replace(config, epochs=epochs)
        out = {"out": tmp_path / "run", "resume": epochs == 2}
        result = train(config, noisy, **out, device="cpu", recorders=[recorder])
        assert [name for name, *_ in recorder.mock_calls] == ["start", *["step"] * 4, "epoch", "close"]
        assert [told.args[:2] for told in recorder.step.call_args_list] == [(step, 4) for step in (1, 2, 3, 4)]
        loss = recorder.step.call_args.args[2]
        assert loss.shape == () and not loss.requires_grad
        recorder.epoch.assert_called_once_with(result.history[-1])
        recorder.reset_mock()
    with pytest.raises(UsageError, match="NaN"):
        train(replace(config, learning_rate=1e38), noisy, device="cpu", recorders=[recorder])
    assert begun == [(0, 1), (1, 2), (0, 2)]
    recorder.close.assert_called_once_with()


@pytest.mark.parametrize("method", EVERY_METHOD)
def test_bfloat16_is_close(noisy, method):
    config = replace(FAST, method=method, learning_rate=1e-2)
    full, half = (train(replace(config, amp=amp), noisy, device="cpu") for amp in ("none", "bf16"))
    assert not torch.equal(weights(full), weights(half))
    assert half.summary["precision_at_1"] == pytest.approx(full.summary["precision_at_1"], abs=0.1)


def test_errors_of_folders_and_checkpoints(noisy, tmp_path):
    out = tmp_path / "run"
    short = replace(FAST, epochs=2)
    for options, message in (
        ({"out": out, "resume": True}, "no checkpoint to resume from"),
        ({"resume": True}, "resume needs the folder"),
        ({"checkpoint_every": 60}, "checkpoint_every=60 needs the folder"),
        ({"out": out, "checkpoint_every": 0}, "checkpoint_every=0 needs a positive number"),
    ):
        with pytest.raises(UsageError, match=message):
            train(short, noisy, **options)
    train(short, noisy, out=out)
    with pytest.raises(UsageError, match=r"data: .*clusters"):
        train(short, replace(noisy, name="other"), out=out, resume=True)
    with pytest.raises(UsageError, match="after epoch 2 already; ask for at least 2 epochs"):
        train(replace(short, epochs=1), noisy, out=out, resume=True)
    (out / "checkpoint.pt").write_bytes(b"garbage")
    with pytest.raises(UsageError, match=r"not end in its checksum\. The one before it is checkpoint\.prev"):
        train(short, noisy, out=out, resume=True)


def test_a_loss_that_diverges_ends_the_run(noisy, monkeypatch):
    for options in (FilterOptions(), replace(METHODS["robust"].filter, on_trial=False)):
        with pytest.raises(UsageError, match=r"epoch 1, step 2: embeddings\[0\] has NaN or inf"):
            train(replace(FAST, filter=options, learning_rate=1e38), noisy, device="cpu")
    with pytest.raises(UsageError, match=r"epoch 1, step \d+: mean\(margins\) = -"):
        train(replace(FAST, method="adaptive-proxy-anchor", proxy_learning_rate=10.0), noisy, device="cpu")
    # A loss may be no number where embeddings are finite.
    monkeypatch.setattr(train_module.Run, "_batch_loss", lambda self, X, *_: X.sum() * float("nan"))
    for method in ("proxy-anchor", "robust"):
        with pytest.raises(UsageError, match="the loss of epoch 1 is nan"):
            train(replace(FAST, method=method, averaging=None), noisy, device="cpu")


def test_test_classes_of_one_sample_are_refused_before_features_are_made(noisy, monkeypatch):
    monkeypatch.delattr(train_module, "prepare")
    alone = noisy.test.subset(np.unique(noisy.test.labels, return_index=True)[1])
    with pytest.raises(UsageError, match="a test class with at least 2 samples"):
        train(FAST, replace(noisy, test=alone))


def test_rates_follow_warm_up_and_cosine_and_the_backbone_has_its_own(tiny_images, monkeypatch):
    config = replace(FAST, method="contrastive", samples_per_class=0, backbone="untrained", finetune=True)
    config = replace(config, learning_rate=4.0, backbone_learning_rate=2.0, proxy_learning_rate=1.0)
    config = replace(config, schedule="cosine", warmup=1.0)
    run, rates = begun(config, tiny_images), []
    network = run.optimizer.network
    monkeypatch.setattr(network, "step", lambda: rates.append([one["lr"] for one in network.param_groups]))
    for _ in range(config.epochs):
        run.take_steps(silent, ())
        run.next_epoch({})
    steps = len(run.sampler)
    factors = np.array(rates)[:, 2]
    np.testing.assert_allclose(rates, factors[:, None] * [4.0, 2.0, 1.0])
    done = (np.arange(len(factors)) + 0.5) / steps
    expected = np.where(done < 1, done, 0.5 + 0.5 * np.cos(np.pi * (done - 1) / 3))
    np.testing.assert_allclose(factors, expected)
    with pytest.raises(UsageError, match=r"warmup=4: expected fewer than the 4 epochs"):
        replace(config, warmup=4.0)


def test_random_batches_cover_an_epoch_once():
    batches = list(RandomSampler(103, 10, seed=0).batches(0))
    assert [len(batch) for batch in batches] == [10] * 10
    assert len(np.unique(np.concatenate(batches))) == 100


def test_few_samples_are_passed_several_times():
    batches = list(RandomSampler(7, 10, seed=0).batches(3))
    assert [sorted(batch) for batch in batches] == [list(range(7))] * LEAST_STEPS
    assert len({tuple(batch) for batch in batches}) == LEAST_STEPS
    batches = list(RandomSampler(27, 10, seed=0).batches(0))
    assert [len(np.unique(np.concatenate(two))) for two in (batches[:2], batches[2:])] == [20, 20]


def test_balanced_batches_have_p_classes_of_k():
    labels = np.repeat([0, 1, 3, 4, 9], [30, 2, 20, 5, 40])
    sampler = ClassBalancedSampler(labels, 16, 4, seed=0)
    batches = list(sampler.batches(0))
    assert len(batches) == len(sampler) == 97 // 16
    for batch in batches:
        classes, counts = np.unique(labels[batch], return_counts=True)
        assert len(classes) == 4
        assert (counts == 4).all()
        # Only the class of two samples repeats any.
        large = batch[labels[batch] != 1]
        assert len(np.unique(large)) == len(large)


@pytest.mark.parametrize(
    "make",
    [lambda seed: RandomSampler(50, 8, seed), lambda seed: ClassBalancedSampler(np.arange(50) % 5, 10, 2, seed)],
)
def test_batches_depend_on_seed_and_epoch_alone(make):
    def flat(seed, epoch):
        return np.concatenate(list(make(seed).batches(epoch)))

    sampler = make(1)
    list(sampler.batches(0))
    assert np.array_equal(np.concatenate(list(sampler.batches(2))), flat(1, 2))
    assert not np.array_equal(flat(1, 2), flat(1, 3))
    assert not np.array_equal(flat(1, 2), flat(2, 2))


def test_batches_that_cannot_be():
    with pytest.raises(UsageError, match=r"only 5 classes have samples; use a batch size of at most 10"):
        ClassBalancedSampler(np.arange(50) % 5, 12, 2, 0)
    with pytest.raises(UsageError, match="num_samples=0"):
        RandomSampler(0, 4, 0)


def test_labels_that_nobody_made_wrong_are_not_called_free_of_noise(photos):
    printed = run_command("train", "--data", photos, *SMALL).out
    assert "labels as they are" in printed and "noise none" not in printed
