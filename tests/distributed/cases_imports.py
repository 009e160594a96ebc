"""A Partial FC of eight processes is read into shards of one, two and three."""

from functools import partial

import pytest
import torch
import torch.distributed as dist

from robustdml_ops.distributed import ShardError
from robustdml_ops.losses import ArcFaceLoss, ProxyAnchorLoss, SubCenterArcFaceLoss, load_class_matrix
from tests.distributed.worlds import case, register, sharded
from tests.losses.test_load_class_matrix import STEM, C, D, head, save_shards

LOSSES = {"arcface": ArcFaceLoss, "proxy_anchor": ProxyAnchorLoss, "centres": SubCenterArcFaceLoss}


def folder_of(place, name):
    folder = place.folder / f"{name}-{place.size}"
    folder.mkdir(exist_ok=True)
    return folder


def read(name, place):
    one = LOSSES[name](num_classes=C, embedding_size=D).double()
    rows, folder = C * (one.centers or 1), folder_of(place, name)
    if place.rank == 0:
        save_shards(folder, rows=rows)
    dist.barrier()
    many = sharded(place, one)
    load_class_matrix(many, folder)
    with torch.no_grad():
        one._class_parameter().copy_(head(rows).T if one.columns else head(rows))
    matrix = one._class_parameter()
    torch.testing.assert_close(
        many._class_parameter().full_tensor(), one.by_class("", matrix) if one.centers else matrix
    )


for _name in LOSSES:
    register(_name, partial(read, _name), 1, 2, 3)


@case(2)
def a_file_that_one_process_lacks(place):
    many, folder = sharded(place, ArcFaceLoss(C, D)), folder_of(place, "missing")
    if place.rank == 0:
        save_shards(folder)
    dist.barrier()
    own = [folder / f"{STEM}{rank}.pt" for rank in range(8 - place.rank)]
    with pytest.raises(ValueError if place.rank else ShardError, match="17 rows in all"):
        load_class_matrix(many, own)
