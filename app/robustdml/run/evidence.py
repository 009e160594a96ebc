"""Measurements of trials: paired differences from the untouched features on held-out classes, and what is chance."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy import stats

from robustdml.arrays import Doubles, Ints, Labels
from robustdml.evaluation import JUDGED
from robustdml.filters.options import FILTERS, NO_FILTER

# Probability of a supported gain where there is none: in trials, in trials on few classes, where the best of several
# settings is often lucky, and on groups of few classes, where the untrained start is alone.
CHANCE, CHANCE_OF_FEW, CHANCE_ON_GROUPS = 0.03, 0.01, 0.06
# Standard errors that Recall@1 may lose.
LOSS = 2.0
# Held-out classes whose MAP@R has to change, or half of them where they are fewer than twice as many. Where nearly all
# labels are wrong only a few classes change, by chance, and the standard error is too small.
FEWEST_CHANGED = 20
# Times the needed gain, and held-out classes, from which on more splits are not asked.
PLAIN, MANY = 2.0, 15
# Share of doubted labels that a run without a filter mentions.
WORTH_TELLING = 0.05


@dataclass
class Tally:
    """Differences of Recall@1 and MAP@R, by class and over splits, weighted as the metrics are: by samples."""

    num_classes: int
    chance: float = CHANCE  # Probability of a supported gain where there is none
    sums: Doubles = field(init=False)  # (C, 2)
    counts: Ints = field(init=False)  # (C,)
    believed_gain: float = 0.0  # Sum of the differences of MAP@R among labels that the audit keeps
    splits: int = 0

    def __post_init__(self) -> None:
        self.sums, self.counts = np.zeros((self.num_classes, 2)), np.zeros(self.num_classes, np.int64)

    def add(self, labels: Labels, differences: Doubles, among_believed: Doubles) -> None:
        """Add those of the samples of a split, (N,) and (N, 2), and of the believed ones; NaN for what was no query."""
        queries = ~np.isnan(differences[:, 0])
        np.add.at(self.sums, labels[queries], differences[queries])
        np.add.at(self.counts, labels[queries], 1)
        self.believed_gain += float(np.nansum(among_believed[:, 1]))
        self.splits += 1

    @property
    def mean(self) -> Doubles:
        """Mean gains, (2,)."""
        gains: Doubles = self.sums.sum(0) / max(int(self.counts.sum()), 1)
        return gains

    @property
    def error(self) -> Doubles:
        """Standard errors of the means by the jackknife over classes, (2,); infinite of one class."""
        tested = self.counts > 0
        if tested.sum() < 2:
            return np.full(2, np.inf)
        without = (self.sums.sum(0) - self.sums[tested]) / (self.counts.sum() - self.counts[tested])[:, None]
        errors: Doubles = np.sqrt((1 - 1 / tested.sum()) * ((without - self.mean) ** 2).sum(0))
        return errors

    @property
    def classes(self) -> float:
        """Number of equal classes that would have the same error."""
        return float(self.counts.sum() ** 2 / max((self.counts.astype(np.float64) ** 2).sum(), 1))

    @property
    def needed(self) -> float:
        """Gain of MAP@R that chance does not explain; few classes ask for more."""
        return float(stats.t.ppf(1 - self.chance, max(self.classes - 1, 1)) * self.error[1])

    @property
    def supported(self) -> bool:
        """Whether MAP@R gains more than chance and nothing is lost: not among believed labels, nor of Recall@1.

        Where wrong labels are those of similar classes, merged classes look like a gain. Believed labels alone do not
        tell either: they agree with the features.
        """
        changed, tested = np.count_nonzero(self.sums[:, 1]), np.count_nonzero(self.counts)
        gains = self.mean[1] > 0 and self.mean[1] >= self.needed and self.believed_gain >= 0
        return bool(gains and self.mean[0] >= -LOSS * self.error[0] and changed >= min(FEWEST_CHANGED, tested / 2))

    @property
    def gains_plainly(self) -> bool:
        """Whether the gain is `PLAIN` times what is needed, on many classes: the best of several is lucky on few."""
        return self.supported and self.classes >= MANY and bool(self.mean[1] >= PLAIN * self.needed)

    @property
    def loses_plainly(self) -> bool:
        """Whether a gain is as good as excluded: by one split, or two that gain nothing together."""
        return bool(self.mean[1] < (0 if self.splits > 1 else -self.needed))

    def as_dict(self) -> dict[str, Any]:
        """Means and standard errors as they are stored; an error is None for one class."""
        found = zip(JUDGED, self.error.tolist(), strict=True)
        errors = {f"{name}_error": error if np.isfinite(error) else None for name, error in found}
        gains = {f"{name}_gain": float(gain) for name, gain in zip(JUDGED, self.mean, strict=True)}
        return {**gains, **errors, "splits": self.splits, "classes": int((self.counts > 0).sum())}


HEAD = ("loss", "filter", "learning rate", "averaging", "Recall@1", "MAP@R", "classes")
CAPTION = (
    "Gains over the untouched features on held-out training classes by the labels given, points ± standard error. "
    "averaging: weight of the trained layer in its average with the start; untrained: the features "
    "whitened within classes; classes: held-out classes × splits."
)


def rows_of(chosen: dict[str, Any]) -> list[list[str]]:
    """The contestants as a table with the head `HEAD`; the chosen one has a mark."""
    return [
        [
            ("→ " if one["chosen"] and not chosen["kept_features"] else "")
            + (one["loss"] if one["averaging"] else "untrained"),
            one["filter"] if one["averaging"] else "–",
            f"{one['learning_rate']:.2g}" if one["averaging"] else "–",
            f"{one['averaging']:.2f}",
            *(_points(one, name).replace(" ", "") for name in JUDGED),
            f"{one['classes']} × {one['splits']}",
        ]
        for one in chosen["contestants"]
    ]


def _points(one: dict[str, Any], name: str) -> str:
    error = one[f"{name}_error"]
    return f"{100 * one[f'{name}_gain']:+.1f}" + ("" if error is None else f" ± {100 * error:.1f}")


def advice(chosen: dict[str, Any], epochs: int) -> str:
    """A sentence on the choice, its reason and the next step."""
    best = next((one for one in chosen["contestants"] if one["chosen"]), None)
    if best is None:
        why = "trials need 4 classes, some of them with two samples and more"
        return f"Kept the features as they are: {why}." if chosen["kept_features"] else f"Nothing was tried: {why}."
    gain = f"{_points(best, JUDGED[1])} points of MAP@R and {_points(best, JUDGED[0])} of Recall@1"
    what = f"loss {best['loss']}, averaging {best['averaging']:g}, with filter {best['filter']}"
    if best["averaging"] == 0:
        what = "features whitened within classes, without training"
    if chosen["kept_features"]:
        return (
            "Kept the features as they are: nothing gained more than chance on held-out classes; the best, "
            f"{what}, gained {gain}. Next: try --epochs {4 * epochs}, or give more classes."
        )
    told = f"Chosen: {what}, which gained {gain} on held-out classes."
    if not best["supported"]:
        told += " That may be chance; without --embedding-size the features could be kept as they are."
    if chosen["filter"] in FILTERS and chosen["overlooked"]:
        told += f" It filters because it doubts {chosen['overlooked']:.0%} of the labels that the audit keeps."
    if chosen["filter"] == NO_FILTER and chosen["doubted"] > WORTH_TELLING:
        told += f" The audit doubts {chosen['doubted']:.0%} of the labels: look at them with robustdml audit."
    if chosen["raised"] > 1 and best["averaging"]:
        told += f" With only {chosen['steps']} steps it took {chosen['raised']:.2g} times the default learning rate."
    return told
