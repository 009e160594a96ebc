import numpy as np
import pytest
import torch
from torch import nn

from robustdml_ops.recipes.cache import cache_folder
from robustdml_ops.recipes.networks.kept_features import features_of

CPU = torch.device("cpu")


class Counting(nn.Module):
    """Means over rows, times a weight; counts the images that it is given."""

    def __init__(self, weight=1.0, rows=8):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(weight))
        self.rows, self.seen = rows, 0

    def forward(self, images):
        self.seen += len(images)
        return self.weight * images[:, 0, : self.rows].mean(dim=2)


@pytest.fixture
def images():
    return np.random.default_rng(0).integers(0, 256, (5, 3, 16, 16), dtype=np.uint8)


def kept():
    return sorted(path.name for path in cache_folder().glob("features-*.npy"))


def test_features_are_made_once(images):
    told = []
    backbone = Counting()
    made = features_of("timm:x", backbone, images, CPU, lambda *args: told.append(args))
    assert backbone.seen == 5 and len(kept()) == 1 and told
    told.clear()
    other = Counting()
    read = features_of("timm:x", other, images, CPU, lambda *args: told.append(args))
    assert other.seen == 0 and not told
    assert read.dtype == np.float32
    np.testing.assert_array_equal(made, read)
    # Who writes into them changes neither the file nor what others read.
    read += 1
    np.testing.assert_array_equal(features_of("timm:x", other, images, CPU), made)
    assert torch.from_numpy(read).shape == (5, 8)


def test_whatever_they_depend_on_makes_them_anew(images):
    features_of("timm:x", Counting(), images, CPU)
    changed = images.copy()
    changed[-1, -1, -1, -1] ^= 1
    for name, backbone, inputs in (
        ("timm:y", Counting(), images),
        ("timm:x", Counting(2.0), images),
        ("timm:x", nn.Sequential(Counting()), images),
        ("timm:x", Counting(), changed),
        ("timm:x", Counting(), images[:4]),
    ):
        before = kept()
        made = features_of(name, backbone, inputs, CPU)
        assert len(kept()) == len(before) + 1
        assert len(made) == len(inputs)


def test_own_code_and_what_would_take_more_room_are_not_kept(images):
    own = Counting()
    for _ in range(2):
        features_of("my.package:factory", own, images, CPU)
    assert own.seen == 10
    wide = nn.Sequential(Counting(), nn.Linear(8, 192))
    assert features_of("timm:x", wide, images, CPU).nbytes == 5 * 192 * 4 == images.nbytes
    assert kept() == []
