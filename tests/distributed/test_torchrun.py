"""A script of the losses as users start it on several processes."""

import pytest

from tests.subprocesses import run_python

SCRIPT = """
import torch
import torch.distributed as dist

from robustdml_ops.distributed import shard_classes
from robustdml_ops.losses import ProxyAnchorLoss

dist.init_process_group("gloo")
torch.manual_seed(0)
loss_function = shard_classes(ProxyAnchorLoss(8, 4))
optimizer = torch.optim.SGD(loss_function.parameters(), 0.5, foreach=False)
embeddings, labels = torch.eye(4)[[dist.get_rank()] * 3], torch.full((3,), dist.get_rank())
values = []
for _ in range(20):
    optimizer.zero_grad()
    loss = loss_function(embeddings, labels)
    loss.backward()
    optimizer.step()
    values.append(float(loss))
proxies = loss_function.proxies.full_tensor()
if dist.get_rank() == 0:
    assert values[-1] < values[0], values
    print("trained", tuple(proxies.shape))
dist.destroy_process_group()
"""


@pytest.mark.nightly
def test_torchrun_trains_one_loss(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    run = run_python(*launcher, str(script), OMP_NUM_THREADS="1")
    assert run.returncode == 0, run.stderr[-3000:]
    assert run.stdout.count("trained (8, 4)") == 1
