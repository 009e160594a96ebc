"""The examples run as their first lines say, and learn: untrained features find 0.94 of the unseen digits."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
EXAMPLES = {"trainer.py": [], "lightning_module.py": [], "amp_and_compile.py": [], "ddp.py": TORCHRUN}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "trainer.py" else pytest.mark.nightly) for name in EXAMPLES]
)
def test_example(name, tmp_path):
    if name == "lightning_module.py":
        pytest.importorskip("pytorch_lightning", reason="pytorch-lightning is not installed")
    command = [sys.executable, *EXAMPLES[name], str(ROOT / "examples" / name), "--epochs", "3"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found = re.findall(r"Recall@1 on unseen classes: ([0-9.]+)", done.stdout)
    assert found and all(float(value) > 0.8 for value in found), done.stdout


def test_every_example_is_tried():
    assert {path.name for path in (ROOT / "examples").glob("*.py")} == {*EXAMPLES, "digits.py"}
