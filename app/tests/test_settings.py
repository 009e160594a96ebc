"""Groups of settings, ``config.yaml``: what a run writes, what one reads, and what the command line makes of both."""

import pickle
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np
import pytest
import yaml

from app.tests.conftest import EVERY_METHOD, metrics_of, refused, run_command, settings_of
from robustdml.config import TrainingConfig
from robustdml.errors import UsageError
from robustdml.filters.options import FILTERS, FilterOptions
from robustdml.methods import METHODS, Method
from robustdml.methods.classes import AnchorOptions, SmoothOptions
from robustdml.methods.pairs import SuperLossOptions
from robustdml.options import Options, OptionSet, option
from robustdml.settings import Given, all_settings, complete_settings, make_config, merge, read_settings, write_settings
from robustdml.train import train
from robustdml_ops.losses import ProxyAnchorLoss

AVERAGE, PROXY = FilterOptions("prism-average"), FilterOptions("prism-proxy")


@pytest.fixture
def command(clusters_file):
    return ["train", "--data", clusters_file, "--batch-size", "32", "--epochs", "1", "--device", "cpu"]


def written(tmp_path, text):
    path = tmp_path / "run.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def given(**values):
    return {name.replace("__", "."): Given(value, f"--{name}") for name, value in values.items()}


@pytest.mark.parametrize("method", EVERY_METHOD)
def test_every_method_comes_back_from_its_file_as_it_was(tmp_path, method):
    own = METHODS[method].options[0]
    field = own.settings()[0]
    value = list(field.choices)[-1] if field.choices else field.kind(7)
    changes = given(method=method, noise="symmetric:0.25", learning_rate=1e-5, epochs=3)
    changes[field.name] = Given(value, "")
    if METHODS[method].takes_filter:
        changes |= given(filter__kind="prism-average", filter__threshold="top-r", noise_rate=0.125)
    config = make_config(changes)
    write_settings(tmp_path / "config.yaml", complete_settings(config, changes))
    read = read_settings(tmp_path / "config.yaml")
    assert make_config(merge({}, read)).as_dict() == config.as_dict() != TrainingConfig(method=method).as_dict()
    assert read["noise"].value == "symmetric:0.25" and "samples_per_class" not in read


def test_a_run_writes_its_settings_and_another_repeats_it(command, tmp_path):
    first, second, third = (tmp_path / name for name in ("first", "second", "third"))
    run_command(*command, "--noise", "symmetric:0.25", "--test-fraction", "0.25", "--out", first)
    config = first / "config.yaml"
    settings = yaml.safe_load(config.read_text())
    assert settings["noise"] == "symmetric:0.25" and settings["test_fraction"] == 0.25
    assert settings["filter"]["kind"] == "prism-vmf" and "mcl" not in settings
    run_command("train", "--config", config, "--out", second)
    assert (second / "config.yaml").read_text() == config.read_text()
    assert settings_of(second) == settings_of(first)
    assert metrics_of(second) == metrics_of(first)
    run_command("train", "--config", config, "--out", third, "--seed", "3", "--filter-window", "7")
    before = settings_of(first)
    assert settings_of(third) == {**before, "seed": 3, "filter": {**before["filter"], "window": 7}}


def test_resume_takes_the_settings_of_the_run_and_refuses_others(command, tmp_path):
    """A run that is refused changes no settings."""
    out = tmp_path / "run"
    command += ["--noise", "symmetric:0.25", "--out", out]
    run_command(*command)
    before = (out / "config.yaml").read_text()
    assert "holds a run already" in refused(*command, "--seed", "3")
    assert (out / "config.yaml").read_text() == before
    for options, message in (
        (["--seed", "3"], "seed: 0 then, 3 now"),
        (["--split-seed", "3"], "split_seed: 0 then, 3 now"),
        (["--method", "mcl"], "method: 'robust' then, 'mcl' now"),
    ):
        assert message in refused("train", "--out", out, "--resume", *options)
        assert (out / "config.yaml").read_text() == before
    run_command("train", "--out", out, "--resume", "--epochs", "2")
    assert (out / "config.yaml").read_text() == before.replace("epochs: 1\nbatch", "epochs: 2\nbatch") != before
    # Somebody has changed the file.
    (out / "config.yaml").write_text(before.replace("seed: 0\namp", "seed: 5\namp"))
    assert "seed: 0 then, 5 now" in refused("train", "--out", out, "--resume")
    # Or the data, of the same sizes.
    (out / "config.yaml").write_text(before)
    there = dict(np.load(command[2]))
    np.savez(command[2], features=there["features"][::-1], labels=there["labels"])
    assert "'content': " in refused("train", "--out", out, "--resume", "--epochs", "3")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("epochs: 3\nepohcs: 4\n", "line 2: epohcs: unknown setting; did you mean epochs?"),
        ("filter:\n  windwo: 4\n", "line 2: filter.windwo: unknown setting; did you mean filter.window?"),
        ("filter: prism-vmf\n", "line 1: filter: unknown setting: filter is a group of settings, filter.kind"),
        ("out: somewhere\n", "line 1: out is given on the command line, as --out"),
        ("epochs: many\n", "line 1: epochs is 'many': expected a whole number"),
        ("epochs: 2.5\n", "line 1: epochs is 2.5: expected a whole number"),
        ("epochs: true\n", "line 1: epochs is True: expected a whole number"),
        ("weight_decay: [1]\n", "line 1: weight_decay is [1]: expected a number"),
        ("finetune: 1\n", "line 1: finetune is 1: expected true or false"),
        ("data: 2024-01-01\n", "expected a text, in quotes if need be"),
        ("method: robsut\n", "did you mean robust?"),
        ("seed: 1\n\nseed: 2\n", "line 3: seed is given in line 1 already"),
        ("seed: 1\n  noise: x\n", "line 2: not readable as YAML"),
        ("seed: !!python/object:os.system 1\n", "line 1: not readable as YAML"),
        ("", "expected settings, such as `epochs: 30`"),
        ("- 1\n", "expected settings, such as `epochs: 30`"),
    ],
)
def test_what_is_wrong_with_a_file_is_told_with_its_line(tmp_path, text, message):
    path = written(tmp_path, text)
    with pytest.raises(UsageError) as raised:
        read_settings(path)
    assert str(raised.value).startswith(str(path)) and message in str(raised.value)


def test_numbers_are_read_as_people_write_them(tmp_path):
    read = read_settings(written(tmp_path, "learning_rate: 1e-3\nweight_decay: 0\nnoise: none\nseed: null\n"))
    assert {name: g.value for name, g in read.items()} == {"learning_rate": 1e-3, "weight_decay": 0, "noise": "none"}


def complete(**values):
    settings = complete_settings(make_config(given(**values)), given(**values))
    return given(**{name: value for name, value in settings.items() if value is not None})


def test_what_the_command_line_replaces_goes_with_what_belonged_to_it():
    robust = complete(method="robust", noise_rate=0.5, batch_size=7)
    changed = make_config(merge(given(method="smooth-proxy-anchor"), robust))
    assert changed.filter_options.kind == "none" and changed.noise_rate is None and changed.batch_size == 7
    back = make_config(merge(given(method="robust"), complete(method="smooth-proxy-anchor")))
    assert back.filter_options.kind == "prism-vmf"
    assert make_config(merge(given(filter__kind="none"), robust)).as_dict()["filter"]["kind"] == "none"
    assert make_config(merge(given(filter__kind="audit"), robust)).filter_options == FilterOptions("audit")
    # A filter that somebody chose stays.
    chosen = complete(method="mcl", filter__kind="prism-average", filter__window=7, noise_rate=0.2)
    changed = make_config(merge(given(method="soft-triple"), chosen)).filter_options
    assert (changed.kind, changed.window) == ("prism-average", 7)


def test_a_filter_that_is_named_is_not_put_on_trial():
    assert make_config(given(method="robust")).filter_options == METHODS["robust"].filter
    for kind in ("none", "audit"):
        assert make_config(given(method="robust", filter__kind=kind)).filter_options == FilterOptions(kind)
    own = METHODS["robust"].filter
    assert make_config(given(method="robust", filter__kind="prism-vmf")).filter_options == replace(own, on_trial=False)
    both = given(method="robust", filter__kind="prism-vmf", filter__on_trial=True)
    assert make_config(both).filter_options == own
    own_window = make_config(given(method="robust", filter__window=5, filter__without_copies=False)).filter_options
    assert own_window == replace(own, window=5, without_copies=False) != own
    # What a run has stored is its method's own, and makes the same again.
    assert make_config(complete(method="robust")).filter_options == own


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"method": "triplet"}, "method 'triplet': expected one of robust, many-classes, proxy-anchor"),
        ({"amp": "fp8"}, "amp 'fp8'"),
        ({"seed": -1}, "seed=-1"),
        ({"learning_rate": 0.0}, "learning_rate=0.0"),
        ({"start": "pca"}, "start 'pca'"),
        ({"averaging": 1.5}, "averaging=1.5"),
        ({"averaging": 0.5, "method": "contrastive"}, "random start is nothing to go back to"),
        ({"averaging": 0.5, "finetune": True}, "frozen features"),
        ({"noise_rate": 1.5}, "noise_rate=1.5"),
        ({"noise_rate": 0.2, "filter": FilterOptions("audit")}, r"noise_rate=0\.2 has no effect on filter audit"),
        ({"filter": FilterOptions("audit", window=5)}, r"filter\.window=5 has no effect on audit, which"),
        ({"filter": replace(AVERAGE, vmf_epochs=-1)}, r"filter\.vmf_epochs=-1: expected at least 0"),
        ({"filter": FilterOptions("median")}, f"filter 'median': expected one of none, {', '.join(FILTERS)}"),
        ({"filter": PROXY, "method": "mcl"}, "filter prism-proxy needs proxies, and method mcl has none"),
        ({"filter": replace(PROXY, memory_dtype="bfloat16"), "method": "soft-triple"}, "bfloat16 has no effect on"),
        ({"filter": replace(PROXY, memory_size=9), "method": "soft-triple"}, "filter.memory_size=9 has no effect on"),
        ({"filter": FilterOptions("prism-vmf", memory_dtype="float8")}, "memory_dtype 'float8'.*float32, bfloat16"),
        ({"filter": AVERAGE, "method": "procsim"}, "method procsim weighs samples itself; use filter none"),
    ],
)
def test_settings_that_are_refused(settings, message):
    with pytest.raises(UsageError, match=message):
        TrainingConfig(**settings)


def test_each_field_of_the_configuration_is_a_setting():
    """Those of the configuration and of the groups that are not on the command line could not be repeated."""
    assert set(TrainingConfig().flat()) <= set(all_settings())


@dataclass(frozen=True)
class PullOptions(Options, name="pull"):
    """Pull, which draws embeddings to the origin."""

    strength: float = option(0.5, "of the pull", positive=True)
    rounds: int = option(1, "how often", at_least=1)
    norm: str = option("l2", "which", choices=("l1", "l2"))
    sign: float | None = option(None, "of the pull (default: towards)")
    debug: bool = option(False, "say more")


def make_loss(options, num_classes, embedding_size):
    alpha = options[PullOptions].strength * options[AnchorOptions].alpha
    return ProxyAnchorLoss(num_classes, embedding_size, alpha=alpha)


@pytest.fixture
def pull(monkeypatch):
    """The one line."""
    monkeypatch.setitem(METHODS, "pull", Method("Pull", make_loss, (PullOptions, AnchorOptions)))


@pytest.mark.usefixtures("pull")
def test_a_registered_method_has_flags_a_configuration_and_checkpoints(command, tmp_path):
    out = tmp_path / "run"
    command += ["--method", "pull", "--out", out]
    command += ["--pull-strength", "0.25", "--pull-norm", "l1", "--pull-debug", "--anchor-alpha", "8"]
    run_command(*command)
    expected = {"strength": 0.25, "rounds": 1, "norm": "l1", "sign": None, "debug": True}
    assert settings_of(out)["pull"] == expected and settings_of(out)["anchor"]["alpha"] == 8.0
    run_command(*command, "--epochs", "2", "--resume")
    assert metrics_of(out)["epoch"] == 2
    command += ["--pull-strength", "1", "--epochs", "3", "--resume"]
    assert "pull.strength: 0.25 then, 1.0 now" in refused(*command)
    text = run_command("train", "--help").out
    assert "Pull, which draws embeddings to the origin:" in text and "--pull-norm {l1,l2}" in text


@pytest.mark.usefixtures("pull")
def test_settings_of_a_registered_method_reach_its_loss_and_are_checked(clusters, command):
    config = TrainingConfig(method="pull", options=OptionSet(PullOptions(strength=0.25)), batch_size=32, epochs=1)
    stronger = replace(config, options=OptionSet(PullOptions(strength=0.25), AnchorOptions(alpha=64.0)))
    first, second = (train(c, clusters, device="cpu").history[0]["loss"] for c in (config, stronger))
    assert second != first
    with pytest.raises(UsageError, match=r"pull\.rounds=0: expected at least 1"):
        replace(config, options=OptionSet(PullOptions(rounds=0)))
    said = refused(*command, "--method", "pull", "--pull-strength", "0")
    assert "pull.strength=0.0: expected a positive number" in said


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


@pytest.mark.parametrize("method", METHODS)
def test_what_is_written_of_a_run_is_taken_again(method):
    """Also where the method's own filter has settings that other ones of the run leave without effect."""
    for kind in (None, "none", "audit", "prism-vmf", "prism-average"):
        for more in ({}, {"averaging": 1.0}, {"start": "random"}, {"start": "principal", "noise_rate": 0.3}):
            given = {"method": method, **more, **({} if kind is None else {"filter.kind": kind})}
            given = {name: Given(value, name) for name, value in given.items()}
            config = None
            with suppress(UsageError):
                config = make_config(given)
            if config is not None:
                settings = complete_settings(config, given)
                again = {name: Given(value, name) for name, value in settings.items() if value is not None}
                assert make_config(again) == config
