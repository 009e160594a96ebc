"""Random calls of the ops on similarities against the reference, and wrong calls of everything public.

The calls are the same in each run. ``make fuzz`` makes more.
"""

import pytest

from robustdml_ops.backends import native_module
from tests.every_call import EVERY
from tests.fuzz import hostile
from tests.fuzz.table import CASES, TRIALS, judge_trials


@pytest.mark.parametrize("chunks", ["small", pytest.param("whole", marks=pytest.mark.nightly)])
@pytest.mark.parametrize("name", TRIALS)
def test_random_calls(name, chunks, request, monkeypatch):
    # The oracle knows the roundings of one type; products of bfloat16 have tests/native/test_lanes_bfloat16.py.
    monkeypatch.setattr(native_module, "bfloat16_pays", lambda: False)
    if chunks == "small":
        request.getfixturevalue("small_chunks")
    judge_trials(name, 32)


@pytest.mark.filterwarnings("ignore:.*prototype stage", "ignore:.*quantized tensor creation")
@pytest.mark.parametrize("name", EVERY)
def test_wrong_calls(name):
    """One argument is wrong: an error that names it in one line, or a result that is a number."""
    for seed in range(1 + CASES // 100):
        for wrong in hostile.wrong_calls(name, seed):
            hostile.judge(name, *wrong)
