"""Where pytorch-metric-learning is not installed the losses are the same, and its arguments say what to install."""

import torch
from peers import CLASS_NAMES, NAMES, batch

import robustdml_ops.losses as ours
from robustdml_ops.losses.peer import package as peer
from tests.subprocesses import run_python

PROGRAM = f"""
import sys
sys.modules["pytorch_metric_learning"] = None  # whose import fails then
import torch
import robustdml_ops
import robustdml_ops.losses as ours
from robustdml_ops.losses.peer.package import INSTALLED
assert not INSTALLED
found = {{}}
X, y, miner = torch.load(sys.argv[1])
for name, sizes in {NAMES!r}.items():
    torch.manual_seed(5)
    loss = getattr(ours, name)(**sizes)
    found[name] = (loss.state_dict(), loss(X, y), loss(X, y, miner), loss.sub_loss_names(), torch.get_rng_state())
    of_all = ["reducer", "distance", "embedding_regularizer", "collect_stats"]
    for option in [*of_all, "weight_regularizer"] if sizes else of_all:
        try:
            getattr(ours, name)(**sizes, **{{option: 1}})
        except ValueError as error:
            print(option, error)
        else:
            print(name, "took", option)
torch.save(found, sys.argv[1])
try:
    robustdml_ops.patch_pytorch_metric_learning()
except ImportError as error:
    print(error)
"""


def test_values_and_arguments(tmp_path):
    file = tmp_path / "batch.pt"
    X, y = batch(dtype=torch.float32)
    places = torch.arange(8)
    miner = (places, places + 1, places, places + 9)
    torch.save((X.detach(), y, miner), file)
    result = run_python("-c", PROGRAM, str(file))
    assert result.returncode == 0, result.stderr
    found = torch.load(file)
    assert peer.INSTALLED
    for name, arguments in NAMES.items():
        torch.manual_seed(5)
        loss = getattr(ours, name)(**arguments)
        state, value, mined, names, generator = found[name]
        assert all(torch.equal(state[key], own) for key, own in loss.state_dict().items())
        assert torch.equal(generator, torch.get_rng_state())
        torch.testing.assert_close(value, loss(X, y))
        torch.testing.assert_close(mined, loss(X, y, miner))
        assert names == loss.sub_loss_names()
    *lines, patch = result.stdout.splitlines()
    assert patch.startswith("pytorch-metric-learning is not installed, so there is nothing to patch: pip")
    assert len(lines) == 4 * len(NAMES) + len(CLASS_NAMES)
    for line in lines:
        option = line.split()[0]
        assert line.startswith(
            f"{option} {option}=1 is served by pytorch-metric-learning, which is not installed: pip install"
        )
