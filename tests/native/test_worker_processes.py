"""The native ops in the workers of a DataLoader, after the parent has used them with several threads.

A forked child of a process whose OpenMP threads have run waits for threads that it doesn't have, as soon as it asks for
more than one. Workers of a DataLoader ask for one.
"""

import pytest

from tests.subprocesses import run_python

CODE = """
import os
import sys

import torch
from torch.utils.data import DataLoader

from robustdml_ops import losses, ops


def use(seed):
    random = torch.Generator().manual_seed(seed)
    X, y = torch.randn(512, 64, generator=random, requires_grad=True), torch.arange(512) % 300
    of_classes = (losses.ProxyAnchorLoss(300, 64, backend="native"), losses.ProxyNCALoss(300, 64, backend="native"))
    for module in of_classes:
        torch.nn.init.ones_(module.proxies)
    on_pairs = losses.MultiSimilarityLoss(backend="native"), losses.ContrastiveLoss(backend="native")
    loss = sum(module(X, y) for module in (*of_classes, *on_pairs))
    loss.backward()
    values = torch.rand(1 << 16, generator=random)
    total = ops.superloss(values, 0.5, 1.0, backend="native").sum()
    total += ops.vmf_log_peak(64, values, backend="native").sum()
    total += ops.otsu_threshold(values.reshape(256, 256), backend="native").threshold.sum()
    total += ops.nearest(X.detach(), X.detach(), 3, backend="native").values.sum()
    return float(loss.detach() + X.grad.sum() + total)


class Uses:
    def __len__(self):
        return 4

    def __getitem__(self, seed):
        assert torch.get_num_threads() == 1
        return use(seed)


if __name__ == "__main__":
    torch.set_num_threads(2)
    expected = [use(seed) for seed in range(4)]
    assert len(os.listdir("/proc/self/task")) >= 2
    # A worker that hangs ends this with a RuntimeError, and is killed.
    loader = DataLoader(Uses(), batch_size=1, num_workers=2, multiprocessing_context=sys.argv[1], timeout=60)
    for found, wanted in zip(loader, expected, strict=True):
        torch.testing.assert_close(float(found), wanted, rtol=1e-4, atol=1e-3)
    print("done")
"""


@pytest.mark.parametrize(
    "method", ["fork", *(pytest.param(kind, marks=pytest.mark.nightly) for kind in ("spawn", "forkserver"))]
)
@pytest.mark.usefixtures("native")
def test_workers_of_a_dataloader(method, tmp_path):
    script = tmp_path / "workers.py"
    script.write_text(CODE)
    run = run_python(str(script), method, OMP_NUM_THREADS="2")
    assert (run.returncode, run.stdout.strip()) == (0, "done"), run.stderr[-3000:]
