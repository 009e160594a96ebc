"""``train --correct``: what the filter rejects takes part under the class that it thinks it is of."""

from dataclasses import replace

import pytest
import torch

from app.tests.conftest import check_resume
from robustdml.cli import main
from robustdml.config import TrainingConfig
from robustdml.networks.preparation import prepare
from robustdml.noise import with_wrong_labels
from robustdml.run.run import Run

CONFIG = TrainingConfig(epochs=4, correct=True, averaging=1.0, embedding_size=16)
CPU = torch.device("cpu")


@pytest.fixture
def noisy(clusters):
    return with_wrong_labels(clusters, "symmetric:0.4", seed=0)


def test_labels_are_put_right_and_the_memory_keeps_those_given(noisy):
    run = Run(CONFIG, prepare(CONFIG, noisy, CPU), CPU)
    run.fit_inputs(lambda *_: None)
    real, remembered, taught = run.method.observe, run.filter.remember, []

    def observe(loss, embeddings, arguments):
        taught.append(arguments)
        return real(loss, embeddings, arguments)

    def remember(embeddings, rows, keep):
        # Of what takes part some is no longer under the label given, and none of that is remembered.
        given = torch.from_numpy(run.labels[rows])
        moved = taught[-1]["labels"] != given
        assert (taught[-1]["sample_weights"][moved] == 1).all() and not keep[moved].any()
        remembered(embeddings, rows, keep)

    run.method, run.filter.remember = replace(run.method, observe=observe), remember
    for _ in range(3):
        run.train_epoch(lambda *_: None, (), evaluate=False)
    last = run.history[-1]
    assert last["corrected_share"] > 0.2 and last["corrected_right"] > 0.9


def test_a_resumed_run_equals_an_unbroken_one(noisy, tmp_path):
    whole, _ = check_resume(replace(CONFIG, epochs=3), noisy, tmp_path / "run", stop=2)
    assert whole.history[-1]["corrected_share"] > 0


def test_a_confidence_without_correction_is_refused(capsys):
    assert main(["train", "--correct-confidence", "0.5"]) == 2
    assert "has no effect without correct" in capsys.readouterr().err
