"""Networks in batches; their features are made once, kept in files, and read by every run that needs the same ones."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from app.tests.conftest import CPU
from robustdml.config import TrainingConfig
from robustdml.data import take_classes
from robustdml.data.named import NAMED, NamedData
from robustdml.networks import models, pretraining
from robustdml.networks.backbones import choice
from robustdml.networks.backbones.choice import Origin, load_origin
from robustdml.networks.models import SmallCNN, apply_in_batches, outputs_in_batches
from robustdml.networks.preparation import prepare
from robustdml.networks.stored_features import map_features, store_split
from robustdml.progress import silent


class Counting(nn.Module):
    """Means over rows, times a weight; counts the images that it is given."""

    def __init__(self, weight=1.0):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(weight))
        self.seen = 0

    def forward(self, images):
        self.seen += len(images)
        return self.weight.float() * images[:, 0].mean(dim=2)


def from_network(network, name="timm:x/y"):
    return Origin(name, network, (1, 32, 32))


def files(cache):
    return sorted(path.name for path in cache.rglob("*") if path.is_file())


def store(data, origin, report=silent):
    return [store_split(split, origin, CPU, report) for split in (data.train, data.test)]


def test_features_are_made_once_and_mapped(tiny_images, own_cache):
    network, told = Counting(), []
    made = store(tiny_images, from_network(network), lambda *report: told.append(report))
    assert network.seen == 105 and told
    again, told = Counting(), []
    stored = store(tiny_images, from_network(again), lambda *report: told.append(report))
    assert again.seen == 0 and not told
    assert stored == made and stored[0].is_relative_to(own_cache)
    assert stored[0].parent.name == "features" and len(files(own_cache)) == 2
    train, test = map(map_features, stored)
    assert np.array_equal(train, apply_in_batches(network, tiny_images.train.inputs, CPU))
    assert test.dtype == np.float32 and isinstance(test.base, np.memmap)
    # Who writes into them changes neither the file nor what others read.
    train[:] = 0
    assert map_features(stored[0]).any()


def test_whatever_they_depend_on_makes_them_anew(tiny_images, own_cache, monkeypatch):
    images = tiny_images.train
    pixels = images.inputs.copy()
    pixels[-1, -1, -1, -1] ^= 1
    cases = [
        ("timm:y", Counting(), images),
        ("timm:x/y", Counting(2.0), images),
        ("timm:x/y", Counting().bfloat16(), images),
        ("timm:x/y", nn.Sequential(Counting()), images),
        ("timm:x/y", Counting(), replace(images, inputs=pixels)),
        ("timm:x/y", Counting(), replace(images, inputs=images.inputs[:-1], labels=images.labels[:-1])),
    ]
    store_split(images, from_network(Counting()), CPU)
    for number, (name, network, split) in enumerate(cases, start=2):
        assert len(map_features(store_split(split, from_network(network, name), CPU))) == len(split)
        assert len(files(own_cache)) == number
    monkeypatch.setattr(torch, "__version__", "9.9")
    store_split(images, from_network(Counting()), CPU)
    assert len(files(own_cache)) == number + 1
    # Labels are no part of it: the same file serves every one that asks.
    store_split(replace(images, labels=images.labels[::-1]), from_network(Counting()), CPU)
    assert len(files(own_cache)) == number + 1


def test_a_pass_that_fails_is_taken_up_with_the_same_bits(tiny_images, own_cache, monkeypatch):
    class Failing(Counting):
        fails = True

        def forward(self, images):
            if self.fails and self.seen == 21:
                raise ValueError("no more")
            return super().forward(images)

    monkeypatch.setattr(models, "BATCH_SIZE", 7)
    network = Failing()
    with pytest.raises(ValueError, match="no more"):
        store_split(tiny_images.train, from_network(network), CPU)
    assert len(files(own_cache)) == 1 and network.training
    (begun,) = (path for path in own_cache.rglob("*.begun"))
    begun.write_bytes(begun.read_bytes()[:-100])  # A kill in the middle of the third batch.
    network.fails = False
    made = map_features(store_split(tiny_images.train, from_network(network), CPU))
    assert network.seen == 21 + len(tiny_images.train) - 14 and not list(own_cache.rglob("*.begun"))
    assert np.array_equal(made, apply_in_batches(network, tiny_images.train.inputs, CPU))


def test_training_comparing_and_finetuning_share_them(tiny_images, own_cache, monkeypatch):
    """Also where they take more room than the images: 2,048 numbers of 1,024 pixels."""
    network = SmallCNN(1)
    monkeypatch.setattr(choice, "load_pretrained_cnn", lambda *_: network)
    stored = store(tiny_images, load_origin(TrainingConfig(), tiny_images, CPU))
    kept = files(own_cache)
    made = []
    network.register_forward_hook(lambda module, inputs, outputs: made.append(len(outputs)))
    prepared = prepare(TrainingConfig(), tiny_images, CPU)
    assert np.array_equal(prepared.data.test.inputs, map_features(stored[1]))
    finetuned = prepare(TrainingConfig(finetune=True), tiny_images, CPU)
    assert np.array_equal(finetuned.frozen_features(), prepared.frozen_features())
    # One image each, by which the features are counted.
    assert made == [1, 1] and files(own_cache) == kept
    # What finetuning changes is not what the next run starts with.
    with torch.no_grad():
        network[0].weight[0, 0, 0, 0] += 1
    assert not np.array_equal(prepare(TrainingConfig(), tiny_images, CPU).frozen_features(), prepared.frozen_features())


def test_those_of_ones_own_code_are_made_by_every_run(tiny_images, own_cache, monkeypatch):
    network = Counting()
    monkeypatch.setattr(choice, "import_backbone", lambda name: network)
    for runs in (1, 2):
        data = prepare(TrainingConfig(backbone="my.package:factory"), tiny_images, CPU).data
        assert network.seen == runs * (1 + 105)
        assert np.array_equal(data.test.inputs, apply_in_batches(Counting(), tiny_images.test.inputs, CPU))
    assert files(own_cache) == []


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
    network, images = nn.Flatten(), np.zeros((30, 1, 224, 224), np.uint8)
    network.register_forward_pre_hook(lambda _, arguments: sizes.append(len(arguments[0])))
    apply_in_batches(network, images, CPU, on_progress=lambda *told: reports.append(told))
    assert sizes == [12, 12, 6]
    assert reports == [("features", 0, 30), ("features", 12, 30), ("features", 24, 30)]
    apply_in_batches(network, np.zeros((600, 5), np.float32), CPU)
    assert sizes[3:] == [512, 88]


def test_pretraining_learns_and_is_cached(tiny_images, monkeypatch):
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
