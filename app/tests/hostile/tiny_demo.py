"""``robustdml demo`` with all that it does, on a few small images and small shapes: seconds instead of minutes."""

import sys

import numpy as np
import torch

from experiments.commands import demo
from experiments.demo.timing import Shape
from robustdml.cli import main
from robustdml.data import RetrievalData, Split
from robustdml.networks.backbones import choice
from robustdml.networks.models import SmallCNN


def images(samples: int, classes: int, seed: int) -> Split:
    random = np.random.default_rng(seed)
    labels = np.arange(samples) % classes
    pixels = random.integers(0, 150, (classes, 1, 32, 32))[labels] + random.integers(0, 100, (samples, 1, 32, 32))
    return Split(pixels.astype(np.uint8), labels, tuple(f"class {label}" for label in range(classes)))


def backbone(*_: object) -> SmallCNN:
    torch.manual_seed(0)
    return SmallCNN(1)


if __name__ == "__main__":
    demo.load_data = lambda _: RetrievalData("glyphs", images(60, 6, 3), images(45, 5, 4))
    demo.Shape = lambda: Shape(batch=16, classes=50, size=8)
    choice.load_pretrained_cnn = backbone
    sys.exit(main(["demo", *sys.argv[1:]]))
