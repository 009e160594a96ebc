"""A run on two processes, which this file starts with itself as their module, equals the run on one."""

import os
import pickle
import re
import signal
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from app.tests.conftest import Ends, make_clusters
from app.tests.test_robust import in_pairs, mixture
from robustdml.config import TrainingConfig
from robustdml.errors import UsageError
from robustdml.filters.options import FilterOptions
from robustdml.methods.classes import AdaptiveOptions
from robustdml.methods.pairs import MemoryContrastiveOptions
from robustdml.noise import with_wrong_labels
from robustdml.options import OptionSet
from robustdml.run.checkpoint import CHECKPOINT
from robustdml.run.run import Run
from robustdml.train import train
from robustdml.world import World, joined_world
from robustdml_ops.distributed import ShardError
from tests.distributed.worlds import case, run_world
from tests.subprocesses import run_python

CONFIG = TrainingConfig(
    method="adaptive-proxy-anchor",
    epochs=2,
    batch_size=31,
    embedding_size=8,
    options=OptionSet(AdaptiveOptions(per_class=True)),
    filter=FilterOptions(kind="prism-vmf", vmf_epochs=1),
)


def figures(result):
    return [{name: value for name, value in record.items() if name != "seconds"} for record in result.history]


def world_of(place):
    os.environ["ROBUSTDML_CACHE"] = str(place.folder / f"cache-{place.rank}")
    return World(place.rank, 2)


def clusters():
    return with_wrong_labels(make_clusters(), "symmetric:0.3", seed=0)


@case(2)
def a_run(place):
    """Its figures, and what it wrote; a signal to one process ends both, and two or one go on."""
    world, data = world_of(place), clusters()
    folder, alone = place.folder / "run", place.folder / f"alone-{place.rank}"

    def end(config, resume, recorders=()):
        with pytest.raises(SystemExit) as end:
            train(config, data, out=folder, resume=resume, device="cpu", recorders=recorders, world=world)
        assert end.value.code == 75 and ("another process" in end.value.told) == world.leads

    in_a_step = [Ends(signal.SIGUSR1)] if place.rank == 1 else []
    end(CONFIG, False, in_a_step)
    with pytest.MonkeyPatch.context() as patch:
        if place.rank == 1:
            patch.setattr(Run, "evaluate", lambda *_: signal.raise_signal(signal.SIGTERM))
        end(CONFIG, True)
    many = train(CONFIG, data, out=folder, resume=True, device="cpu", world=world)
    one = train(CONFIG, data, out=alone, device="cpu")
    longer = replace(CONFIG, epochs=3)
    goes_on = train(longer, data, out=alone, resume=True, device="cpu")
    end(longer, True, in_a_step)
    last = train(longer, data, out=folder, resume=True, device="cpu") if world.leads else goes_on
    for found, expected in ((many, one), (last, goes_on)):
        for mine, theirs in zip(figures(found), figures(expected), strict=True):
            assert mine == pytest.approx(theirs, rel=1e-3, abs=1e-3)
        for name, score in expected.scores.items():
            np.testing.assert_allclose(found.scores[name], score, rtol=1e-2, atol=1e-2)
    if place.rank == 0:  # which writes
        states = [torch.load(path / CHECKPOINT)["state"]["loss"] for path in (folder, alone)]
        torch.testing.assert_close(*states, rtol=1e-3, atol=1e-3)
        assert sorted(file.name for file in folder.iterdir()) == sorted(file.name for file in alone.iterdir())


@case(2)
def a_run_judged_before_training(place):
    """The first process judges for all; every process keeps the same samples."""
    config = replace(CONFIG, filter=FilterOptions("audit"))
    many = train(config, clusters(), device="cpu", world=world_of(place))
    one = train(config, clusters(), device="cpu")
    assert 0.5 < one.history[-1]["filter_kept"] < 0.9
    for name in ("label_quality", "kept"):
        np.testing.assert_allclose(many.scores[name], one.scores[name], atol=1e-6)
    for mine, theirs in zip(figures(many), figures(one), strict=True):
        assert mine == pytest.approx(theirs, rel=1e-3, abs=1e-3)


@case(2)
def trials_of_two_processes(place):
    data, config = in_pairs(mixture(40, 30, nuisance=1.0)), TrainingConfig(epochs=1)
    many, one = (train(config, data, device="cpu", world=world).summary for world in (world_of(place), World()))
    assert many["filter"] == one["filter"] == "prism-vmf"
    assert many["chosen"]["overlooked"] == pytest.approx(one["chosen"]["overlooked"], abs=0.01)


@case(2)
def a_run_with_a_memory(place):
    """The filter's memory, or one of the loss's own, of which each process has half; one process goes on with it."""
    options = OptionSet(MemoryContrastiveOptions(memory_size=151))
    for name, chosen in (("memory", FilterOptions()), ("filter", FilterOptions("prism-average"))):
        config = replace(CONFIG, method="mcl", epochs=1, options=options, filter=chosen)
        folder, alone = place.folder / f"with-{name}", place.folder / f"with-{name}-{place.rank}"
        many = train(config, clusters(), out=folder, device="cpu", world=world_of(place))
        one = train(config, clusters(), out=alone, device="cpu")
        if place.rank == 0:  # which writes
            states = [torch.load(path / CHECKPOINT)["state"][name] for path in (folder, alone)]
            torch.testing.assert_close(*states, rtol=1e-3, atol=1e-3, equal_nan=True)
            longer = replace(config, epochs=2)
            many, one = (train(longer, clusters(), out=path, resume=True, device="cpu") for path in (folder, alone))
        # Balanced batches have some samples more than once: of those the log has what one of the processes wrote.
        for mine, theirs in zip(figures(many), figures(one), strict=True):
            for metric in ("loss", "precision_at_1", "mean_average_precision_at_r"):
                assert mine[metric] == pytest.approx(theirs[metric], rel=1e-3, abs=1e-3)


@case(2)
def settings_that_differ(place):
    """Both raise before a step: with other batches they would train on each other's samples, or wait."""
    world, data = world_of(place), clusters()
    with pytest.raises(UsageError, match="seed is 0 on rank 0 and 1 on rank 1: start all processes with the same"):
        train(replace(CONFIG, seed=place.rank), data, device="cpu", world=world)
    if place.rank == 1:
        data = with_wrong_labels(make_clusters(), "symmetric:0.3", seed=1)
    with pytest.raises(UsageError, match=r"the checksum of training labels is \d+ on rank 0 and \d+ on rank 1"):
        train(CONFIG, data, device="cpu", world=world)


@case(2)
def methods_of_one_process(place):
    config = TrainingConfig(method="smooth-proxy-anchor", epochs=1)
    with pytest.raises(UsageError, match="takes confidences of one process"):
        train(config, clusters(), device="cpu", world=world_of(place))


@pytest.mark.parametrize("error", [RuntimeError("[x/gloo/pair.cc:5] Connection closed by peer"), ShardError("rank 1")])
def test_the_end_of_another_process_is_told_in_one_line(error, monkeypatch):
    for name in ("init_process_group", "get_rank", "get_world_size", "destroy_process_group"):
        monkeypatch.setattr(torch.distributed, name, lambda *_, **__: 1)
    for name in ("WORLD_SIZE", "RANK"):
        monkeypatch.setenv(name, "2")
    with pytest.raises(UsageError, match=f"another process has failed .*{re.escape(str(error))}"), joined_world("cpu"):
        raise error
    with pytest.raises(RuntimeError, match="mine"), joined_world("cpu"):
        raise RuntimeError("mine")


@pytest.mark.nightly
def test_two_processes(tmp_path):
    done = run_python("-m", "app.tests.test_two_processes", str(tmp_path), OMP_NUM_THREADS="1")
    for rank in (0, 1):
        results = pickle.loads((tmp_path / f"results-2-{rank}").read_bytes())
        assert len(results) == 6, done.stderr
        assert not any(results.values()), next(filter(None, results.values()))


if __name__ == "__main__":
    run_world(2, Path(sys.argv[1]), short=False)
