"""The native ops in the workers of a DataLoader, after the parent has used them with several threads, and meanwhile.

A forked child of a process whose OpenMP threads have run waits for threads that it doesn't have, as soon as it asks for
more than one. Workers of a DataLoader ask for one.
"""

import pytest

from tests.nightly import nightly_but
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
    loaders = [
        DataLoader(Uses(), batch_size=1, num_workers=2, multiprocessing_context=kind, timeout=60)
        for kind in sys.argv[1:]
    ]
    for seed, found in enumerate(zip(*loaders, strict=True)):
        assert use(seed) == expected[seed]
        for one in found:
            torch.testing.assert_close(float(one), expected[seed], rtol=1e-4, atol=1e-3)
    print("done")
"""


@pytest.mark.parametrize("methods", nightly_but(["fork"], ["fork", "forkserver", "spawn fork"]))
@pytest.mark.usefixtures("native")
def test_workers_of_a_dataloader(methods, tmp_path):
    script = tmp_path / "workers.py"
    script.write_text(CODE)
    run = run_python(str(script), *methods.split(), OMP_NUM_THREADS="2")
    assert (run.returncode, run.stdout.strip()) == (0, "done"), run.stderr[-3000:]
