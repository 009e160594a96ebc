"""Random calls of everything public against the reference: 2,000 of them, the same in each run. More: ``make fuzz``."""

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.fuzz.table import PUBLIC, TRIALS

EACH = 32
few = settings(
    max_examples=EACH,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


def test_everything_public_has_trials():
    assert set(TRIALS) == PUBLIC


@pytest.mark.parametrize("name", TRIALS)
@pytest.mark.usefixtures("small_chunks")
def test_random_calls(name):
    @few
    @given(data=st.data())
    def judge(data):
        TRIALS[name](data.draw).judge()

    judge()
