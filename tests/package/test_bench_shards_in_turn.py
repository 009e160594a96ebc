"""Shards that take their step in turn have the loss of all classes at once: what docs/large-classes.md measures."""

import re
import sys

import pytest

from bench import classes_in_turn


def test_shards_one_after_the_other_sum_to_the_whole(monkeypatch, capsys):
    found = []
    for shards in (1, 4):
        monkeypatch.setattr(sys, "argv", ["classes_in_turn", "6400", "8", "16", str(shards)])
        classes_in_turn.main()
        out = capsys.readouterr().out
        found.append([float(number) for number in re.findall(r"loss ([\d.]+), \|dL/dX\| ([\d.]+)", out)[0]])
        assert f"a shard of {6400 // shards} classes" in out
    assert found[0] == pytest.approx(found[1], rel=1e-5)


def test_classes_that_do_not_divide_are_told(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["classes_in_turn", "6401", "8", "16", "2"])
    with pytest.raises(SystemExit, match="C must be a multiple of 64, and W a divisor of it"):
        classes_in_turn.main()
