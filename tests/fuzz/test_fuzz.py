"""Random calls of everything public against the reference: 2,000 of them, the same in each run. More: ``make fuzz``."""

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.every_call import EVERY
from tests.fuzz import hostile
from tests.fuzz.table import PUBLIC, TRIALS

few = settings(
    max_examples=32,  # of each of 48; and of wrong calls, 13 of each of 39
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


@pytest.mark.parametrize("name", EVERY)
def test_random_wrong_calls(name):
    """One argument is wrong: an error that names it in one line, or a result that is a number."""

    @settings(few, max_examples=13)
    @given(call=hostile.wrong_calls(name))
    def judge(call):
        hostile.judge(name, *call)

    judge()
