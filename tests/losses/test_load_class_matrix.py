"""Heads of other libraries, whole or in a file of each process, read into losses with a class matrix."""

import os
from collections import OrderedDict

import pytest
import torch
from torch import nn

from python_ref.margin_softmax import arcface_loss
from robustdml_ops import losses
from robustdml_ops.losses import load_class_matrix, loading

C, D, WORLD = 19, 4, 8
STEM = "softmax_fc_gpu_"


def head(rows=C):
    return torch.randn(rows, D, generator=torch.Generator().manual_seed(rows), dtype=torch.float64)


def save_shards(folder, stem=STEM, rows=C):
    """As arcface_torch, whose first ranks have one class more."""
    whole, first = head(rows), 0
    for rank in range(WORLD):
        last = first + rows // WORLD + (rank < rows % WORLD)
        state = OrderedDict(weight=whole[first:last].clone())
        if stem != STEM:
            backbone = nn.Linear(D, 2).state_dict()
            state = {"epoch": 3, "state_dict_backbone": backbone, "state_dict_softmax_fc": state}
        torch.save(state, folder / f"{stem}{rank}.pt")
        first = last
    return whole


@pytest.mark.parametrize("stem", [STEM, "checkpoint_gpu_"])
def test_a_partial_fc_of_eight_processes(stem, tmp_path, monkeypatch):
    monkeypatch.setattr(loading, "_ROWS", 2)  # each file is read in pieces
    whole, loss = save_shards(tmp_path, stem), losses.ArcFaceLoss(C, D).double()
    X, labels = torch.randn(6, D, dtype=torch.float64), torch.randint(C, (6,))
    load_class_matrix(loss, tmp_path)
    expected = arcface_loss(X, labels, whole)
    torch.testing.assert_close(loss(X, labels), expected, rtol=0, atol=1e-12)


def test_what_a_head_may_be(tmp_path):
    linear = nn.Linear(D, C)
    with torch.no_grad():
        linear.weight.copy_(head())
        linear.bias.zero_()
    torch.save(linear.state_dict(), tmp_path / "head.pt")
    torch.save(linear.weight, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    halves = [tmp_path / "first.pt", os.fspath(tmp_path / "second.pt")]
    for file, rows in zip(halves, linear.weight.detach().split(10), strict=True):
        torch.save(rows.clone(), file)
    for source in (linear, linear.weight, linear.state_dict(), tmp_path / "head.pt", str(tmp_path / "old.pt"), halves):
        loss = losses.ProxyAnchorLoss(C, D)
        kept = loss.proxies
        load_class_matrix(loss, source)
        assert loss.proxies is kept and torch.equal(kept, linear.weight)
    loss, with_bias = losses.ArcFaceLoss(C, D), nn.Linear(D, C)
    load_class_matrix(loss, with_bias.state_dict(), drop_bias=True)
    assert torch.equal(loss.W.T, with_bias.weight)


@pytest.mark.parametrize("make", [losses.SubCenterArcFaceLoss, losses.SoftTripleLoss])
def test_rows_of_centres(make):
    loss = make(num_classes=C, embedding_size=D).double()
    rows = head(C * loss.centers)
    load_class_matrix(loss, rows.float())
    assert torch.equal(loss._class_parameter().T, rows.float().double())


def without(rank):
    return lambda folder: (folder / f"{STEM}{rank}.pt").unlink()


class Harmful:
    def __reduce__(self):
        return (os.mkdir, ("taken",))


@pytest.mark.parametrize(
    ("spoil", "error", "words"),
    [
        (without(3), FileNotFoundError, rf"has 7 files {STEM}\*\.pt, and no {STEM}3\.pt: copy those of all"),
        (without(7), ValueError, r"17 rows in all, and ArcFaceLoss needs \(19, 4\): give the files of all"),
        (
            lambda folder: torch.save({}, folder / "checkpoint_gpu_0.pt"),
            FileNotFoundError,
            r"has both softmax_fc_gpu_\*\.pt and checkpoint_gpu_\*\.pt: give the files in the order",
        ),
        (
            lambda folder: [file.unlink() for file in folder.iterdir()],
            FileNotFoundError,
            r"has neither of softmax_fc_gpu_\*\.pt and checkpoint",
        ),
        (lambda folder: torch.save(Harmful(), folder / f"{STEM}0.pt"), ValueError, "nothing was run: save the weight"),
        (lambda folder: (folder / f"{STEM}0.pt").write_bytes(b"PK"), ValueError, r"gpu_0\.pt is damaged"),
        (
            lambda folder: torch.save({"fc.weight": head()}, folder / f"{STEM}0.pt"),
            ValueError,
            r"gpu_0\.pt has no 'weight', it has fc\.weight: give the matrix itself",
        ),
    ],
)
def test_folders_that_are_not_whole(spoil, error, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    save_shards(tmp_path / "run")
    spoil(tmp_path / "run")
    loss = losses.ArcFaceLoss(C, D)
    before = loss.W.detach().clone()
    with pytest.raises(error, match=words):
        load_class_matrix(loss, tmp_path / "run")
    assert torch.equal(loss.W, before) and not (tmp_path / "taken").exists()


@pytest.mark.parametrize(
    ("source", "error", "words"),
    [
        (head().T, ValueError, r"the shapes \(4, 19\), 4 rows.* needs \(19, 4\): transpose it"),
        (torch.randn(C, 5), ValueError, r"the shapes \(19, 5\).*make the loss with the sizes of the head"),
        (torch.randn(C + 1, D), ValueError, r"20 rows in all.*grow_classes then changes"),
        (
            torch.ones(C, D, dtype=torch.int64),
            ValueError,
            r"floating-point matrix, got shape \(19, 4\) of torch\.int64",
        ),
        ({"weight": [1.0]}, TypeError, "must be a torch.Tensor, not list"),
        (nn.Linear(D, C).state_dict(), ValueError, "has a bias, and a loss over cosines has none: give drop_bias=True"),
        (head().index_fill(0, torch.tensor(11), torch.inf), ValueError, "row 11 of source has NaN or inf in torch.flo"),
        ("nowhere.pt", FileNotFoundError, "nowhere.pt"),
    ],
)
def test_matrices_of_another_kind(source, error, words):
    loss = losses.ArcFaceLoss(C, D)
    before = loss.W.detach().clone()
    with pytest.raises(error, match=words):
        load_class_matrix(loss, source)
    assert torch.equal(loss.W, before)


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (losses.MultiSimilarityLoss, TypeError, "such as ArcFaceLoss, got MultiSimilarityLoss"),
        (lambda: losses.ArcFaceLoss(C, D).to("meta"), ValueError, "on the meta device: call shard_classes first"),
    ],
)
def test_losses_that_cannot_take_it(make, error, words):
    with pytest.raises(error, match=words):
        load_class_matrix(make(), head())
