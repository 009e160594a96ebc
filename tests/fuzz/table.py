"""The trials of the ops on similarities, by name. The tests of each room hold the others to oracles of their own."""

from tests.fuzz.trials import anchor, classes, pairs, similarity
from tests.fuzz.trials.batches import Trials

TRIALS: Trials = anchor.TRIALS | classes.TRIALS | pairs.TRIALS | similarity.TRIALS
