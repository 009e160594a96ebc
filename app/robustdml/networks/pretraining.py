"""Backbones pretrained on characters that the data does not hold; they stand for one pretrained on ImageNet."""

import torch
from torch import nn

from robustdml.cache import cache_folder, make_once
from robustdml.data import Split
from robustdml.data.named import NAMED, Pretraining
from robustdml.data.samplers import RandomSampler
from robustdml.networks.models import SmallCNN, as_tensor
from robustdml.plain_files import read_plain, save_plain
from robustdml.progress import OnProgress, silent

RECIPE_VERSION = 2
EPOCHS = 3
BATCH_SIZE = 128
LEARNING_RATE = 2e-3


def pretrained() -> dict[str, Pretraining]:
    """List the backbones that are pretrained here, by name."""
    return {data.backbone: data.pretraining for data in NAMED.values() if data.pretraining is not None}


def load_pretrained_cnn(name: str, on_progress: OnProgress = silent) -> SmallCNN:
    """Return a pretrained backbone, from the cache or trained now (a minute or two on two cores)."""
    source = pretrained()[name]
    path = cache_folder() / f"small-cnn-{source.key()}-{RECIPE_VERSION}.pt"
    backbone = SmallCNN(1)

    make_once(lambda: save_plain(path, _pretrain(source.load(), on_progress).state_dict()), path)
    backbone.load_state_dict(read_plain(path, "backbone; delete it, and it is made again"))
    return backbone


def _pretrain(data: Split, on_progress: OnProgress) -> SmallCNN:
    """Plain classification with softmax cross-entropy, clean labels, one-cycle learning rate."""
    cpu = torch.device("cpu")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        backbone = SmallCNN(1)
        classifier = nn.Linear(2048, data.num_classes)
    sampler = RandomSampler(len(data), BATCH_SIZE, seed=0)
    steps = EPOCHS * len(sampler)
    optimizer = torch.optim.AdamW([*backbone.parameters(), *classifier.parameters()], weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=LEARNING_RATE, total_steps=steps)
    labels = torch.from_numpy(data.labels)
    for epoch in range(EPOCHS):
        for step, rows in enumerate(sampler.batches(epoch), start=epoch * len(sampler) + 1):
            logits = classifier(backbone(as_tensor(data.inputs[rows], cpu)))
            loss = nn.functional.cross_entropy(logits, labels[rows])
            optimizer.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
            on_progress("pretraining the backbone", step, steps)
    return backbone
