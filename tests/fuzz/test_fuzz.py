"""Random calls of the ops on similarities against the reference, and wrong calls of everything public.

The calls are the same in each run. ``make fuzz`` makes more.
"""

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.every_call import EVERY
from tests.fuzz import hostile
from tests.fuzz.table import TRIALS

few = settings(
    max_examples=32,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


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
