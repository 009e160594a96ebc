"""Steps of everything leave nothing behind. ``make leaks`` takes more steps."""

import os
import platform

import pytest

from robustdml_ops import losses, optim, robust
from tests.every_call import NO_LOSS
from tests.leaks.steps import STEPS, growth
from tests.nightly import nightly_but

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="asks glibc's malloc and Linux's /proc")
WINDOW = 25  # steps
MANY = int(os.environ.get("LEAK_STEPS", "0"))


def leaks(step):
    """What each of three windows of steps leaves: a tensor is 64 bytes and more each time."""
    grown = growth(step, WINDOW, warm_up=15, windows=3)
    found = {"malloc": grown.allocated >= 32 * WINDOW, "objects": grown.objects >= WINDOW / 2}
    found |= {"handles": grown.handles > 0, "threads": grown.threads > 0}
    return {name for name, leaking in found.items() if leaking}


def test_everything_that_steps_is_here():
    public = {name for module in (losses, optim, robust) for name in module.__all__}
    assert set(STEPS) >= public - {*NO_LOSS, "PRISMResult", "OwnClassResult", "ProxyOptimizer"}


SHORT = {"ProxyAnchorLoss", "ProxyAnchorLoss, 1 MB", "ProxyNCALoss", "MultiSimilarityLoss", "PRISM", "ProxyAdamW"}


@pytest.mark.parametrize("name", nightly_but(SHORT, STEPS))
def test_steps_leave_nothing(name):
    assert leaks(STEPS[name]()) == set()


@pytest.mark.skipif(not MANY, reason="make leaks runs it")
@pytest.mark.parametrize("name", STEPS)
def test_many_steps_leave_nothing(name):
    grown = growth(STEPS[name](), MANY, warm_up=500)
    assert grown.resident <= 4 << 20  # an allocator and its free lists may move by that
    assert grown.allocated <= 8 * MANY
    assert grown.objects <= MANY / 100
    assert grown.blocks <= MANY / 10
    assert grown.handles <= 0
    assert grown.threads <= 0
