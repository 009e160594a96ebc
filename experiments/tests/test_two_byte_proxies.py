"""Proxies of two bytes are trained beside float32 from the same seeds."""

import pytest

from experiments.bench import bfloat16_proxies


@pytest.mark.filterwarnings("ignore:.*rounds to the nearest")
def test_each_type_is_trained(monkeypatch):
    monkeypatch.setattr(bfloat16_proxies, "SEEDS", 2)
    types = bfloat16_proxies.study("digits", ("arcface",), epochs=1)["ArcFace"]
    assert list(types) == list(bfloat16_proxies.PROXIES)
    assert types["float32"]["difference"] == [0.0, 0.0]
    assert all(0.9 < values["Recall@1"][0] <= 1 for values in types.values())
