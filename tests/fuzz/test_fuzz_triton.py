"""Random calls of what Triton's kernels serve: a few of each, as the interpreter takes long."""

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.fuzz.table import TRIALS
from tests.triton_here import MARKS

pytestmark = [
    *MARKS,
    # Squares of rows at the ends of their type overflow, and are taken again of the rows times a power of two.
    pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning"),
]


@pytest.mark.parametrize("name", TRIALS)
@pytest.mark.usefixtures("small_chunks")
def test_random_calls(name, monkeypatch):
    monkeypatch.setenv("ROBUSTDML_BACKEND", "triton")

    @settings(
        max_examples=3,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(data=st.data())
    def judge(data):
        TRIALS[name](data.draw).judge()

    judge()
