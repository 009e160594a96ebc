import numpy as np
import pytest
import torch

from robustdml.data import take_classes
from robustdml.data.named import NAMED, NamedData
from robustdml.networks import pretraining
from robustdml.networks.models import SmallCNN, apply_in_batches, outputs_in_batches

CPU = torch.device("cpu")


def test_batches_change_nothing_and_the_mode_is_kept():
    network = SmallCNN(1)
    images = np.random.default_rng(0).integers(0, 256, (11, 1, 32, 32), dtype=np.uint8)
    whole = apply_in_batches(network, images, CPU)
    assert network.training
    parts = outputs_in_batches(network, images, CPU, batch_size=3)
    np.testing.assert_allclose(whole, np.concatenate(list(parts)), atol=1e-5)
    network.eval()
    with torch.no_grad():
        expected = network(torch.from_numpy(images).float() / 255)
    np.testing.assert_allclose(whole, expected.numpy(), atol=1e-5)


def test_large_images_come_in_smaller_batches_and_progress_is_told():
    sizes, reports = [], []

    def look(_, arguments):
        sizes.append(len(arguments[0]))

    network = torch.nn.Flatten()
    network.register_forward_pre_hook(look)
    apply_in_batches(
        network, np.zeros((30, 1, 224, 224), np.uint8), CPU, on_progress=lambda *told: reports.append(told)
    )
    assert sizes == [12, 12, 6]
    assert reports == [("features", 0, 30), ("features", 12, 30), ("features", 24, 30)]
    apply_in_batches(network, np.zeros((600, 5), np.float32), CPU)
    assert sizes[3:] == [512, 88]


def test_pretraining_learns_and_is_cached(tiny_images, own_cache, monkeypatch):
    source = pretraining.Pretraining(lambda: take_classes(tiny_images.train, np.arange(4)), lambda: "tiny")
    monkeypatch.setitem(NAMED, "tiny", NamedData("tiny", source.load, "tiny-cnn", source))
    monkeypatch.setattr(pretraining, "BATCH_SIZE", 8)
    monkeypatch.setattr(pretraining, "EPOCHS", 2)
    steps = []
    first = pretraining.load_pretrained_cnn("tiny-cnn", lambda what, done, total: steps.append((done, total)))
    assert steps == [(step, 10) for step in range(1, 11)]
    again = pretraining.load_pretrained_cnn("tiny-cnn", lambda *_: pytest.fail("trained again"))
    for name, value in first.state_dict().items():
        assert torch.equal(value, again.state_dict()[name])
    torch.manual_seed(0)
    assert not torch.equal(first[0].weight, SmallCNN(1)[0].weight)
