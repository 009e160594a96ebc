"""Classes divided among processes, on ``torch.distributed`` alone: for matrices that one device can't hold.

    loss_function = shard_classes(ProxyAnchorLoss(10_000_000, 512), init_device_mesh("cuda", (8,)))

Each process owns a shard of the proxies, gives its own batch, and gets the loss of the joint batch.
"""

from robustdml_ops.distributed.processes import ShardError
from robustdml_ops.distributed.sharding import leave_out_of_ddp, shard_classes

__all__ = ["ShardError", "leave_out_of_ddp", "shard_classes"]
