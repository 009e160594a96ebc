"""The trials of the ops on similarities, by name, and how random calls are drawn."""

import os

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.fuzz.trials import anchor, classes, pairs, similarity
from tests.fuzz.trials.batches import Trials

TRIALS: Trials = anchor.TRIALS | classes.TRIALS | pairs.TRIALS | similarity.TRIALS
CASES = int(os.environ.get("FUZZ_CASES", "0"))  # calls of each name, set by make fuzz


def drawn(cases: int) -> settings:
    """The same ``cases`` calls in each run, or CASES calls from the seed of ``--hypothesis-seed``."""
    return settings(
        max_examples=CASES or cases,
        derandomize=not CASES,
        deadline=None,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )


def judge_trials(name: str, cases: int) -> None:
    """Hold random calls of the trial ``name`` against the reference."""

    @drawn(cases)
    @given(data=st.data())
    def judge(data: st.DataObject) -> None:
        TRIALS[name](data.draw).judge()

    judge()
