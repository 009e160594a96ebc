"""What is deprecated works on and says what to take instead."""

import pickle

import pytest
import torch

from robustdml_ops.deprecation import deprecated


@deprecated("0.2", "0.3", "torch.add")
def add(a, b=1):
    """A sum."""
    return a + b


@deprecated("0.2", "0.3", "torch.nn.Linear")
class OldLinear(torch.nn.Linear):
    pass


def test_a_function_works_on_and_warns():
    with pytest.warns(FutureWarning, match=r"^add is deprecated since 0.2 and goes in 0.3: take torch.add$") as seen:
        assert add(2, b=3) == 5
    assert seen[0].filename == __file__ and add.__doc__ == "A sum." and add.__name__ == "add"


def test_a_class_stays_one():
    with pytest.warns(FutureWarning, match="^OldLinear is deprecated since 0.2") as seen:
        layer = OldLinear(3, 2)
    assert seen[0].filename == __file__ and isinstance(layer, OldLinear) and isinstance(layer, torch.nn.Linear)
    assert pickle.loads(pickle.dumps(layer)).weight.equal(layer.weight)
