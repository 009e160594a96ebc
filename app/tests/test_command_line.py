"""What the command line says to somebody who has mistyped."""

import re

import pytest

from app.tests.conftest import refused
from robustdml.cli import main
from robustdml.command_line import CommandParser
from robustdml.errors import UsageError, did_you_mean
from robustdml.methods import METHODS
from robustdml.noise import parse_noise


@pytest.mark.parametrize(
    ("arguments", "usage", "message"),
    [
        (["trian"], "robustdml [--help", "did you mean train?"),
        (["train", "--epohcs", "3"], "robustdml train", "unknown option --epohcs; did you mean --epochs?"),
        (["train", "--epohcs=3"], "robustdml train", "unknown option --epohcs; did you mean --epochs?"),
        (["train", "--epoch", "3"], "robustdml train", "unknown option --epoch; did you mean --epochs?"),
        (["train", "--filter-warmpu", "3"], "robustdml train", "did you mean --filter-warmup?"),
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
    lines = refused(capsys, *arguments).splitlines()
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
