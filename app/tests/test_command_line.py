"""What the command line says to somebody who has mistyped."""

import re
import sys

import pytest

from robustdml.cli import main
from robustdml.command_line import CommandParser
from robustdml.errors import UsageError, did_you_mean
from robustdml.methods import METHODS
from robustdml.noise import parse_noise


def refused(arguments, capsys):
    """What is printed, whether the parser or the command finds the fault."""
    with pytest.raises(SystemExit) as end:
        sys.exit(main(arguments))
    assert end.value.code == 2
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "usage", "message"),
    [
        (["trian"], "robustdml [--help", "did you mean train?"),
        (["train", "--epohcs", "3"], "robustdml train", "unknown option --epohcs; did you mean --epochs?"),
        (["train", "--epohcs=3"], "robustdml train", "unknown option --epohcs; did you mean --epochs?"),
        (["train", "--epoch", "3"], "robustdml train", "unknown option --epoch; did you mean --epochs?"),
        (["train", "--bspml-warmpu", "3"], "robustdml train", "did you mean --bspml-warmup?"),
        (["train", "--method", "robsut"], "robustdml train", "did you mean robust?"),
        (["train", "--filter", "prism-vfm"], "robustdml train", "did you mean prism-vmf?"),
        (["train", "--noise", "symetric:0.5"], "robustdml train", "did you mean symmetric:RATE?"),
        (["train", "--amp", "bf61"], "robustdml train", "did you mean bf16?"),
        (["train", "--logger", "tensorbord"], "robustdml train", "did you mean tensorboard?"),
        (["train", "photos"], "robustdml train", "unexpected argument 'photos'; did you mean --data photos?"),
        (["audit", "a", "b", "--out", "c"], "robustdml audit", "unexpected argument 'b'"),
        (["train", "--lr", "1"], "robustdml train", "unknown option --lr; did you mean --learning-rate?"),
        (["train", "--bs=8"], "robustdml train", "unknown option --bs; did you mean --batch-size?"),
        (["train", "--epochs", "many"], "robustdml train", "--epochs: invalid int value: 'many'"),
    ],
)
def test_a_typo_gets_a_suggestion_and_one_line_of_usage(arguments, usage, message, capsys):
    lines = refused(arguments, capsys).splitlines()
    assert lines[0].startswith(f"usage: {usage}")
    assert len(lines) == 2 and message in lines[1]


def test_nothing_is_suggested_where_nothing_is_alike():
    assert did_you_mean("--xyzzy", ["--epochs", "--seed"]) == ""
    with pytest.raises(UsageError) as raised:
        parse_noise("gaussian:0.5")
    assert "did you mean" not in str(raised.value)


def test_usage_names_what_must_be_given():
    parser = CommandParser(prog="robustdml embed")
    parser.add_argument("model")
    parser.add_argument("images", nargs="+", metavar="IMAGES")
    parser.add_argument("--out", required=True)
    parser.add_argument("--seed")
    parser.shorten_usage()
    assert parser.format_usage().startswith("usage: robustdml embed [OPTIONS] MODEL IMAGES … --out OUT ")


@pytest.mark.parametrize(
    "arguments",
    [
        *(["train", option, ""] for option in ("--out", "--config")),
        ["audit", "DATA", "--out", ""],
        ["embed", "MODEL", "IMAGES", "--out", ""],
        ["embed", "", "IMAGES", "--out", "x.npz"],
    ],
)
def test_an_empty_path_is_not_the_current_folder(arguments, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "the path is empty" in refused(arguments, capsys)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--bspml-mu", "3"], "--bspml-mu has no effect on method robust: it is a setting of method bspml"),
        (
            ["--method", "mcl", "--anchor-margin", "0.1"],
            "--anchor-margin has no effect on method mcl: it is a setting of methods proxy-anchor, "
            "smooth-proxy-anchor, adaptive-proxy-anchor",
        ),
        # Its default as well: somebody asked for it.
        (["--procsim-lam", "0.03"], "--procsim-lam has no effect on method robust"),
        (["--no-procsim-drop-above"], "--no-procsim-drop-above has no effect on method robust"),
        (
            ["--method", "mcl", "--filter-window", "5"],
            "--filter-window is for a filter, and there is none here: choose",
        ),
        (["--filter", "none", "--filter-window", "5"], "or a method that has one by itself: robust"),
        (["--method", "mcl", "--noise-rate", "0.2"], "--noise-rate is for a filter"),
        (["--method", "procsim", "--filter-window", "5"], "method procsim takes none, for it weighs samples itself"),
        (["--correct-confidence", "0.5"], "has no effect without correct"),
    ],
)
def test_an_option_without_effect_is_refused(options, message, capsys):
    assert message in refused(["train", *options], capsys)


def test_help_of_training_is_led_by_a_short_usage_and_shows_defaults(capsys):
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    text = re.sub(r"\s+", " ", capsys.readouterr().out)
    assert text.startswith("usage: robustdml train [OPTIONS] (--help lists the options) Train")
    for line in (
        "seed of the choice of test classes (default: 0)",
        "of positive pairs (default: 0.0)",
        "(default: glyphs)",
        "(default: 256)",
        *("--noise", "--resume", "--finetune", "--amp", "--smooth-beta", "--filter-threshold"),
    ):
        assert line in text
    assert "(default: None)" not in text and "(default: False)" not in text
    assert all(method in text for method in METHODS)
