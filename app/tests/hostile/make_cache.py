"""Makes what the cache holds of a folder of images: pixels, features of a network, and two files that go together."""

import sys

import numpy as np
import torch

from robustdml.cache import cache_folder, make_once, read_array, write_whole
from robustdml.data import load_data
from robustdml.errors import disk_error
from robustdml.networks.backbones.choice import Origin
from robustdml.networks.models import SmallCNN
from robustdml.networks.stored_features import store_split


def main(photographs: str) -> None:
    data = load_data(photographs, image_size=32)
    torch.manual_seed(0)
    for split in (data.train, data.test):
        store_split(split, Origin("small", SmallCNN(3).eval(), (3, 32, 32)), torch.device("cpu"))
    first, second = (cache_folder() / name for name in ("first.npy", "second.npy"))

    def make() -> None:
        numbers = np.arange(3000)
        write_whole(first, lambda file: np.save(file, numbers))
        write_whole(second, lambda file: np.save(file, read_array(first) * 2))

    make_once(make, first, second)
    assert read_array(second).sum() == 2 * read_array(first).sum()


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except OSError as error:  # As the command line tells it.
        sys.exit(disk_error(error))
