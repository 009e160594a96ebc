"""Groups of settings: what a method gets for being registered, and what a set of groups is."""

import json
import pickle
from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn

from app.tests.conftest import refused, settings_of
from robustdml.cli import main
from robustdml.config import TrainingConfig
from robustdml.errors import UsageError
from robustdml.methods import METHODS, Method
from robustdml.methods.anchors import AnchorOptions, SmoothOptions
from robustdml.methods.pairs import SuperLossOptions
from robustdml.options import Options, OptionSet, option
from robustdml.train import train


@dataclass(frozen=True)
class PullOptions(Options, name="pull"):
    """Pull, which draws embeddings to the origin."""

    strength: float = option(0.5, "of the pull", positive=True)
    rounds: int = option(1, "how often", at_least=1)
    norm: str = option("l2", "which", choices=("l1", "l2"))
    sign: float | None = option(None, "of the pull (default: towards)")
    debug: bool = option(False, "say more")


class PullLoss(nn.Module):
    def __init__(self, num_classes, embedding_size, strength):
        super().__init__()
        self.proxies = nn.Parameter(torch.ones(num_classes, embedding_size))
        self.strength = strength

    def forward(self, embeddings, labels, sample_weights=None):
        return self.strength * (embeddings - self.proxies[labels]).square().mean()


def make_loss(options, num_classes, embedding_size):
    return PullLoss(num_classes, embedding_size, options[PullOptions].strength * options[AnchorOptions].alpha)


@pytest.fixture
def pull(monkeypatch):
    """The one line."""
    monkeypatch.setitem(METHODS, "pull", Method("Pull", make_loss, (PullOptions, AnchorOptions)))


@pytest.fixture
def command(clusters_file):
    return ["train", "--data", clusters_file, "--method", "pull", "--batch-size", "32", "--device", "cpu"]


@pytest.mark.usefixtures("pull")
def test_a_registered_method_has_flags_a_configuration_and_checkpoints(command, tmp_path, capsys):
    out = tmp_path / "run"
    command += ["--out", str(out)]
    flags = ["--pull-strength", "0.25", "--pull-norm", "l1", "--pull-debug", "--anchor-alpha", "8"]
    assert main([*command, *flags, "--epochs", "1"]) == 0
    expected = {"strength": 0.25, "rounds": 1, "norm": "l1", "sign": None, "debug": True}
    assert settings_of(out)["pull"] == expected and settings_of(out)["anchor"]["alpha"] == 8.0
    assert main([*command, *flags, "--epochs", "2", "--resume"]) == 0
    assert json.loads((out / "metrics.json").read_text())["epoch"] == 2
    command += [*flags, "--pull-strength", "1", "--epochs", "3", "--resume"]
    assert "pull.strength: 0.25 then, 1.0 now" in refused(capsys, *command)
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    text = capsys.readouterr().out
    assert "Pull, which draws embeddings to the origin:" in text and "--pull-norm {l1,l2}" in text


@pytest.mark.usefixtures("pull")
def test_settings_of_a_registered_method_reach_its_loss_and_are_checked(clusters, command, capsys):
    config = TrainingConfig(method="pull", options=OptionSet(PullOptions(strength=0.25)), batch_size=32, epochs=1)
    stronger = replace(config, options=OptionSet(PullOptions(strength=0.25), AnchorOptions(alpha=64.0)))
    first, second = (train(c, clusters, device="cpu").history[0]["loss"] for c in (config, stronger))
    assert second != first
    with pytest.raises(UsageError, match=r"pull\.rounds=0: expected at least 1"):
        replace(config, options=OptionSet(PullOptions(rounds=0)))
    assert "pull.strength=0.0: expected a positive number" in refused(capsys, *command, "--pull-strength", "0")


def test_a_method_that_came_later_leaves_what_was_stored_valid(monkeypatch):
    config = TrainingConfig(method="proxy-anchor")
    before = config.as_dict()
    monkeypatch.setitem(METHODS, "pull", Method("Pull", make_loss, (PullOptions,)))
    assert "pull" in config.as_dict() and "pull" not in before
    assert config.differences(before) == []
    changed = replace(config, options=OptionSet(PullOptions(rounds=2)))
    assert changed.differences(before) == ["pull.rounds: 1 then, 2 now"]


def test_groups_without_a_method_or_given_twice_are_refused():
    with pytest.raises(UsageError, match="PullOptions: no method has this group of settings"):
        TrainingConfig(options=OptionSet(PullOptions(rounds=2)))
    with pytest.raises(UsageError, match="AnchorOptions is given 2 times: expected one group of a kind"):
        OptionSet(AnchorOptions(), AnchorOptions(alpha=1.0))


def test_sets_that_say_the_same_are_equal():
    anchor, smooth = AnchorOptions(alpha=16.0), SmoothOptions(beta=50.0)
    options = OptionSet(anchor, smooth)
    assert options == OptionSet(smooth, SuperLossOptions(), anchor) != OptionSet(anchor)
    assert hash(options) == hash(OptionSet(smooth, anchor))
    assert options[AnchorOptions] is anchor and options[SuperLossOptions] == SuperLossOptions()
    assert pickle.loads(pickle.dumps(TrainingConfig(options=options))) == TrainingConfig(options=options)
