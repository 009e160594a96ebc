"""Random calls of what Triton's kernels serve: a few of each, as the interpreter takes long."""

import pytest

from tests.fuzz.table import TRIALS, judge_trials
from tests.triton_here import MARKS

pytestmark = [
    *MARKS,
    # The squares of rows at the ends of their type overflow; the kernel then scales the rows by a power of two.
    pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning"),
]


@pytest.mark.parametrize("name", TRIALS)
@pytest.mark.usefixtures("small_chunks")
def test_random_calls(name, monkeypatch):
    monkeypatch.setenv("ROBUSTDML_BACKEND", "triton")
    judge_trials(name, 2)
