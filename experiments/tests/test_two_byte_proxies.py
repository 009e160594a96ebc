"""Proxies of two bytes are trained beside float32 from the same seeds."""

import pytest

from experiments.bench import bfloat16_proxies


@pytest.mark.filterwarnings("ignore:.*rounds to the nearest")
def test_each_type_is_trained(monkeypatch):
    for name, value in {"EPOCHS": 1, "SEEDS": 2, "LOSSES": ("arcface",)}.items():
        monkeypatch.setattr(bfloat16_proxies, name, value)
    types = bfloat16_proxies.study("digits")["ArcFace"]
    assert list(types) == list(bfloat16_proxies.PROXIES)
    assert types["float32"]["difference"] == [0.0, 0.0]
    assert all(0.9 < values["Recall@1"][0] <= 1 for values in types.values())
