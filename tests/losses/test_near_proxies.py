"""Gradients of bfloat16 proxies near their samples on the CPU, whose lanes may multiply bfloat16."""

import pytest

from robustdml_ops.losses.families.metric_loss import ShardableLoss
from tests.losses import near_cases

pytestmark = pytest.mark.filterwarnings("ignore:.*an optimiser that rounds to the nearest:UserWarning")


@pytest.mark.parametrize("way", ["general", "planned"])
@pytest.mark.parametrize("noise", near_cases.NOISES)
@pytest.mark.parametrize("kind", [*near_cases.KINDS, *near_cases.BANKS])
def test_gradient_of_proxies_near_their_samples(kind, noise, way, backend, monkeypatch):
    if way == "general":
        monkeypatch.setattr(ShardableLoss, "_planned", lambda *_: None)
    near_cases.assert_as_exact_as_rounding(kind, near_cases.NOISES[noise], backend=backend)
