"""The examples run as their first lines say, and learn: untrained features find 0.94 of the unseen digits."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TORCHRUN, TWO = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"], ["--processes", "2"]
# What comes before and after the name of the script.
EXAMPLES = {
    "trainer.py": ([], []),
    "many_classes.py": ([], []),
    "amp_and_compile.py": ([], []),
    "ddp.py": (TORCHRUN, []),
    "accelerate_shards.py": (TORCHRUN, []),
    "lightning_module.py": ([], TWO),
    "ray_shards.py": ([], TWO),
}
SHORT = ("trainer.py", "many_classes.py")
PACKAGES = {"accelerate_shards.py": "accelerate", "lightning_module.py": "pytorch_lightning", "ray_shards.py": "ray"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in SHORT else pytest.mark.nightly) for name in EXAMPLES]
)
def test_example(name, tmp_path):
    if name in PACKAGES:
        pytest.importorskip(PACKAGES[name], reason=f"{PACKAGES[name]} is not installed")
    before, after = EXAMPLES[name]
    command = [sys.executable, *before, str(ROOT / "examples" / name), "--epochs", "3", *after]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found = re.findall(r"Recall@1 on unseen classes: ([0-9.]+)", done.stdout)
    assert len(found) == (2 if before == TORCHRUN else 1)  # one for each process that torchrun starts
    assert all(float(value) > 0.8 for value in found), done.stdout


def test_every_example_is_tried():
    assert {path.name for path in (ROOT / "examples").glob("*.py")} == {
        *EXAMPLES,
        "digits.py",
        "faiss_index.py",
    }
