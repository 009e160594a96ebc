"""Who sorts labels: the CPU, whose epilogues walk the classes, and nobody else."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from robustdml_ops.losses import ProxyNCALoss
from robustdml_ops.ops import AnchorBiases, LabelSets, anchor_lse, class_lse

B, C, D = 6, 4, 5


class Sorts(TorchDispatchMode):
    """How many tensors were sorted."""

    count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += function.overloadpacket in (torch.ops.aten.sort, torch.ops.aten.argsort)
        return function(*args, **(kwargs or {}))


def sums_over_classes(device):
    return class_lse(torch.ones(B, D, device=device), torch.ones(C, D, device=device), labels(device)).lse


def sums_over_the_batch(device):
    bias = torch.zeros(B, device=device)
    X, P = torch.ones(B, D, device=device), torch.ones(C, D, device=device)
    return anchor_lse(X, P, LabelSets.of(labels(device)), AnchorBiases(bias, bias), alpha=2.0).positive


def labels(device):
    return torch.zeros(B, dtype=torch.int64, device=device)


def proxy_nca(device):
    with torch.device(device):
        return ProxyNCALoss(C, D)(torch.ones(B, D), labels(device))


@pytest.mark.parametrize("call", [sums_over_classes, sums_over_the_batch, proxy_nca])
def test_labels_are_not_sorted_on_a_gpu(call):
    # Where PyTorch is built without CUDA, its autograd takes no tensors that claim to be there.
    with torch.no_grad(), FakeTensorMode(), Sorts() as sorts:
        call("cuda")
    assert sorts.count == 0
    with Sorts() as sorts:
        call("cpu")
    assert sorts.count == 1


def test_labels_that_came_from_a_gpu_are_sorted_where_that_is_needed(backend):
    bias, y = torch.zeros(B), torch.tensor([3, 0, 1, 3, 2, 0])
    X, P = torch.randn(B, D), torch.randn(C, D)
    unsorted, kept = (
        anchor_lse(X, P, sets, AnchorBiases(bias, bias), alpha=2.0, backend=backend)
        for sets in (LabelSets(y), LabelSets.of(y))
    )
    assert torch.equal(unsorted.positive, kept.positive)
    assert torch.equal(unsorted.negative, kept.negative)
    F32, present = torch.float32, torch.tensor([True, False, True, True, False, False])
    assert LabelSets(y).count(None, F32) == LabelSets.of(y).count(None, F32) == 4
    assert LabelSets(y).count(present, F32) == 2
    assert LabelSets(y).count(present & False, F32) == 1
