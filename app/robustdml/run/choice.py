"""Which of the settings that trials measured a run takes."""

import math
from collections.abc import Mapping
from typing import NamedTuple

from robustdml.filters.options import FilterOptions
from robustdml.run.evidence import Tally

# Share of the best gain from which on the setting that moves the layer least is taken.
NEARLY = 0.95


class Setting(NamedTuple):
    """Settings that a trial compares with others."""

    loss: str
    filter: FilterOptions
    factor: float  # Of the learning rate
    averaging: float  # Weight of the trained layer in its average with the start; 0: the start alone

    @property
    def move(self) -> float:
        """How far it moves the layer, relative to others with the same loss."""
        return self.factor * self.averaging


def best_setting(tallies: Mapping[Setting, Tally]) -> tuple[Setting, bool]:
    """The best of these settings, and whether its gain over the untouched features is more than chance."""
    # A loss that was not tried has a gain of 0, which must not win where all others lose.
    tried = {setting.loss: None for setting, tally in tallies.items() if tally.splits}
    losses = tried or {setting.loss: None for setting in tallies}
    best = [_best_of_loss({key: tally for key, tally in tallies.items() if key.loss == loss}) for loss in losses]
    first = max(best, key=lambda setting: (tallies[setting].supported, float(tallies[setting].mean[1])))
    return first, tallies[first].supported


def _best_of_loss(tallies: Mapping[Setting, Tally]) -> Setting:
    """The best of the settings with one loss: losses move the layer by different amounts."""
    found = [setting for setting, tally in tallies.items() if tally.supported] or list(tallies)
    gains = {setting: float(tallies[setting].mean[1]) for setting in found}
    gain = max(gains.values())
    near = [setting for setting in found if gains[setting] >= gain - (1 - NEARLY) * abs(gain)]
    # The untrained start has to gain the most: a run trains longer than a trial.
    trained = max((gains[setting] for setting in found if setting.move > 0), default=-math.inf)
    near = [setting for setting in near if setting.move > 0 or gains[setting] > trained]
    # The run takes more steps than a trial, so it moves further: the least move, then the highest gain, then the last.
    return min(reversed(near), key=lambda setting: (setting.move, -gains[setting]))
