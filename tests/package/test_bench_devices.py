"""What is timed lies on the device that is named, all of it: told on "meta", where a tensor of the CPU is refused."""

import pytest
import torch

from robustdml_ops.bench.bench_similarity import matrices
from robustdml_ops.bench.device import DEVICE, backends
from robustdml_ops.bench.losses import losses_of
from robustdml_ops.bench.pair_workloads import PairShape, PairWorkload
from robustdml_ops.bench.workloads import Shape, Workload

PROXY = ["proxy-anchor", "proxy-anchor none", "smooth dense", "smooth factored", "adaptive", "class-lse"]
PAIRS = ["ms", "ms none", "contrastive", "memory"]


def on_meta(tensors):
    return {tensor.device.type for tensor in tensors} == {"meta"}


@pytest.mark.parametrize("name", [*(f"robustdml/{loss}" for loss in PROXY), "torch/cross_entropy"])
def test_steps_over_proxies(name):
    workload = Workload(Shape(4, 20, 8), "meta")
    assert on_meta(workload.contender(name)())
    workload.products(logits="smooth" in name)()


def test_the_peer_has_the_labels_of_its_proxies_there():
    workload = Workload(Shape(4, 20, 8), "meta")
    assert "pml/proxy-nca" in workload.class_losses
    closed_over = workload.class_losses["pml/proxy-nca"].__closure__
    modules = [cell.cell_contents for cell in closed_over if isinstance(cell.cell_contents, torch.nn.Module)]
    assert [module.proxy_labels.device.type for module in modules] == ["meta"]


@pytest.mark.parametrize("name", [f"robustdml/{loss}" for loss in PAIRS])
def test_steps_over_pairs(name):
    workload = PairWorkload(PairShape(8, 4, 16 if "memory" in name else 0, wrong=50), "meta")
    assert on_meta(workload.contender(name)())
    workload.products(3, 2)()


def test_inputs_of_the_rest():
    assert on_meta([*matrices(2, 3, 4, "meta"), losses_of(5, "meta")])
    assert losses_of(5).device.type == DEVICE
    assert "eager" in backends()
