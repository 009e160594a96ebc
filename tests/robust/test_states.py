"""States of filters, as trainers save and load them: in modules without memory, buffer by buffer, averaged."""

import copy
import warnings

import pytest
import torch
from states import load_saved
from torch.optim.swa_utils import AveragedModel

from robustdml_ops.robust import PRISM, BalancedSelfPaced, LabelCorrection, MemoryBank, VmfClasses
from tests.every_call import LOSSES

B, C, D = 12, 4, 6
BANK = {"memory_size": 30}
FILTERS = {
    "average": {**BANK, "noise_rate": 0.3},
    "vmf": {**BANK, "similarity": "vmf", "threshold": "cautious", "vmf_start": 2, "num_samples": 40},
    "vmf-otsu": {**BANK, "similarity": "vmf", "threshold": "otsu", "vmf_start": 2},
    "per-class": {**BANK, "noise_rate": 0.3, "threshold": "per-class"},
    "proxy": {"similarity": "proxy", "noise_rate": 0.3},
}


def made(name):
    return PRISM(C, D, **FILTERS[name])


def steps(prism, numbers):
    """Verdicts on batches by their numbers."""
    results = []
    for number in numbers:
        random = torch.Generator().manual_seed(number)
        labels = torch.arange(B) % C
        X = torch.eye(C, D)[labels] + 0.5 * torch.randn(B, D, generator=random)
        ids = torch.randint(40, (B,), generator=random)
        results.append(prism(X, labels, ids, torch.eye(C, D) if prism.similarity == "proxy" else None))
        prism.enqueue(X, labels, results[-1].keep, ids)
    return results


def fill(module, state):
    """As Hugging Face's from_pretrained: tensors are put in their places by name, and no hook is called."""
    module.to_empty(device="cpu")
    for name, buffer in module.named_buffers():
        buffer.copy_(state[name])


LOADS = {
    "assign": lambda module, state: module.load_state_dict(copy.deepcopy(state), assign=True),
    # Of a module whose own memory is full of anything.
    "file": lambda module, state: load_saved(module.to_empty(device="cpu"), state),
    "fill": fill,
}


@pytest.mark.parametrize("name", FILTERS)
@pytest.mark.parametrize("load", LOADS)
def test_a_filter_without_memory_goes_on_with_a_loaded_state(load, name):
    trained = made(name)
    steps(trained, range(5))
    with torch.device("meta"):
        other = made(name)
    LOADS[load](other, trained.state_dict())
    for result, expected in zip(steps(other, range(5, 8)), steps(trained, range(5, 8)), strict=True):
        assert all(torch.equal(one, two) for one, two in zip(result, expected, strict=True))


def test_every_buffer_is_saved_and_those_of_filters_keep_their_types():
    filters = [*map(made, FILTERS), MemoryBank(C, D, 9, num_samples=4), BalancedSelfPaced(torch.arange(9) // 3)]
    for module in (*filters, *(call.make() for call in LOSSES.values())):
        assert {name for name, _ in module.named_buffers()} <= module.state_dict().keys()
    for module in (*filters, VmfClasses(2, 2), LabelCorrection(8)):
        types = {name: buffer.dtype for name, buffer in module.named_buffers()}
        torch.nn.Sequential(module).half()
        assert types == {name: buffer.dtype for name, buffer in module.named_buffers()}


def test_sums_that_were_made_short_are_refused():
    """As FullyShardedDataParallel makes them by its buffer_dtype, behind the back of ``.half()``."""
    prism = made("vmf")
    for buffer in prism.buffers():
        if buffer.is_floating_point():
            buffer.data = buffer.bfloat16()
    with pytest.raises(TypeError, match=r"have become torch\.bfloat16.*leave buffer_dtype out"):
        steps(prism, [0])


def test_an_averaged_memory_warns():
    prism = made("vmf")
    averaged, weights = AveragedModel(prism, use_buffers=True), AveragedModel(prism)
    for number in range(4):
        steps(prism, [number])
        averaged.update_parameters(prism)
    with pytest.warns(UserWarning, match="use_buffers=False"):
        made("vmf").load_state_dict(averaged.module.state_dict())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made("vmf").load_state_dict(prism.state_dict())
        made("vmf").load_state_dict(weights.module.state_dict())
